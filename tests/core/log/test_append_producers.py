"""Idempotent producers and coordinators: several batches in one append, fencing, and state after a failed append."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.testing.faults import FaultyVfs

PRODUCER = 7
LAST_SEQUENCE = (1 << 31) - 1


def batches(bed: LogBed, *specs: tuple[int, int, int, int]) -> bytes:
    """Return concatenated batches; each is given as producer id, epoch, base sequence and number of records."""
    return b"".join(bed.batch(0, records(count), producer=(pid, epoch, first)) for pid, epoch, first, count in specs)


def in_transaction(bed: LogBed, sequence: int, *, producer: int = PRODUCER, epoch: int = 0) -> bytes:
    return bed.batch(0, records(1), producer=(producer, epoch, sequence), transactional=True)


def aborted_in(log: Log) -> list[tuple[int, int]]:
    with log.fetch(0, max_bytes=1 << 20, isolation="read_committed") as fetched:
        return [(transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted_transactions]


# --- several batches in one append -------------------------------------------------------------------------------


def test_batches_of_one_append_follow_one_another(bed: LogBed) -> None:
    log = bed.open()
    result = log.append_as_leader(batches(bed, (7, 0, 0, 2), (8, 0, 5, 1), (7, 0, 2, 1), (-1, -1, -1, 3)))
    assert (result.base_offset, result.last_offset, result.duplicate) == (0, 6, False)
    log.append_as_leader(batches(bed, (7, 0, 3, 1), (8, 0, 6, 1)))
    assert log.offsets().log_end == 9


def test_a_producer_without_an_epoch_is_refused(bed: LogBed) -> None:
    log = bed.open()
    with pytest.raises(InvalidProducerEpochError, match="sent the epoch -1"):
        log.append_as_leader(batches(bed, (7, -1, 0, 1)))
    assert log.offsets().log_end == 0


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([(7, 0, 2, 1), (7, 0, 4, 1)], OutOfOrderSequenceError),
        ([(9, 0, 4, 1), (9, 0, 6, 1)], OutOfOrderSequenceError),
        ([(7, 1, 0, 1), (7, 0, 2, 1)], InvalidProducerEpochError),
        ([(7, 0, 2, 1), (7, 1, 3, 1)], OutOfOrderSequenceError),
        ([(7, 0, 2, 1), (7, 0, 0, 2)], OutOfOrderSequenceError),
    ],
    ids=["gap", "gap of an unknown one", "older epoch", "new epoch not at 0", "retry behind news"],
)
def test_one_bad_batch_refuses_all_and_nothing_is_remembered(
    bed: LogBed, given: list[tuple[int, int, int, int]], error: type[StorageError]
) -> None:
    log = bed.open()
    log.append_as_leader(batches(bed, (7, 0, 0, 2)))
    before = bed.path(0).stat().st_size
    with pytest.raises(error):
        log.append_as_leader(batches(bed, (-1, -1, -1, 1), *given))
    assert bed.path(0).stat().st_size == before
    assert log.append_as_leader(batches(bed, (7, 0, 2, 1))).base_offset == 2
    assert log.append_as_leader(batches(bed, (9, 0, 77, 1))).base_offset == 3


def test_a_retry_of_several_batches_is_answered_as_one(bed: LogBed) -> None:
    log = bed.open()
    sent = batches(bed, (7, 0, 0, 2), (8, 0, 0, 3))
    log.append(records(1))
    first = log.append_as_leader(sent)
    log.append(records(1))
    second = log.append_as_leader(sent)
    assert (second.base_offset, second.last_offset) == (first.base_offset, first.last_offset) == (1, 5)
    assert second.duplicate
    assert log.offsets().log_end == 7


def test_more_batches_of_a_producer_than_are_remembered_are_refused(bed: LogBed) -> None:
    """The log remembers five batches of each producer. It could not recognize a retry of six batches."""
    log = bed.open()
    with pytest.raises(InvalidRecordError, match="5"):
        log.append_as_leader(batches(bed, *((7, 0, n, 1) for n in range(6))))
    log.append_as_leader(batches(bed, *((pid, 0, n, 1) for n in range(5) for pid in (7, 8))))


def test_a_retry_with_plain_records_beside_is_no_retry(bed: LogBed) -> None:
    """If this append counted as a retry, its records without a producer would be lost."""
    log = bed.open()
    log.append_as_leader(batches(bed, (7, 0, 0, 2)))
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(batches(bed, (7, 0, 0, 2), (-1, -1, -1, 1)))
    assert log.offsets().log_end == 2


def test_a_transaction_opened_in_an_append_counts_for_its_next_batch(bed: LogBed) -> None:
    log = bed.open()
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(in_transaction(bed, 0) + batches(bed, (PRODUCER, 0, 1, 1)))
    assert log.open_transactions() == []
    assert log.offsets().last_stable == log.offsets().log_end == 0


# --- sequences across rolls, openings and recovery ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["roll", "reopen", "recover", "recover without snapshots"])
def test_retries_and_gaps_are_distinguished_whatever_happened_between(bed: LogBed, how: str) -> None:
    """Sequences wrap around to 0. A snapshot remembers one batch of a producer, a scan of the log all five."""
    log = bed.open()
    firsts = [LAST_SEQUENCE - 3, LAST_SEQUENCE - 1, 0, 2, 4, 6]
    for first in firsts:
        log.append_as_leader(batches(bed, (7, 3, first, 2)))
    if how == "roll":
        log.roll()
    elif how == "reopen":
        log = bed.open()
    else:
        bed.crash()
        if how.endswith("snapshots"):
            for path in bed.folder.glob("*.snapshot"):
                path.unlink()
        log = bed.open(clean=False)
    known_firsts = firsts[1:] if how != "reopen" else firsts[-1:]
    for first in known_firsts:
        result = log.append_as_leader(batches(bed, (7, 3, first, 2)))
        assert (result.duplicate, result.base_offset) == (True, 2 * firsts.index(first))
    for sequence in (firsts[0], 9, 7):
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(batches(bed, (7, 3, sequence, 2)))
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(batches(bed, (7, 2, 8, 2)))
    assert log.append_as_leader(batches(bed, (7, 3, 8, 2))).base_offset == 12


def test_an_expired_producer_is_dropped_unless_it_has_an_open_transaction(bed: LogBed) -> None:
    """The timestamps of the records count, as in Kafka, even if they are ahead of the clock or decrease."""
    log = bed.open()
    now = bed.clock.now_ms()
    for ahead_ms in (10_000, 0):
        stamped = [Record(timestamp_ms=now + ahead_ms)]
        log.append_as_leader(bed.batch(0, stamped, producer=(7, 4, 1 if not ahead_ms else 0)))
        log.append_as_leader(bed.batch(0, stamped, producer=(8, 0, 1 if not ahead_ms else 0), transactional=True))
        assert log.maintenance.forget_producers(1) == 0
    bed.clock.advance_ms(999)
    assert log.maintenance.forget_producers(1000) == 0
    bed.clock.advance_ms(1)
    assert log.maintenance.forget_producers(1000) == 1
    assert [transaction.producer_id for transaction in log.open_transactions()] == [8]
    assert log.append_as_leader(batches(bed, (7, 2, 40, 1))).base_offset == 4
    log.end_transaction(8, 0, commit=True, coordinator_epoch=0)
    bed.clock.advance_ms(10**12)
    assert log.maintenance.forget_producers(1000) == 2
    assert not log.maintenance.has_producers


# --- coordinators ------------------------------------------------------------------------------------------------


def test_an_older_coordinator_is_fenced_producer_by_producer(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0))
    log.append_as_leader(in_transaction(bed, 0, producer=8))
    log.end_transaction(PRODUCER, 0, commit=True, coordinator_epoch=5)
    size = bed.path(0).stat().st_size
    with pytest.raises(TransactionCoordinatorFencedError, match="5"):
        log.end_transaction(PRODUCER, 0, commit=False, coordinator_epoch=4)
    assert bed.path(0).stat().st_size == size
    assert log.healthy
    log.end_transaction(8, 0, commit=False, coordinator_epoch=4)
    log.end_transaction(PRODUCER, 0, commit=True, coordinator_epoch=5)
    log.end_transaction(PRODUCER, 0, commit=True, coordinator_epoch=6)
    assert log.offsets().last_stable == log.offsets().log_end == 6
    log = bed.open()
    with pytest.raises(TransactionCoordinatorFencedError):
        log.end_transaction(PRODUCER, 0, commit=True, coordinator_epoch=5)


def test_a_marker_of_the_next_epoch_ends_a_transaction_and_numbers_begin_again(bed: LogBed) -> None:
    """Since version 2 of transactions, Kafka's coordinator ends each transaction in this way (KIP-890)."""
    log = bed.open()
    for epoch in range(3):
        log.append_as_leader(in_transaction(bed, 0, epoch=epoch))
        log.end_transaction(PRODUCER, epoch + 1, commit=epoch != 1, coordinator_epoch=0)
        with pytest.raises(InvalidProducerEpochError):
            log.append_as_leader(in_transaction(bed, 1, epoch=epoch))
    assert aborted_in(log) == [(PRODUCER, 2)]
    assert log.offsets().last_stable == log.offsets().log_end == 6


