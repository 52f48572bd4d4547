"""Rolls: the conditions that close a segment, and failures of a roll."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from dataclasses import replace

import pytest

from inside import log_state
from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ClosedError, LogDirOfflineError, OutOfResourcesError, StorageError
from stratalog.log.log import Log
from stratalog.log.log_check import check_log
from stratalog.log.state.roll import new_appender
from stratalog.model.records import Record
from stratalog.segment.appender import Appender
from stratalog.spi.indexes import IndexRole
from stratalog.testing.faults import FaultyVfs, failing

STEP_MS = 1000
OF_A_ROLL = ("create", "write", "sync", "rename", "sync folder", "truncate")


class WrongClock(ManualClock):
    """A clock that can be set back."""

    behind_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


@pytest.mark.parametrize("chance", range(5))
def test_jitter_above_the_longest_lag_does_not_roll_at_each_append(bed: LogBed, chance: int) -> None:
    """Kafka limits the jitter only by segment.ms. The remaining time until a roll can then be negative."""
    bed.topic = TopicConfig(
        cleanup_policy=("compact",), segment_ms=10**9, segment_jitter_ms=10**8, max_compaction_lag_ms=STEP_MS
    )
    log = bed.open()
    components = replace(bed.components, env=replace(bed.components.env, chance=random.Random(chance)))  # noqa: S311 - repeatable
    log_state(log).writes.replace_appender(new_appender(log.view().segments[-1], components, bed.topic))
    for _ in range(3):
        log.append([Record(timestamp_ms=5, key=b"k")])
    assert bases(log) == [0]
    log.append([Record(timestamp_ms=6 + STEP_MS, key=b"k")])
    assert bases(log) == [0, 3]


def test_settings_that_shrink_below_the_jitter_drawn_roll_at_the_first_later_record(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_ms=10**9)
    log = bed.open()
    log_state(log).writes.replace_appender(
        Appender(log.view().segments[-1], bed.components, bed.topic, jitter_ms=10**8)
    )
    log.maintenance.configure(TopicConfig(segment_ms=10), bed.components)
    for stamp in (5, 5, 6):
        log.append([Record(timestamp_ms=stamp)])
    assert bases(log) == [0, 2]


def test_an_empty_segment_takes_up_index_settings_that_leave_room(bed: LogBed) -> None:
    """The index of the segment had no room from the start. With the new setting, the segment gets entries."""
    small = TopicConfig(segment_index_bytes=12, index_interval_bytes=0)
    bed.topic = small
    log = bed.open()
    bed.topic = replace(small, segment_index_bytes=1200)
    log.maintenance.configure(bed.topic, bed.components)
    for index in range(4):
        log.append(records(1, start=index))
    assert bases(log) == [0]
    entries = log.view().segments[-1].index_entries(IndexRole.OFFSET)
    assert len(bed.components.indexes[IndexRole.OFFSET].reader(entries, 0)) == 3
    assert log.close()
    assert [record.offset for record in bed.open().records()] == [0, 1, 2, 3]


@pytest.mark.parametrize("index_bytes", [4, 12])  # Kafka's smallest setting, which has no room for an entry
def test_indexes_without_room_roll_at_each_append(bed: LogBed, index_bytes: int) -> None:
    bed.topic = TopicConfig(segment_index_bytes=index_bytes, index_interval_bytes=0)
    log = bed.open()
    for index in range(3):
        log.append(records(1, start=index))
    assert bases(log) == [0, 1, 2]
    assert [record.offset for record in log.records()] == [0, 1, 2]
    assert log.close()
    reopened_log = bed.open()
    assert [record.offset for record in reopened_log.records()] == [0, 1, 2]
    assert reopened_log.append(records(1, start=3)).base_offset == 3


@pytest.mark.parametrize("stamp", [-1, 0])
def test_a_clock_that_is_set_back_rolls_nothing_and_loses_nothing(bed: LogBed, stamp: int) -> None:
    clock = bed.clock = WrongClock()
    bed.topic = TopicConfig(segment_ms=STEP_MS, message_timestamp_type="LogAppendTime")
    log = bed.open()
    log.append([Record(timestamp_ms=stamp, value=b"a")])
    first = clock.now_ms()
    clock.behind_ms = 10 * STEP_MS
    assert not log.maintenance.roll_if_due()
    result = log.append([Record(timestamp_ms=stamp, value=b"b")])
    assert result.append_time_ms == first - 10 * STEP_MS
    assert bases(log) == [0]
    clock.behind_ms = 0
    clock.advance_ms(STEP_MS + 1)
    log.append([Record(timestamp_ms=stamp, value=b"c")])
    assert bases(log) == [0, 2]
    assert log.offset_for_timestamp(first) == 0
    assert log.offset_for_timestamp(first + 1) == 2
    log = bed.open()
    assert [record.value for record in log.records()] == [b"a", b"b", b"c"]
    assert log.offset_for_timestamp(first + 1) == 2


def test_a_foreign_file_with_the_name_of_the_next_segment_gives_way(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(2))
    bed.path(2).write_bytes(b"left by a crash")
    bed.path(2, ".index").write_bytes(b"the same")
    assert log.roll() == 2
    log.append(records(1, start=2))
    assert [record.key for record in log.records()] == [record.key for record in records(3)]


def test_a_folder_that_vanished_takes_the_log_out_of_service_at_the_next_roll(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(2))
    new_folder = bed.folder.rename(bed.folder.with_name("elsewhere"))
    with pytest.raises(StorageError) as caught:
        log.roll()
    assert str(bed.folder) in str(caught.value)
    assert [record.offset for record in log.records()] == [0, 1]
    new_folder.rename(bed.folder)
    log.close()
    assert [record.offset for record in bed.open(clean=False).records()] == [0, 1]


@pytest.mark.parametrize("operation", OF_A_ROLL)
def test_a_roll_that_fails_anywhere_loses_no_record(bed: LogBed, operation: str) -> None:
    disk = bed.files_port = FaultyVfs()
    bed.topic = TopicConfig(index_interval_bytes=0)
    log = bed.open()
    for index in range(3):
        log.append(records(1, start=index))
    reached = []

    def fail(file_operation: str, path: str) -> None:
        if file_operation == operation:
            reached.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.rule = fail
    with pytest.raises(LogDirOfflineError):
        log.roll()
    disk.rule = None
    assert reached
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=3))
    assert [record.offset for record in log.records()] == [0, 1, 2]
    log.close()
    log = bed.open(clean=False)
    assert [record.key for record in log.records()] == [record.key for record in records(3)]
    assert log.append(records(1, start=3)).base_offset == 3


def test_the_indexes_are_complete_before_the_next_segment_exists(bed: LogBed) -> None:
    """A crash after that may leave a recovery point at the new segment: the indexes would not be rebuilt."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    before: list[dict[str, bytes]] = []

    def read_all(operation: str, _path: str) -> None:
        if operation == "create":
            before.append(bed.contents())

    files.rule = read_all
    log.roll()
    names = [bed.path(0, suffix).name for suffix in (".index", ".timeindex")]
    assert [before[0][name] for name in names] == [bed.contents()[name] for name in names]
    assert [len(before[0][name]) for name in names] == [0, 12]


