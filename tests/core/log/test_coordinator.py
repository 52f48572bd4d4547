"""Appends of a coordinator: markers with numbers that fit Kafka's fields, and batches with ``origin="coordinator"``."""

from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.errors import (
    ConfigError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    TransactionCoordinatorFencedError,
)
from stratalog.model.messages.control import ControlType, control_key
from stratalog.model.records import Record

PRODUCER = 7
INT_MAX = (1 << 31) - 1


@pytest.mark.parametrize(
    ("producer_id", "producer_epoch", "coordinator_epoch"),
    [
        (-1, 0, 0),
        (1 << 63, 0, 0),
        (PRODUCER, -1, 0),
        (PRODUCER, 1 << 15, 0),
        (PRODUCER, 0, -1),
        (PRODUCER, 0, INT_MAX + 1),
    ],
)
def test_a_marker_that_fits_no_field_is_refused_and_nothing_is_written(
    bed: LogBed, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    log = bed.open()
    with pytest.raises(ConfigError, match=r"of an end marker is not in|of end_transaction\(\) must be from"):
        log.end_transaction(producer_id, producer_epoch, commit=True, coordinator_epoch=coordinator_epoch)
    assert log.offsets().log_end == 0


def test_the_largest_numbers_fit(bed: LogBed) -> None:
    log = bed.open()
    log.end_transaction((1 << 63) - 1, (1 << 15) - 1, commit=True, coordinator_epoch=INT_MAX)
    log.close()
    with pytest.raises(TransactionCoordinatorFencedError):
        bed.open(clean=False).end_transaction((1 << 63) - 1, (1 << 15) - 1, commit=True, coordinator_epoch=0)


def test_a_coordinators_markers_end_transactions_and_a_clients_are_refused(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(2), producer=(PRODUCER, 0, 0), transactional=True))
    marker = bed.marker(0, PRODUCER, ControlType.ABORT, coordinator_epoch=4)
    with pytest.raises(InvalidRecordError, match="control"):
        log.append_as_leader(marker)
    assert log.append_as_leader(marker, origin="coordinator").base_offset == 2
    assert log.offsets().last_stable == 3
    with log.fetch(0, isolation="read_committed") as fetched:
        assert [(transaction.producer_id, transaction.last_offset) for transaction in fetched.aborted_transactions] == [
            (PRODUCER, 2)
        ]
    with pytest.raises(TransactionCoordinatorFencedError):
        log.append_as_leader(
            bed.marker(0, PRODUCER, ControlType.COMMIT, coordinator_epoch=3), "durable", origin="coordinator"
        )


def test_a_coordinators_batches_have_no_sequences_or_any(bed: LogBed) -> None:
    """A group coordinator writes offsets that are part of a transaction in this way."""
    log = bed.open()
    unnumbered = bed.batch(0, records(1), producer=(PRODUCER, 2, -1), transactional=True)
    with pytest.raises(InvalidRecordError, match="no sequence"):
        log.append_as_leader(unnumbered)
    log.append_as_leader(unnumbered, origin="coordinator")
    log.append_as_leader(unnumbered, origin="coordinator")
    numbered = bed.batch(0, records(1), producer=(PRODUCER, 2, 40), transactional=True)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(numbered)
    results = [log.append_as_leader(numbered, origin="coordinator") for _ in range(2)]
    assert [(result.base_offset, result.duplicate) for result in results] == [(2, False), (3, False)]
    assert (log.offsets().last_stable, log.offsets().log_end) == (0, 4)


def test_the_rules_that_are_not_about_sequences_hold_for_coordinators(bed: LogBed) -> None:
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), producer=(PRODUCER, 2, 0), transactional=True))
    for batch, error in (
        (bed.batch(0, records(1), producer=(PRODUCER, 1, -1), transactional=True), InvalidProducerEpochError),
        (bed.batch(0, records(1), producer=(PRODUCER, 2, -1)), InvalidTxnStateError),
        (bed.batch(0, records(1, value_bytes=1 << 21)), RecordTooLargeError),
    ):
        with pytest.raises(error):
            log.append_as_leader(batch, origin="coordinator")
    assert log.offsets().log_end == 1


def test_a_producers_control_batch_holds_an_end_marker_or_nothing(bed: LogBed) -> None:
    """Another control batch would end no transaction, although its coordinator counts the transaction as ended."""
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), producer=(PRODUCER, 0, 0), transactional=True))
    for key in (None, b"", b"zz", control_key(ControlType.LEADER_CHANGE)):
        record = Record(key=key, value=b"\0" * 6, timestamp_ms=1_700_000_000_000)
        batch = bed.batch(0, [record], producer=(PRODUCER, 0, -1), transactional=True, control=True)
        with pytest.raises(InvalidRecordError, match="end marker"):
            log.append_as_leader(batch, origin="coordinator")
    assert (log.offsets().last_stable, log.offsets().log_end) == (0, 1)


def test_there_is_no_other_origin(bed: LogBed) -> None:
    with pytest.raises(ConfigError, match="client, coordinator"):
        bed.open().append_as_leader(bed.batch(0, records(1)), origin="replication")
