from __future__ import annotations

import errno
import itertools
import random
import threading
from pathlib import Path

import pytest

from inside import log_state
from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    ClosedError,
    ConfigError,
    LogDirOfflineError,
    OffsetOutOfRangeError,
    SegmentGoneError,
    StorageError,
)
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEntry
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.faults import FaultyVfs, failing

COUNT = 12


@pytest.fixture
def log(bed: LogBed) -> Log:
    """Return a log with twelve records, one in each batch, and a new leader epoch after each four.

    Its segments begin at 0, 2, 4, 6, 8 and 10.
    """
    bed.topic = TopicConfig(segment_bytes=300, file_delete_delay_ms=1000, index_interval_bytes=0)
    new_log = bed.open()
    for index in range(COUNT):
        new_log.lead(index // 4)
        new_log.append(records(1, start=index, value_bytes=50))
    assert [segment.base_offset for segment in new_log.segments()] == [0, 2, 4, 6, 8, 10]
    return new_log


@pytest.mark.parametrize("target", range(COUNT))
@pytest.mark.long
def test_a_truncated_log_equals_one_that_never_had_the_rest(bed: LogBed, log: Log, target: int) -> None:
    log.flush()
    assert log.truncate_to(target)
    assert offsets_in(log) == list(range(target))
    offsets = log.offsets()
    assert (offsets.log_end, offsets.high_watermark, offsets.last_stable, offsets.recovery_point) == (target,) * 4
    assert log.segments()[-1].base_offset == target // 2 * 2
    assert log.view().epochs.entries == tuple(EpochEntry(epoch, epoch * 4) for epoch in range(3) if epoch * 4 < target)
    log.append(records(3, start=target))
    expected = [*range(target), target, target + 1, target + 2]
    assert offsets_in(log) == expected
    assert log.offset_for_timestamp(records(1, start=target)[0].timestamp_ms) == target
    bed.crash()
    assert offsets_in(bed.open(clean=False)) == expected
    assert offsets_in(bed.open()) == expected
    log_files = [name for name in bed.names() if name.endswith(".log")]
    assert log_files == [f"{segment.base_offset:020}.log" for segment in bed.open().segments()]


def test_a_truncation_at_or_above_the_end_removes_epochs_and_no_record(log: Log) -> None:
    log.lead(9)
    assert log.view().epochs.latest == 9
    assert not log.truncate_to(COUNT)
    assert log.view().epochs.latest == 2
    assert not log.truncate_to(COUNT + 5)
    assert offsets_in(log) == list(range(COUNT))


def test_a_batch_that_contains_the_offset_is_removed_as_a_whole(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    log.append(records(5, start=3))
    assert log.truncate_to(5)
    assert (log.offsets().log_end, offsets_in(log)) == (5, [0, 1, 2])
    assert log.append(records(1, start=5)).base_offset == 5
    assert offsets_in(log) == [0, 1, 2, 5]


@pytest.mark.parametrize("target", [1, 7, 14, 20])
@pytest.mark.parametrize("clean", [True, False])
def test_where_a_log_ends_that_was_cut_inside_a_batch_or_a_gap_is_in_its_files(
    bed: LogBed, target: int, *, clean: bool
) -> None:
    """The log has batches at [0, 5), [5, 10) and [30, 35). The last one is in a segment of its own."""
    bed.topic = TopicConfig(segment_bytes=300, index_interval_bytes=0)
    log = bed.open()
    log.follow(0)
    for base in (0, 5, 30):
        log.append_as_follower(bed.batch(base, records(5, start=base)), 35, 0)
    assert log.truncate_to(target)
    before = log.offsets()
    assert (before.log_end, before.high_watermark) == (target, target)
    expected = [offset for base in (0, 5) for offset in range(base, base + 5) if base + 5 <= target]
    if clean:
        bed.close()
    else:
        bed.crash()
    log = bed.open(clean=clean, high_watermark=target)
    assert log.offsets()[:2] == before[:2]
    assert log.offsets().log_end == target
    assert offsets_in(log) == expected
    assert log.append(records(1, start=target)).base_offset == target
    assert offsets_in(log) == [*expected, target]
    bed.close()
    assert offsets_in(bed.open_reader()) == [*expected, target]


@pytest.mark.parametrize("target", range(1, COUNT))
@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.long
def test_indexes_are_closed_as_if_the_rest_had_never_been(
    tmp_path: Path, installed: Registry, target: int, *, rolled: bool
) -> None:
    """Kafka uses the last entry of a time index as the largest timestamp of the segment."""
    indexes: list[dict[str, bytes]] = []
    for count in (target, COUNT):
        with LogBed(tmp_path / str(len(indexes)), installed) as bed:
            bed.topic = TopicConfig(segment_bytes=600, index_interval_bytes=100)
            log = bed.open()
            for index in range(count):
                log.append(records(1, start=index, value_bytes=50))
            if count > target:
                log.truncate_to(target)
            if rolled:
                log.roll()
            bed.close()
            indexes.append({name: data for name, data in bed.contents().items() if "index" in name and data})
    assert indexes[1] == indexes[0]


def test_below_the_first_segment_the_log_begins_again(log: Log) -> None:
    log.delete_records(6)
    log.maintenance.evict(6)
    assert log.truncate_to(3)
    offsets = log.offsets()
    assert (offsets.log_start, offsets.log_end, offsets.high_watermark) == (3, 3, 3)
    assert log.append(records(1, start=3)).base_offset == 3


def test_the_log_start_falls_with_the_end(log: Log) -> None:
    log.delete_records(7)
    log.truncate_to(6)
    assert (log.offsets().log_start, log.offsets().log_end) == (6, 6)


def test_a_negative_offset_is_refused(log: Log) -> None:
    with pytest.raises(ConfigError, match="negative"):
        log.truncate_to(-1)
    with pytest.raises(ConfigError, match="negative"):
        log.truncate_fully_and_start_at(-1)
    for log_start in (-1, 6):
        with pytest.raises(ConfigError, match="is not in"):
            log.truncate_fully_and_start_at(5, log_start)
    for offset in (1 << 63, 1 << 64):
        with pytest.raises(ConfigError, match=r"must be from .* to 9223372036854775807"):
            log.truncate_to(offset)
        with pytest.raises(ConfigError, match=r"must be from .* to 9223372036854775807"):
            log.truncate_fully_and_start_at(offset)
    assert offsets_in(log) == list(range(COUNT))


@pytest.mark.parametrize("target", [0, 1, 2, 7, 11, 12, 13, 1 << 40])
def test_a_log_begins_again_anywhere(bed: LogBed, log: Log, target: int) -> None:
    log.truncate_fully_and_start_at(target)
    offsets = log.offsets()
    assert {offsets.log_start, offsets.log_end, offsets.high_watermark, offsets.recovery_point} == {target}
    assert [segment.base_offset for segment in log.segments()] == [target]
    assert log.view().epochs.entries == ()
    assert not [name for name in bed.names() if name.endswith(".snapshot")]
    log.lead(3)
    log.append(records(2, start=target))
    log.roll()
    bed.crash()
    assert offsets_in(bed.open(clean=False)) == [target, target + 1]
    assert offsets_in(bed.open()) == [target, target + 1]
    log = bed.open()
    log.truncate_fully_and_start_at(target)
    assert offsets_in(log) == []


def test_beginning_again_below_an_old_log_start(bed: LogBed, log: Log) -> None:
    """The stored log start must decrease too. Otherwise the next opening would drop everything below it."""
    log.delete_records(10)
    bed.log_start = 10
    log.truncate_fully_and_start_at(4)
    log.append(records(1, start=4), durability="durable")
    bed.crash()
    assert offsets_in(bed.open(clean=False)) == [4]


def test_a_log_that_is_a_gap_begins_again_below_it(bed: LogBed) -> None:
    """The log of a compacted leader has a gap at its start. Its records are truncated, and the segment is empty.

    The log end is then above the segment's base offset.
    """
    log = bed.open()
    log.follow(1)
    log.append_as_follower(bed.batch(3, records(2, start=3), leader_epoch=1), 5, 0)
    log.truncate_to(3)
    assert (log.offsets().log_end, log.segments()[0].base_offset) == (3, 0)
    log.truncate_fully_and_start_at(0)
    assert (log.offsets().log_end, log.offsets().high_watermark) == (0, 0)
    log.append_as_follower(bed.batch(0, records(1), leader_epoch=1), 1, 0)
    assert offsets_in(log) == [0]


def test_files_are_deleted_after_the_delay(bed: LogBed, log: Log) -> None:
    log.truncate_to(3)
    assert len([name for name in bed.names() if name.endswith(".log.deleted")]) == 4
    bed.clock.advance_ms(1001)
    assert log.maintenance.delete_expired() > 0
    assert not [name for name in bed.names() if name.endswith(".deleted")]
    assert offsets_in(log) == [0, 1, 2]


# --- producers and transactions --------------------------------------------------------------------------------------


def test_producers_and_transactions_are_as_they_were_then(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=600)
    log = bed.open()

    def send(sequence: int, *, transactional: bool) -> None:
        batch = bed.batch(0, records(1, value_bytes=20), producer=(9, 0, sequence), transactional=transactional)
        log.append_as_leader(batch)

    states = [log.producers()]
    for sequence in range(10):
        send(2 * sequence, transactional=True)
        states.append(log.producers())
        send(2 * sequence + 1, transactional=True)
        states.append(log.producers())
        log.end_transaction(9, 0, commit=sequence % 3 == 0, coordinator_epoch=1)
        states.append(log.producers())
    assert len(log.segments()) > 3
    aborted = log.fetch(0, 1 << 20, "read_committed").aborted_transactions
    for target in range(29, 0, -1):
        log.truncate_to(target)
        assert log.producers() == states[target]
        if target % 3 == 2:
            send(2 * (target // 3) + 1, transactional=True)
            log.truncate_to(target)
        open_from = target // 3 * 3 if target % 3 else target
        assert log.offsets().last_stable == open_from
        visible = [o for o in range(open_from) if (o // 3) % 3 == 0 and o % 3 != 2]
        assert [record.offset for record in log.records(isolation="read_committed")] == visible
    assert aborted
    bed.crash()
    assert bed.open(clean=False).producers() == states[1]


def test_producers_that_were_forgotten_do_not_come_back_from_a_snapshot(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0)))
    log.append_as_leader(bed.batch(0, records(1), producer=(8, 0, 0), transactional=True))
    log.roll()
    log.append_as_leader(bed.batch(0, records(1), producer=(9, 0, 0)))
    bed.clock.advance_ms(records(2)[1].timestamp_ms + 86_400_000 - bed.clock.now_ms())
    assert log.maintenance.forget_producers(86_400_000) == 2
    assert [producer.producer_id for producer in log.producers()] == [8]
    log.truncate_to(2)
    assert [producer.producer_id for producer in log.producers()] == [8]
    log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 5)))


def test_aborted_transactions_that_are_cut_off_are_forgotten(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(2), producer=(9, 0, 0), transactional=True))
    log.end_transaction(9, 0, commit=False, coordinator_epoch=1)
    assert [transaction.last_offset for transaction in log.fetch(0, 1, "read_committed").aborted_transactions] == [2]
    log.truncate_to(2)
    assert not [name for name in bed.names() if name.endswith(".txnindex")]
    log.end_transaction(9, 0, commit=True, coordinator_epoch=1)
    with log.fetch(0, 1, "read_committed") as fetched:
        assert fetched.aborted_transactions == ()
    assert offsets_in(log) == [0, 1]
    bed.crash()
    log = bed.open(clean=False)
    assert [record.offset for record in log.records(isolation="read_committed")] == [0, 1]
    assert log.offsets().last_stable == 3


