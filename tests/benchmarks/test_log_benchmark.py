"""The log benchmark checks the outcome of every side, and its report can be parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import KAFKA, WrongOutcomeError
from log_parts import appending, lookups, reading, recovering
from log_parts.logs import ClosedLog, make_log, open_log, random_offsets, unclean_copy
from quick_run import quick_run, verdicts

CASES = {
    *(appending.RECORDS, appending.SMALL, appending.LARGE),
    *(reading.FETCH, reading.RECORDS, reading.ARROW, reading.ARROW_READ_IN),
    *(lookups.OFFSETS, lookups.TIMESTAMPS, lookups.RANGES),
    *(recovering.BARE, recovering.INDEXED, recovering.NEAR_END),
}


@pytest.fixture(scope="module")
def report() -> list[dict[str, Any]]:
    return quick_run("log.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ClosedLog:
    return make_log(tmp_path_factory.mktemp("made") / "log", 3, batch_records=10)


def test_every_case_has_figures_of_stratalog(report: list[dict[str, Any]]) -> None:
    figures = {(line["case"], line["side"]): line for line in report if line["kind"] == "figures"}
    assert {case for case, side in figures if side == "stratalog"} == CASES
    assert all(line["wall_s"] > 0 and line["records"] > 0 for line in figures.values())


def test_kafkas_log_is_measured_or_its_absence_is_explained(report: list[dict[str, Any]]) -> None:
    missing = [line["reason"] for line in report if line["kind"] == "missing"]
    cases = {line["case"] for line in report if line["kind"] == "figures" and line["side"] == KAFKA}
    assert cases == (
        set() if any(reason.startswith(KAFKA) for reason in missing) else CASES - {recovering.NEAR_END, lookups.RANGES}
    )


def test_every_bound_has_a_verdict(report: list[dict[str, Any]]) -> None:
    lines = verdicts(report)
    assert {line["case"] for line in lines} == CASES - {recovering.INDEXED}
    assert all((line["figure"] is None) == (line["reached"] is None) for line in lines)


def test_a_made_log_adds_up_to_what_its_records_do(made: ClosedLog) -> None:
    with open_log(made) as log:
        records = list(log.records())
    lengths = sum(len(record.key or b"") + len(record.value or b"") for record in records)
    assert made.total == sum(record.offset + record.timestamp_ms for record in records) + lengths


def test_an_unclean_copy_shares_its_segments_and_leaves_out_indexes(made: ClosedLog, tmp_path: Path) -> None:
    unclean_copy(made, tmp_path / "copy", indexes=False)
    (segment,) = made.folder.glob("*.log")
    copied = {file.name for file in (tmp_path / "copy" / made.folder.name).iterdir()}
    assert segment.name in copied
    assert not any(name.endswith("index") for name in copied)
    assert segment.stat().st_nlink > 1


def test_offsets_to_look_up_are_in_the_log() -> None:
    offsets = random_offsets(30)
    assert set(offsets) == set(range(30))
    assert offsets == random_offsets(30)


def test_other_records_than_those_appended_are_refused(made: ClosedLog) -> None:
    with pytest.raises(WrongOutcomeError, match="other bytes"):
        reading.check_bytes(made, b"0\n")
    with pytest.raises(WrongOutcomeError, match="other records"):
        lookups.check_found("a side", lookups.OFFSETS, made, b"0\n")
    with pytest.raises(WrongOutcomeError, match="ends elsewhere"):
        recovering.check_end("a side", made, b"0\n")
