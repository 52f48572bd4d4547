from __future__ import annotations

import errno
from pathlib import Path

import pytest

from log_bed import LogBed, records
from power_search import power_losses
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    ClosedError,
    InvalidTopicError,
    LogDirOfflineError,
    OffsetOutOfRangeError,
    OutOfResourcesError,
    PolicyViolationError,
    SystemLimitError,
)
from stratalog.log.change.delete import check_may_delete
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEntry
from stratalog.model.records import Record
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.testing.power_loss import PowerLossVfs

COUNT = 12


@pytest.fixture
def log(bed: LogBed) -> Log:
    """Return a log with twelve records, one in each batch, whose segments begin at 0, 2, 4, 6, 8 and 10."""
    bed.topic = TopicConfig(segment_bytes=300, file_delete_delay_ms=1000)
    new_log = bed.open()
    for index in range(COUNT):
        new_log.append(records(1, start=index, value_bytes=50))
    assert [segment.base_offset for segment in new_log.segments()] == [0, 2, 4, 6, 8, 10]
    return new_log


def offsets_in(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


# --- the log start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policies", "allowed"), [("compact", False), ("compact,delete", True), ("delete", True)])
def test_where_the_newest_of_each_key_is_to_stay_nothing_is_deleted_by_offset(
    bed: LogBed, policies: str, *, allowed: bool
) -> None:
    bed.topic = TopicConfig(cleanup_policy=tuple(policies.split(",")))
    log = bed.open()
    log.append([Record(key=b"k", value=b"v")] * 3)
    if allowed:
        assert log.delete_records(2) == 2
    else:
        with pytest.raises(PolicyViolationError, match=policies):
            log.delete_records(2)
        assert log.maintenance.raise_log_start(2) == 2  # the cleaner is allowed to raise the log start


def test_kafkas_own_topics_lose_nothing_by_offset() -> None:
    with pytest.raises(InvalidTopicError, match="__consumer_offsets"):
        check_may_delete("__consumer_offsets", TopicConfig())


def test_records_below_the_log_start_are_not_shown(log: Log) -> None:
    assert log.delete_records(5) == 5
    assert offsets_in(log) == list(range(5, COUNT))
    bounds = log.offsets()
    assert (bounds.log_start, bounds.local_log_start, bounds.recovery_point) == (5, 5, COUNT)
    assert log.view().epochs.entries == (EpochEntry(0, 5),)
    with pytest.raises(OffsetOutOfRangeError):
        log.fetch(4)
    assert log.offset_for_timestamp(0) == 5


def test_the_log_start_never_falls(log: Log) -> None:
    log.delete_records(5)
    assert (log.delete_records(3), log.delete_records(5)) == (5, 5)
    assert log.offsets().log_start == 5


@pytest.mark.parametrize("before", [1, 5, 6, COUNT])
def test_the_log_start_does_not_fall_with_a_crash(bed: LogBed, log: Log, before: int) -> None:
    assert log.delete_records(before) == before
    bed.crash()
    log = bed.open(clean=False)
    assert log.offsets().log_start == before
    assert offsets_in(log) == list(range(before, COUNT))


def test_minus_one_is_the_high_watermark(log: Log) -> None:
    assert log.delete_records(-1) == COUNT
    assert offsets_in(log) == []
    assert log.append(records(1, start=COUNT)).base_offset == COUNT
    assert offsets_in(log) == [COUNT]


@pytest.mark.parametrize("offset", [COUNT + 1, -2, 1 << 62])
def test_only_committed_records_can_be_deleted(log: Log, offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(offset)
    assert log.offsets().log_start == 0


def test_epochs_that_cannot_be_stored_take_the_log_out_of_service(files: FaultyVfs, log: Log) -> None:
    """The epochs in memory are already cut, and the disk has failed."""
    files.rule = failing("sync", errno.EIO, path="leader-epoch-checkpoint.tmp")
    with pytest.raises(LogDirOfflineError):
        log.delete_records(2)
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=COUNT))
    assert offsets_in(log) == list(range(COUNT))


# --- segments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "first"), [(0, 0), (1, 0), (2, 2), (5, 4), (6, 6), (9, 8), (11, 10)])
def test_whole_closed_segments_are_deleted(bed: LogBed, log: Log, end: int, first: int) -> None:
    log.maintenance.raise_log_start(first)
    assert log.maintenance.evict(end) == first // 2
    assert offsets_in(log) == list(range(first, COUNT))
    assert log.offsets().log_start == first
    assert [segment.base_offset for segment in log.segments()] == list(range(first, COUNT, 2))
    live = {name for name in bed.names() if name.endswith(".log")}
    assert live == {bed.path(base).name for base in range(first, COUNT, 2)}


def test_a_segment_above_the_log_start_is_not_deleted_from_a_log_without_a_tier(log: Log) -> None:
    log.maintenance.raise_log_start(3)
    assert log.maintenance.evict(COUNT) == 1
    assert offsets_in(log) == list(range(3, COUNT))


def test_the_active_segment_is_rolled_before_it_is_deleted(bed: LogBed, log: Log) -> None:
    log.maintenance.raise_log_start(COUNT)
    assert log.maintenance.evict(COUNT) == 6
    assert [segment.base_offset for segment in log.segments()] == [COUNT]
    assert (offsets_in(log), log.offsets().log_start) == ([], COUNT)
    assert log.append(records(1)).base_offset == COUNT
    assert log.maintenance.evict(COUNT) == 0
    bed.close()
    assert offsets_in(bed.open()) == [COUNT]