# --- readers ---------------------------------------------------------------------------------------------------------


def test_slices_that_were_taken_stay_as_they_are(log: Log) -> None:
    with log.fetch(5) as closed, log.fetch(11) as active:
        before = closed.read(), active.read()
        log.truncate_to(4)
        log.append([Record(value=b"z" * 200)])
        assert (closed.read(), active.read()) == before


def test_a_read_in_progress_continues_in_the_remaining_records(log: Log) -> None:
    reading = iter(log.records())
    assert [record.offset for record in itertools.islice(reading, 3)] == [0, 1, 2]
    log.truncate_to(3)
    log.append([Record(value=b"new")])
    try:
        later_values = [record.value for record in reading]
    except StorageError:
        later_values = []
    # records that were read before the truncation are still returned
    assert later_values in ([], [b"new"], [b"v3" + b"." * 50])


def test_a_read_of_truncated_offsets_is_refused(log: Log) -> None:
    log.truncate_to(4)
    with pytest.raises(OffsetOutOfRangeError):
        log.fetch(5)
    assert log.fetch(4).size_bytes == 0


def test_a_truncation_between_look_up_and_read_is_not_reported_as_damage(bed: LogBed) -> None:
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    for offset in range(3):
        log.append(records(1, start=offset, value_bytes=50_000))
    reads = list[str]()

    def cut(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log"):
            reads.append(path)
            if len(reads) == read_number:
                log.truncate_to(1)

    for read_number in range(1, 20):
        reads.clear()
        files.rule = cut
        try:
            with log.fetch(1) as fetched:
                assert fetched.size_bytes in (0, log.segments()[0].size_bytes // 2)
        finally:
            files.rule = None
        if len(reads) < read_number:
            break
        log.truncate_to(1)
        log.append(records(1, start=1, value_bytes=50_000))
    assert read_number > 1


@pytest.mark.long
def test_readers_beside_truncations_get_records_or_an_error(bed: LogBed) -> None:
    """The value of each record is its offset. A reader may only return records that had this offset at some time."""
    bed.topic = TopicConfig(segment_bytes=2000, index_interval_bytes=100)
    log = bed.open()
    chance, stop = random.Random(7), threading.Event()  # noqa: S311 - the same cuts in every run
    failures = list[StorageError | int]()

    def read() -> None:
        while not stop.is_set() and not failures:
            try:
                failures.extend(record.offset for record in log.records() if int(record.value or b"") != record.offset)
                log.fetch(log.offsets().log_end // 2).release()
            except (OffsetOutOfRangeError, SegmentGoneError):
                continue
            except StorageError as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(40):
            end = log.offsets().log_end
            for offset in range(end, end + 12):
                log.append([Record(value=b"%d" % offset + b" " * chance.randrange(150))])
            log.truncate_to(chance.randrange(max(end - 10, 0), end + 12))
            if chance.random() < 0.1:
                log.truncate_fully_and_start_at(chance.randrange(end + 12))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []


# --- failures of the disk --------------------------------------------------------------------------------------------


def test_epochs_that_cannot_be_stored_take_the_log_out_of_service(bed: LogBed) -> None:
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    log.lead(4)
    files.rule = failing("sync", errno.EIO, path="leader-epoch-checkpoint.tmp")
    with pytest.raises(LogDirOfflineError):
        log.truncate_to(3)
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=3))


def test_truncated_epochs_that_a_full_disk_kept_do_not_return_after_an_append(bed: LogBed) -> None:
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.follow(3)
    log.append_as_follower(bed.batch(0, records(5), leader_epoch=1), 0, 0)
    log.append_as_follower(bed.batch(5, records(5, start=5), leader_epoch=2), 0, 0)
    files.rule = failing("create", errno.ENOSPC, path="leader-epoch-checkpoint.tmp")
    log.truncate_to(5)
    log.append_as_follower(bed.batch(5, records(5, start=5), leader_epoch=1), 0, 0)
    assert bed.open().view().epochs.entries == (EpochEntry(1, 0),)


@pytest.mark.parametrize("operation", ["rename", "truncate", "sync", "sync folder", "remove"])
@pytest.mark.parametrize("fully", [False, True])
@pytest.mark.long
def test_a_disk_that_fails_meanwhile_leaves_a_prefix(bed: LogBed, log: Log, operation: str, fully: bool) -> None:  # noqa: FBT001 - a parameter of the test
    bed.close()
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    files.rule = failing(operation, errno.EIO)
    with pytest.raises(LogDirOfflineError):
        log.truncate_fully_and_start_at(20) if fully else log.truncate_to(3)
    files.rule = None
    with pytest.raises(LogDirOfflineError):
        log.append(records(1))
    bed.crash()
    offsets = offsets_in(bed.open(clean=False))
    assert offsets == list(range(len(offsets)))
    assert fully or len(offsets) >= 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LogDirOfflineError("no", "somewhere")])
def test_bounds_that_are_not_stored_take_the_log_out_of_service(log: Log, error: BaseException) -> None:
    """The next opening would use the old bounds, and could drop records that were appended since."""

    def interrupted() -> None:
        raise error

    log_state(log).store_bounds = interrupted
    with pytest.raises(type(error)):
        log.truncate_to(3)
    assert not log.healthy
    with pytest.raises((ClosedError, LogDirOfflineError)):
        log.append(records(1))
    assert offsets_in(log) == [0, 1, 2]