def test_aborted_transactions_are_found_over_segments(bed: LogBed) -> None:
    """A transaction over several segments is in the index of the segment with its marker."""
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0))
    log.append_as_leader(in_transaction(bed, 0, producer=8))
    log.roll()
    log.append_as_leader(in_transaction(bed, 1))
    log.roll()
    log.end_transaction(PRODUCER, 0, commit=False, coordinator_epoch=0)
    assert (log.offsets().last_stable, log.offsets().log_end) == (1, 4)
    log.end_transaction(8, 0, commit=False, coordinator_epoch=0)
    assert [bed.path(base, ".txnindex").exists() for base in (0, 2, 3)] == [False, False, True]
    for _ in range(2):
        assert aborted_in(log) == [(PRODUCER, 0), (8, 1)]
        assert list(log.records(isolation="read_committed")) == []
        log = bed.open()


# --- appends that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_append_that_a_full_disk_refused_leaves_no_producer_state(bed: LogBed, *, commit: bool) -> None:
    """Producers, transactions and offsets are unchanged, and a later attempt succeeds."""
    disk = bed.files_port = FaultyVfs()
    bed.topic = TopicConfig(index_interval_bytes=0)
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0))
    before, view = log.open_transactions(), log.offsets()
    disk.room_bytes = 100
    for _ in range(2):
        with pytest.raises(DiskFullError):
            log.append_as_leader(in_transaction(bed, 1) + in_transaction(bed, 0, producer=8))
        disk.room_bytes = 10
        with pytest.raises(DiskFullError):
            log.end_transaction(PRODUCER, 1, commit=commit, coordinator_epoch=3)
        assert (log.open_transactions(), log.offsets()) == (before, view)
    disk.room_bytes = None
    log.append_as_leader(in_transaction(bed, 1) + in_transaction(bed, 0, producer=8))
    log.end_transaction(PRODUCER, 1, commit=commit, coordinator_epoch=0)
    assert log.offsets().last_stable == 2
    assert aborted_in(log) == ([] if commit else [(PRODUCER, 0)])
    assert log.close()


