"""Appends, rolls and new epochs that are interrupted at any line, the appends after them, and the next opening."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.errors import ClosedError
from stratalog.model.offsets import EpochEntry
from stratalog.model.records import Record

MODULES = (
    "log/append/append.py",
    "log/append/commit.py",
    "log/append/group_commit.py",
    "log/state/roll.py",
    "log/load/producer_replay.py",
    "segment/appender.py",
    "stratalog_local/segment_file.py",
)

EPOCH_MODULES = (
    "log/state/leadership.py",
    "log/state/role.py",
    "log/state/write_state.py",
    "log/folder/folder.py",
    "stratalog_local/folder.py",
)


@contextlib.contextmanager
def interrupted_at(line: int, modules: tuple[str, ...] = MODULES) -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt at the ``line``-th executed line of ``modules``.

    The yielded function returns True after the interrupt. ``with`` lines are not counted: Python runs them a second
    time before their lock is released, and handles no signal there.
    """
    remaining_lines = [line]

    # a trace function returns itself or None, a type that cannot be written
    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(modules):
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            remaining_lines[0] -= 1
            if remaining_lines[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: remaining_lines[0] <= 0
    finally:
        sys.settrace(before)


def reopened(bed: LogBed, *, clean: bool) -> list[bytes | None]:
    """Open the log again, append one more record, and return the values of all earlier records."""
    log = bed.open(clean=clean)
    log.append([Record(value=b"later")])
    log_records = list(log.records())
    assert [record.offset for record in log_records] == list(range(log.offsets().log_end))
    assert log_records[-1].value == b"later"
    return [record.value for record in log_records[:-1]]


@pytest.mark.parametrize("size", [10, 200], ids=["same segment", "next segment"])
@pytest.mark.long
def test_an_append_that_is_interrupted_at_any_line_leaves_whole_records_once(
    tmp_path: Path, bed: LogBed, size: int
) -> None:
    """After Ctrl-C between the write and the update of the log end, the next append once assigned the same offsets."""
    refusals = 0
    for line in itertools.count(1):
        fresh_bed = LogBed(tmp_path / str(line), bed.registry, TopicConfig(segment_bytes=300, index_interval_bytes=1))
        log = fresh_bed.open()
        log.append([Record(value=b"first")])
        with interrupted_at(line) as reached, contextlib.suppress(KeyboardInterrupt):
            log.append([Record(value=b"x" * size)])
        expected = [[b"first", b"next"], [b"first", b"x" * size, b"next"]]
        try:
            log.append([Record(value=b"next")])
        except ClosedError as error:
            refusals += "KeyboardInterrupt" in str(error)
            expected = [values[:-1] for values in expected]
        assert reopened(fresh_bed, clean=log.close()) in expected, line
        fresh_bed.close()
        if not reached():
            break
    assert refusals > 20


@pytest.mark.long
def test_a_roll_that_is_interrupted_at_any_line_loses_nothing(tmp_path: Path, bed: LogBed) -> None:
    for line in itertools.count(1, 3):
        fresh_bed = LogBed(tmp_path / str(line), bed.registry, TopicConfig(index_interval_bytes=1))
        log = fresh_bed.open()
        log.append([Record(value=b"first")])
        log.append([Record(value=b"second")])
        with interrupted_at(line) as reached, contextlib.suppress(KeyboardInterrupt):
            log.roll()
        expected: list[bytes | None] = [b"first", b"second"]
        with contextlib.suppress(ClosedError):
            log.append([Record(value=b"next")])
            expected.append(b"next")
        assert reopened(fresh_bed, clean=log.close()) == expected, line
        fresh_bed.close()
        if not reached():
            break
    assert line > 20


@pytest.mark.long
def test_a_new_epoch_that_is_interrupted_at_any_line_is_stored_only_if_the_log_leads_in_it(
    tmp_path: Path, bed: LogBed
) -> None:
    """Otherwise the next opening would assign the later records to another epoch."""
    served = 0
    for line in itertools.count(1):
        fresh_bed = LogBed(tmp_path / str(line), bed.registry)
        log = fresh_bed.open()
        log.append([Record(value=b"first")])
        with interrupted_at(line, EPOCH_MODULES) as reached, contextlib.suppress(KeyboardInterrupt):
            log.lead(4)
        with contextlib.suppress(ClosedError):
            log.append([Record(value=b"next")])
            served += 1
            expected = (EpochEntry(0, 0), EpochEntry(4, 1)) if log.leader_epoch else (EpochEntry(0, 0),)
            assert log.view().epochs.entries == expected, line
            fresh_bed.crash()
            assert fresh_bed.open(clean=False).view().epochs.entries == expected, line
        fresh_bed.close()
        if not reached():
            break
    assert 0 < served < line - 20