def test_a_roll_that_fails_for_lack_of_space_leaves_indexes_that_grow(bed: LogBed) -> None:
    bed.files_port = files = FaultyVfs()
    bed.topic = TopicConfig(index_interval_bytes=0)
    log = bed.open()
    log.append(records(2))
    files.rule = failing("create", errno.ENOSPC, path=bed.path(2).name)
    with pytest.raises(OutOfResourcesError):
        log.roll()
    files.rule = None
    for offset in (2, 3):
        log.append(records(1, start=offset))
    assert offsets_in(log) == list(range(4))
    assert log.close()
    assert check_log(bed.files(), bed.components).findings == []


@pytest.mark.parametrize("index_bytes", [24, 1 << 20])
@pytest.mark.parametrize("operation", ["create", "allocate"])
@pytest.mark.parametrize("appends_follow", [True, False])
def test_failed_rolls_lose_no_closing_entry(
    bed: LogBed, operation: str, index_bytes: int, *, appends_follow: bool
) -> None:
    """A closing entry that could not be written, or a time index that is full since, must not leave a wrong index."""
    bed.files_port = files = FaultyVfs()
    bed.topic = TopicConfig(segment_index_bytes=index_bytes)
    log = bed.open()
    for offset in range(3):
        log.append(records(1, start=offset))
        files.rule = failing(operation, errno.ENOSPC)
        with pytest.raises(OutOfResourcesError):
            log.roll()
        files.rule = None
    if appends_follow:
        log.append(records(1, start=3))
        log.roll()
    assert offsets_in(log) == list(range(4 if appends_follow else 3))
    assert log.close()
    assert check_log(bed.files(), bed.components).findings == []