def test_files_stay_for_a_while_under_another_name(bed: LogBed, log: Log) -> None:
    log.maintenance.raise_log_start(4)
    log.maintenance.evict(4)
    deleted = [name for name in bed.names() if name.endswith(".deleted")]
    for base in (0, 2):
        assert {bed.path(base, suffix).name + ".deleted" for suffix in (".log", ".index", ".timeindex")} <= set(deleted)
    assert bed.path(2, ".snapshot").name + ".deleted" in deleted
    assert not bed.path(2, ".snapshot").exists()
    assert bed.path(4, ".snapshot").exists()
    bed.clock.advance_ms(999)
    assert log.maintenance.delete_expired() == 0
    bed.clock.advance_ms(1)
    assert log.maintenance.delete_expired() == len(deleted)
    assert not [name for name in bed.names() if name.endswith(".deleted")]


def test_closing_removes_what_is_left(bed: LogBed, log: Log) -> None:
    log.maintenance.raise_log_start(4)
    log.maintenance.evict(4)
    bed.close()
    assert not [name for name in bed.names() if name.endswith(".deleted")]
    assert offsets_in(bed.open()) == list(range(4, COUNT))


def test_a_crash_leaves_files_that_the_next_load_removes(bed: LogBed, log: Log) -> None:
    log.maintenance.raise_log_start(4)
    log.maintenance.evict(4)
    bed.crash()
    assert [name for name in bed.names() if name.endswith(".deleted")]
    assert offsets_in(bed.open(clean=False)) == list(range(4, COUNT))
    assert not [name for name in bed.names() if name.endswith(".deleted")]


@pytest.mark.parametrize(
    ("operation", "code", "path"),
    [
        ("rename", errno.ENOSPC, "00.log.deleted"),
        ("rename", errno.ENOSPC, "02.log.deleted"),
        ("sync folder", errno.EMFILE, ""),
    ],
)
def test_a_removal_that_ends_early_leaves_no_gap(
    bed: LogBed, files: FaultyVfs, log: Log, operation: str, code: int, path: str
) -> None:
    """After a later removal, the files of the first one would come back before a gap, which hides the tier."""
    log.maintenance.raise_log_start(4)
    files.rule = failing(operation, code, path=path, times=1000)
    with pytest.raises(OutOfResourcesError):
        log.maintenance.evict(4)
    files.rule = None
    for change in (lambda: log.maintenance.evict(6), lambda: log.append(records(1, start=COUNT))):
        with pytest.raises(ClosedError, match="open it again"):
            change()
    assert offsets_in(log) == list(range(4, COUNT))
    bed.crash()
    offsets = offsets_in(bed.open(clean=False))
    assert offsets == list(range(offsets[0], COUNT))
    assert offsets[0] <= 4


def test_a_power_loss_during_a_removal_restores_no_record_without_its_tombstone(tmp_path: Path, bed: LogBed) -> None:
    """The log start is not durable yet, so the next opening shows each segment that the power loss restores."""
    bed.folder.mkdir(parents=True)
    bed.topic = TopicConfig(cleanup_policy=("compact", "delete"))
    crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic)

    def check(log: Log) -> None:
        offsets = [record.offset for record in log.records()]
        assert offsets == list(range(3 - len(offsets), 3))

    disk = bed.files_port = PowerLossVfs(bed.folder)
    log = bed.open()
    for key, value in ((b"k", b"v"), (b"k", None), (b"a", b"v")):
        log.append([Record(key=key, value=value)], durability="durable")
        log.roll()
    log.maintenance.raise_log_start(2)
    with power_losses(disk, crashed_bed, check, samples=10):
        assert log.maintenance.evict(2) == 2


def test_a_folder_that_cannot_be_listed_loses_no_segment(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        raise SystemLimitError("too many open files", "folder")

    log.maintenance.raise_log_start(4)
    with monkeypatch.context() as patch:
        patch.setattr("stratalog.log.change.delete.file_names", refuse)
        with pytest.raises(SystemLimitError):
            log.maintenance.evict(4)
    assert next(segment.base_offset for segment in log.segments()) == 0
    assert log.maintenance.evict(4) == 2
    log.append(records(1, start=COUNT))


# --- while a reader is open --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", range(COUNT))
@pytest.mark.parametrize("end", [2, 6, 10, COUNT])
@pytest.mark.long
def test_a_reader_continues_with_what_is_left(log: Log, read: int, end: int) -> None:
    """The reader returns no record twice, and skips segments that were deleted before it reached them."""
    iterator = log.records()
    offsets = [next(iterator).offset for _ in range(read)]
    log.maintenance.raise_log_start(end)
    log.maintenance.evict(end)
    offsets += [record.offset for record in iterator]
    assert offsets == sorted(set(offsets))
    assert set(offsets) >= set(range(end, COUNT))
    assert set(range(read)) <= set(offsets)


def test_a_fetched_slice_outlives_its_segment(bed: LogBed, log: Log) -> None:
    with log.fetch(1) as fetched:
        before = fetched.read()
        log.maintenance.raise_log_start(COUNT)
        log.maintenance.evict(COUNT)
        bed.clock.advance_ms(10_000)
        log.maintenance.delete_expired()
        assert fetched.read() == before != b""
    with pytest.raises(OffsetOutOfRangeError):
        log.fetch(1)


def test_a_read_of_deleted_segments_continues_with_a_new_view(log: Log) -> None:
    old = log.view()
    log.maintenance.raise_log_start(6)
    log.maintenance.evict(6)
    assert old.offsets.log_start == 0
    assert old.segments[0].base_offset == 0
    assert next(iter(log.records())).offset == 6
    with log.fetch(6) as fetched:
        assert fetched.next_offset == 8
