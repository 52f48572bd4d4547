"""The cleaning benchmark checks the outcome of every side, and its report can be parsed."""

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
def report() -> list[dict[str, Any]]:
    return quick_run("cleaning.py")


def test_each_side_is_measured_or_its_absence_is_explained(report: list[dict[str, Any]]) -> None:
    missing = " ".join(line["reason"] for line in report if line["kind"] == "missing")
    sides = {line["side"] for line in report if line["kind"] == "figures" and line["case"] == COMPACT}
    assert OURS in sides
    assert (KAFKA in sides) == (KAFKA not in missing)
    assert (AIOKAFKA in sides) == ("aiokafka" not in missing)


def test_every_bound_has_a_verdict(report: list[dict[str, Any]]) -> None:
    lines = verdicts(report)
    bounds = sorted((bound.target, bound.case) for bound in [*compact_bounds(), *beyond_bounds()])
    cases = {case for _, case in bounds}
    assert sorted((line["target"], line["case"]) for line in lines if line["case"] in cases) == bounds
    assert all((line["figure"] is None) == (line["reached"] is None) for line in lines)


def test_a_log_with_other_records_is_reported(tmp_path: Path) -> None:
    dirty_log = make_dirty_log(tmp_path / "log", 2, 50)
    misstated_log = DirtyLog(dirty_log.root, dirty_log.records + 1, dirty_log.keys, dirty_log.size_bytes)
    side = compact_case(dirty_log, tmp_path, None, None).sides[0]
    side.check()
    with pytest.raises(WrongOutcomeError):
        compact_case(misstated_log, tmp_path, None, None).sides[0].check()
