from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from inside import log_state
from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import (
    ClosedError,
    CorruptBatchError,
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogDirOfflineError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
)
from stratalog.log.log import Log
from stratalog.model.events import SegmentRolled
from stratalog.model.offsets import EpochEntry
from stratalog.model.records import Record
from stratalog.spi.indexes import IndexRole
from stratalog.testing.faults import FaultyVfs


def values(log: Log, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records(start, end)]


def expected(count: int, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(start + index, record.value) for index, record in enumerate(records(count, start=start))]


# --- offsets -----------------------------------------------------------------------------------------------------


def test_offsets_follow_one_another(bed: LogBed) -> None:
    log = bed.open()
    first, second = log.append(records(3)), log.append(records(2, start=3))
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset, second.duplicate) == (3, 4, False)
    assert second.append_time_ms == bed.clock.now_ms()
    assert values(log) == expected(5)
    bounds = log.offsets()
    assert (bounds.log_start, bounds.local_log_start, bounds.last_stable) == (0, 0, 5)
    assert (bounds.high_watermark, bounds.log_end, bounds.recovery_point) == (5, 5, 0)


def test_every_field_is_returned_unchanged(bed: LogBed) -> None:
    log = bed.open()
    originals = [
        Record(timestamp_ms=5, key=b"k", value=b"v", headers=(("h", b"1"), ("h", None), ("é", b""))),
        Record(timestamp_ms=6, key=None, value=None),
        Record(timestamp_ms=7, key=b"", value=b""),
    ]
    log.append(originals)
    read = list(log.records())
    assert [record._replace(offset=-1, leader_epoch=-1, partition=-1) for record in read] == originals
    assert {(record.partition, record.leader_epoch) for record in read} == {(0, 0)}


