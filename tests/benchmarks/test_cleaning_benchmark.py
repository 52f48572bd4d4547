"""The cleaning benchmark checks every side's outcome, and prints a report that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cleaning_parts.beyond import beyond_bounds
from cleaning_parts.compacting import AIOKAFKA, COMPACT, OURS, compact_bounds, compact_case
from cleaning_parts.logs import DirtyLog, make_dirty_log
from harness import KAFKA, WrongOutcomeError
from quick_run import quick_run, verdicts


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return quick_run("cleaning.py")


def test_each_side_is_measured_or_its_absence_is_explained(told: list[dict[str, Any]]) -> None:
    missing = " ".join(line["reason"] for line in told if line["kind"] == "missing")
    sides = {line["side"] for line in told if line["kind"] == "figures" and line["case"] == COMPACT}
    assert OURS in sides
    assert (KAFKA in sides) == (KAFKA not in missing)
    assert (AIOKAFKA in sides) == ("aiokafka" not in missing)


def test_every_bound_has_a_verdict(told: list[dict[str, Any]]) -> None:
    found = verdicts(told)
    bounds = sorted((bound.target, bound.case) for bound in [*compact_bounds(), *beyond_bounds()])
    cases = {case for _, case in bounds}
    assert sorted((line["target"], line["case"]) for line in found if line["case"] in cases) == bounds
    assert all((line["figure"] is None) == (line["reached"] is None) for line in found)


def test_a_log_with_other_records_is_reported(tmp_path: Path) -> None:
    made = make_dirty_log(tmp_path / "log", 2, 50)
    lying = DirtyLog(made.root, made.records + 1, made.keys, made.size_bytes)
    side = compact_case(made, tmp_path, None, None).sides[0]
    side.check()
    with pytest.raises(WrongOutcomeError):
        compact_case(lying, tmp_path, None, None).sides[0].check()