@pytest.mark.parametrize("is_before", [True, False])
def test_larger_indexes_can_be_set_before_or_after_a_failed_roll(bed: LogBed, *, is_before: bool) -> None:
    bed.files_port = files = FaultyVfs()
    bed.topic = TopicConfig(segment_index_bytes=24, index_interval_bytes=0)
    log = bed.open()
    log.append(records(1))
    larger = TopicConfig(segment_index_bytes=1 << 20, index_interval_bytes=0)
    if is_before:
        log.maintenance.configure(larger, bed.components)
    files.rule = failing("create", errno.ENOSPC)
    with pytest.raises(OutOfResourcesError):
        log.roll()
    files.rule = None
    log.maintenance.configure(larger, bed.components)
    for offset in range(1, 10):
        log.append(records(1, start=offset))
    assert offsets_in(log) == list(range(10))


def test_a_roll_syncs_the_indexes_before_the_next_segment_exists(bed: LogBed) -> None:
    """Later the recovery point passes the segment, so a recovery after a power loss does not rebuild them."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    operations: list[tuple[str, str]] = []
    files.rule = lambda operation, path: operations.append((operation, path))
    log.roll()
    created = next(number for number, (operation, _) in enumerate(operations) if operation == "create")
    synced = {path for operation, path in operations[:created] if "sync" in operation}
    assert {str(bed.path(0, suffix)) for suffix in (".log", ".index", ".timeindex")} <= synced


def test_jitter_is_drawn_by_the_chance_of_the_environment(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_ms=10**6, segment_jitter_ms=10**5)
    segment = bed.open().view().segments[-1]

    def drawn(seed: int) -> list[int]:
        env = Env(clock=bed.clock, chance=random.Random(seed))  # noqa: S311 - repeatable
        components = replace(bed.components, env=env)
        return [new_appender(segment, components, bed.topic).jitter_ms for _ in range(4)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("clean", [True, False])
def test_a_roll_whose_files_cannot_be_removed_takes_the_log_out_of_service(bed: LogBed, *, clean: bool) -> None:
    """Otherwise the next opening would end the active segment where the new one begins."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    refusals = [failing("create", errno.ENOSPC, path=".index"), failing("remove", errno.EBUSY, path=bed.path(3).name)]

    def refuse(operation: str, path: str) -> None:
        if bed.path(3).exists():
            for rule in refusals:
                rule(operation, path)

    files.rule = refuse
    with pytest.raises(OutOfResourcesError):
        log.roll()
    files.rule = None
    with contextlib.suppress(ClosedError):
        log.append(records(2, start=3))
    end = log.offsets().log_end
    if clean:
        bed.close()
    else:
        bed.crash()
    assert offsets_in(bed.open(clean=clean)) == list(range(end))