@pytest.mark.parametrize("restart", [None, True, False])
def test_a_transaction_that_began_below_the_log_start_keeps_the_last_stable_offset_there(
    bed: LogBed, *, restart: bool | None
) -> None:
    """DeleteRecords ends no transaction.

    Source: apache/kafka UnifiedLog.maybeIncrementFirstUnstableOffset, ProducerStateManager.onLogStartOffsetIncremented.
    """
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0) + in_transaction(bed, 1) + in_transaction(bed, 0, producer=8))
    log.delete_records(1)
    assert (log.offsets().log_start, log.offsets().last_stable) == (1, 1)
    if restart is not None:
        bed.log_start = 1
        log = bed.open(clean=restart)
    assert (log.offsets().log_start, log.offsets().last_stable) == (1, 1)
    assert list(log.records(1, isolation="read_committed")) == []
    log.end_transaction(PRODUCER, 1, commit=False, coordinator_epoch=0)
    assert log.offsets().last_stable == 2
    log.end_transaction(8, 1, commit=True, coordinator_epoch=0)
    assert log.offsets().last_stable == log.offsets().log_end == 5
    assert [record.offset for record in log.records(1, isolation="read_committed")] == [2]


def test_a_failed_append_after_a_change_of_the_index_size_keeps_the_size_of_the_open_indexes(bed: LogBed) -> None:
    """Otherwise, a later append would write more entries than fit into the open index, and fail."""
    disk = bed.files_port = FaultyVfs()
    bed.topic = TopicConfig(index_interval_bytes=0, segment_index_bytes=48)
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0))
    log.maintenance.configure(replace(bed.topic, segment_index_bytes=480), bed.components)

    def refuse(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(".txnindex"):
            raise OSError(errno.ENOSPC, "no space left on device")

    disk.rule = refuse
    with pytest.raises(DiskFullError):
        log.end_transaction(PRODUCER, 1, commit=False, coordinator_epoch=0)
    disk.rule = None
    for _ in range(20):
        log.append(records(1))
    bases = [segment.base_offset for segment in log.segments()]
    assert len(bases) == 2
    assert bed.path(0, ".index").stat().st_size == 48


def test_an_append_of_many_batches_is_all_or_nothing_wherever_the_disk_is_full(bed: LogBed) -> None:
    bed.topic = TopicConfig(index_interval_bytes=0, segment_bytes=2000)
    disk = bed.files_port = FaultyVfs()
    log = bed.open()
    refusals = 0
    for room in range(0, 6000, 150):
        end, sequence = log.offsets().log_end, log.offsets().log_end
        sent = b"".join(batches(bed, (7, 0, sequence + n, 1)) for n in range(5))
        disk.room_bytes = room
        try:
            log.append_as_leader(sent)
        except DiskFullError:
            refusals += 1
            assert log.offsets().log_end == end
            disk.room_bytes = None
            assert not log.append_as_leader(sent).duplicate
        assert log.offsets().log_end == end + 5
        disk.room_bytes = None
        assert log.append_as_leader(sent).base_offset == end
    assert refusals > 3
    end = log.offsets().log_end
    assert log.close()
    assert [record.offset for record in bed.open().records()] == list(range(end))


def test_a_write_that_fails_leaves_nothing_to_readers(bed: LogBed) -> None:
    disk = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append_as_leader(in_transaction(bed, 0))

    def fail(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.rule = fail
    with pytest.raises(StorageError):
        log.end_transaction(PRODUCER, 0, commit=True, coordinator_epoch=0)
    disk.rule = None
    assert (log.healthy, log.offsets().last_stable, log.offsets().log_end) == (False, 0, 1)
    log.close()