def test_an_iterator_ends_where_the_log_ended_when_it_began(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    iterator = log.records()
    assert next(iterator).offset == 0
    log.append(records(3, start=3))
    assert [record.offset for record in iterator] == [1, 2]
    assert [record.offset for record in log.records(2, 5)] == [2, 3, 4]


# --- rolling -----------------------------------------------------------------------------------------------------


def test_segments_roll_by_size(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=1000)
    log = bed.open()
    for index in range(40):
        log.append(records(1, start=index, value_bytes=100))
    segments = log.segments()
    assert len(segments) > 4
    assert all(segment.size_bytes <= 1000 for segment in segments)
    assert [segment.base_offset for segment in segments][1:] == [segment.end_offset for segment in segments][:-1]
    assert [segment.is_active for segment in segments] == [False] * (len(segments) - 1) + [True]
    assert values(log) == [(i, r.value) for i, r in enumerate(records(40, value_bytes=100))]
    rolled = [event.base_offset for event in bed.events if isinstance(event, SegmentRolled)]
    assert rolled == [segment.base_offset for segment in segments[1:]]


def test_an_append_is_stored_in_one_segment(bed: LogBed) -> None:
    """Records that do not fit into the active segment begin the next segment. An append is never split."""
    bed.topic = TopicConfig(segment_bytes=1000, max_message_bytes=300)
    log = bed.open()
    log.append(records(2, value_bytes=100))
    size = log.segments()[0].size_bytes
    result = log.append(records(6, start=2, value_bytes=100))
    assert (result.base_offset, result.last_offset) == (2, 7)
    assert [(segment.base_offset, segment.size_bytes > 0) for segment in log.segments()] == [(0, True), (2, True)]
    assert log.segments()[0].size_bytes == size
    assert values(log) == [(i, r.value) for i, r in enumerate(records(8, value_bytes=100))]


def test_an_append_above_the_segments_size_is_refused_whole(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=1000, max_message_bytes=300)
    log = bed.open()
    log.append(records(1))
    with pytest.raises(RecordBatchTooLargeError, match=r"above segment\.bytes=1000: append fewer records"):
        log.append(records(100, start=1, value_bytes=100))
    assert (values(log), len(log.segments()), log.healthy) == (expected(1), 1, True)


@pytest.mark.parametrize(("short_bytes", "bases"), [(0, [0, 4]), (1, [0, 3, 6])])
def test_a_segment_is_full_to_the_byte_and_no_further(bed: LogBed, short_bytes: int, bases: list[int]) -> None:
    """From the third append on, the log compares only the size. The result must be the same."""
    log = bed.open()
    log.append(records(1))
    size_bytes = log.segments()[0].size_bytes
    bed.topic = TopicConfig(segment_bytes=4 * size_bytes - short_bytes)
    log.maintenance.configure(bed.topic, log.components, None)
    log.truncate_to(0)
    for _ in range(7):
        log.append(records(1))
    assert [segment.base_offset for segment in log.segments()] == bases
    assert all(segment.size_bytes <= bed.topic.segment_bytes for segment in log.segments())


def test_segments_roll_by_record_time(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_ms=1000)
    log = bed.open()
    for stamp in (10_000, 10_500, 11_000, 11_001, 5000, 12_002):
        log.append([Record(timestamp_ms=stamp, value=b"x")])
    assert [segment.base_offset for segment in log.segments()] == [0, 3, 5]


def test_segments_roll_when_an_index_is_full(bed: LogBed) -> None:
    bed.topic = TopicConfig(index_interval_bytes=0, segment_index_bytes=40)
    log = bed.open()
    for index in range(12):
        log.append(records(1, start=index))
    bases = [segment.base_offset for segment in log.segments()]
    assert len(bases) > 3
    assert values(log) == expected(12)
    for base in bases:
        assert bed.path(base, ".index").stat().st_size <= 40
        assert bed.path(base, ".timeindex").stat().st_size <= 40


def test_an_empty_segment_is_not_rolled(bed: LogBed) -> None:
    log = bed.open()
    assert (log.roll(), log.roll()) == (0, 0)
    log.append(records(2))
    assert (log.roll(), log.roll()) == (2, 2)
    assert [segment.base_offset for segment in log.segments()] == [0, 2]


def test_a_roll_leaves_what_kafka_leaves(bed: LogBed) -> None:
    bed.topic = TopicConfig(index_interval_bytes=0, preallocate=True, segment_bytes=5000)
    log = bed.open()
    for index in range(3):
        log.append(records(1, start=index))
    size = log.segments()[0].size_bytes
    log.roll()
    assert bed.path(0).stat().st_size == size
    assert bed.path(0, ".index").stat().st_size == 2 * 8
    assert bed.path(0, ".timeindex").stat().st_size == 2 * 12
    assert not bed.path(0, ".txnindex").exists()
    assert bed.path(3, ".snapshot").read_bytes() == bytes.fromhex("000148674bc700000000")
    assert bed.path(3).stat().st_size == 5000
    assert (bed.folder / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"


def test_space_that_was_taken_in_advance_is_given_back_at_the_roll(bed: LogBed) -> None:
    """The zeros would end every read of the segment, and recovery does not examine closed segments."""
    bed.topic = TopicConfig(preallocate=True, segment_bytes=5000)
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append(records(2))
    log.roll()  # the first segment of a log is not preallocated
    log.append(records(2, start=2), durability="durable")
    file = bed.path(2)
    assert file.stat().st_size == 5000
    files.done.clear()
    log.roll()
    assert file.stat().st_size == log.segments()[1].size_bytes
    assert [operation for operation, name in files.names("truncate", "sync") if name == file.name] == [
        "truncate",
        "sync",
    ]
    assert values(log) == expected(4)


def test_a_batch_above_the_segments_size_is_refused(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=300)
    log = bed.open()
    log.append(records(1))
    with pytest.raises(RecordBatchTooLargeError):
        log.append_as_leader(bed.batch(0, records(5, value_bytes=100)))
    assert values(log) == expected(1)


# --- durability --------------------------------------------------------------------------------------------------


def test_the_recovery_point_is_the_end_of_the_synced_records(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(2))
    assert log.offsets().recovery_point == 0
    log.append(records(2), durability="durable")
    assert log.offsets().recovery_point == 4
    log.append(records(1))
    assert (log.flush(), log.offsets().recovery_point) == (5, 5)


def test_so_many_records_are_synced_at_last(bed: LogBed) -> None:
    bed.topic = TopicConfig(flush_messages=3)
    log = bed.open()
    points = []
    for index in range(7):
        log.append(records(1, start=index))
        points.append(log.offsets().recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


class Syncs(PosixVfs):
    """File system that counts syncs, and fails them on request."""

    def __init__(self) -> None:
        self.files, self.folders, self.failing = 0, 0, False

    def sync(self, descriptor: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        self.files += 1
        super().sync(descriptor)

    def sync_folder(self, path: str) -> None:
        self.folders += 1
        super().sync_folder(path)


def test_a_durable_append_syncs_the_folder_of_a_new_segment(bed: LogBed) -> None:
    disk = bed.files_port = Syncs()
    log = bed.open()
    log.append(records(1), durability="durable")
    before = disk.folders
    log.append(records(1), durability="durable")
    assert disk.folders == before
    log.roll()
    before = disk.folders
    log.append(records(1), durability="durable")
    assert disk.folders == before + 1


def test_a_failed_sync_takes_the_log_out_of_service(bed: LogBed) -> None:
    disk = bed.files_port = Syncs()
    log = bed.open()
    log.append(records(2))
    disk.failing = True
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=2), durability="durable")
    disk.failing = False
    for attempt in (lambda: log.append(records(1)), log.flush, log.roll, lambda: log.delete_records(1)):
        with pytest.raises(LogDirOfflineError):
            attempt()
    assert not log.healthy
    assert values(log) == expected(3)
    assert log.close() is False


# --- a full disk -------------------------------------------------------------------------------------------------


class SmallDisk(PosixVfs):
    """File system with room for this number of bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        piece = memoryview(data)[: self.room]
        self.room -= len(piece)
        return super().write(descriptor, position, piece) if piece else 0

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        if size_bytes > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(descriptor, size_bytes)


def append_for_ever(log: Log) -> None:
    while True:
        end = log.offsets().log_end
        log.append(records(1, start=end, value_bytes=50))
        assert log.offsets().log_end == end + 1


@pytest.mark.parametrize("room", [0, 1, 30, 100, 200, 500, 1000, 2000, 4000, 4500, 5000, 6000, 9000])
def test_a_full_disk_refuses_appends_and_continues_reading(bed: LogBed, room: int) -> None:
    bed.topic = TopicConfig(segment_bytes=1000, index_interval_bytes=0)
    disk = bed.files_port = SmallDisk(1 << 30)
    log = bed.open()
    log.append(records(3))
    disk.room = room
    with pytest.raises(DiskFullError):
        append_for_ever(log)
    log_end = log.offsets().log_end
    assert [record.offset for record in log.records()] == list(range(log_end))
    disk.room = 1 << 30
    result = log.append(records(2, start=log_end))
    assert result.base_offset == log_end
    assert [record.key for record in log.records()] == [record.key for record in records(log_end + 2)]
    assert log.close()
    reopened_log = bed.open()
    assert [record.key for record in reopened_log.records()] == [record.key for record in records(log_end + 2)]
    for segment in reopened_log.view().segments:
        for role in (IndexRole.OFFSET, IndexRole.TIME):
            index_reader = bed.components.indexes[role].reader(segment.index_entries(role), segment.base_offset)
            index_reader.check(segment.end_offset, segment.size_bytes)


def test_a_roll_on_a_full_disk_changes_nothing(bed: LogBed) -> None:
    disk = bed.files_port = SmallDisk(1 << 30)
    bed.topic = TopicConfig(index_interval_bytes=0)
    log = bed.open()
    for index in range(4):
        log.append(records(1, start=index))
    before = bytes(log.view().segments[-1].index_entries(IndexRole.OFFSET))
    disk.room = 5
    with pytest.raises(DiskFullError):
        log.roll()
    assert [segment.base_offset for segment in log.segments()] == [0]
    disk.room = 1 << 30
    log.append(records(1, start=4))
    assert bytes(log.view().segments[-1].index_entries(IndexRole.OFFSET)).startswith(before)
    assert log.roll() == 5
    log.append(records(1, start=5))
    assert values(log) == expected(6)


# --- encoded batches ---------------------------------------------------------------------------------------------


def test_encoded_batches_get_their_offsets(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(2))
    result = log.append_as_leader(bed.batch(0, records(3, start=2)) + bed.batch(0, records(1, start=5), codec="zstd"))
    assert (result.base_offset, result.last_offset) == (2, 5)
    assert values(log) == expected(6)


def test_the_given_bytes_are_not_changed(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(5))
    batch = bytearray(bed.batch(0, records(3), leader_epoch=-1))
    before = bytes(batch)
    log.append_as_leader(batch)
    assert bytes(batch) == before


@pytest.mark.parametrize("data", [b"", b"\0" * 11, b"abc"])
def test_no_whole_batch_is_refused(bed: LogBed, data: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        bed.open().append_as_leader(data)


def test_a_refused_append_writes_nothing(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(1))
    size = bed.path(0).stat().st_size
    damaged_batch = bytearray(bed.batch(0, records(1)))
    damaged_batch[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        log.append_as_leader(bed.batch(0, records(1)) + damaged_batch)
    with pytest.raises(InvalidRecordError):
        log.append([Record(value=b"good"), Record(timestamp_ms=-5)])
    assert bed.path(0).stat().st_size == size
    assert log.healthy
    assert log.append(records(1, start=1)).base_offset == 1


# --- leader epochs -----------------------------------------------------------------------------------------------


def test_batches_carry_the_leader_epoch(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), leader_epoch=77))
    assert [record.leader_epoch for record in log.records()] == [0]
    assert log.view().epochs.entries == (EpochEntry(0, 0),)


# --- idempotent producers ----------------------------------------------------------------------------------------


def test_a_retry_is_answered_and_not_written(bed: LogBed) -> None:
    log = bed.open()
    sent = [bed.batch(0, records(2, start=2 * n), producer=(7, 0, 2 * n)) for n in range(6)]
    for data in sent:
        log.append_as_leader(data)
    for n in range(1, 6):
        result = log.append_as_leader(sent[n])
        assert (result.base_offset, result.last_offset, result.duplicate) == (2 * n, 2 * n + 1, True)
        assert result.append_time_ms == records(12)[2 * n + 1].timestamp_ms
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(sent[0])
    assert values(log) == expected(12)
    assert log.healthy


def test_a_durable_retry_is_synced(bed: LogBed) -> None:
    """The sync of the first attempt may have failed, or the first attempt was not durable."""
    log = bed.open()
    data = bed.batch(0, records(1), producer=(7, 0, 0))
    log.append_as_leader(data)
    assert log.offsets().recovery_point == 0
    assert log.append_as_leader(data, durability="durable").duplicate
    assert log.offsets().recovery_point == 1


def test_sequences_are_checked_after_reopening(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(2), producer=(7, 1, 0)))
    log.append_as_leader(bed.batch(0, records(1), producer=(7, 1, 2)))
    log = bed.open()
    assert log.append_as_leader(bed.batch(0, records(1), producer=(7, 1, 2))).duplicate
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 1, 4)))
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0)))
    assert log.append_as_leader(bed.batch(0, records(1), producer=(7, 2, 0))).last_offset == 3


def test_an_open_transaction_takes_no_plain_batch(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0), transactional=True))
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 1)))
    log.append(records(1))
    bounds = log.offsets()
    assert (bounds.last_stable, bounds.high_watermark) == (0, 2)


# --- closing -----------------------------------------------------------------------------------------------------


def test_a_closed_log_refuses(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(1))
    assert (log.close(), log.close()) == (True, True)
    for attempt in (lambda: log.append(records(1)), log.flush, log.roll, lambda: log.delete_records(1)):
        with pytest.raises(ClosedError):
            attempt()


def test_a_view_is_made_once_and_stays_as_it_was(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    view = log.view()
    assert log.view() is view
    log.append(records(2))
    assert view.offsets.log_end == view.offsets.high_watermark == 3
    assert log.view().offsets.log_end == log.view().offsets.last_stable == 5


@pytest.mark.parametrize("change", ["flush", "roll", "lead", "delete_records"])
def test_the_view_after_an_append_is_that_of_the_whole_state(bed: LogBed, change: str) -> None:
    """An append publishes only the new log end. Other changes are published by the calls that make them."""
    log = bed.open()
    log.append(records(3))
    changes: dict[str, Callable[[], object]] = {
        "flush": log.flush,
        "roll": log.roll,
        "lead": lambda: log.lead(log.leader_epoch + 1),
        "delete_records": lambda: log.delete_records(before=2),
    }
    for next_change in (changes[change], lambda: None):
        next_change()
        log.append(records(4))
        view = log.view()
        log_state(log).publish()
        assert view == log.view()


@pytest.mark.parametrize(("version", "epochs"), [(1, []), (2, [0])])
def test_messages_of_magic_0_and_1_begin_no_leader_epoch(bed: LogBed, version: int, epochs: list[int]) -> None:
    bed.topic = TopicConfig(record_version=version)
    log = bed.open()
    log.append(records(3))
    assert [entry.epoch for entry in log.view().epochs.entries] == epochs
