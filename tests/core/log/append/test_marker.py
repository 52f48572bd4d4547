from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.errors import InvalidProducerEpochError
from stratalog.log.log import Log
from stratalog.model.messages.control import ControlType
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import scan

PRODUCER = 7


def opened(bed: LogBed, *, epoch: int = 3, count: int = 2) -> Log:
    """Return a log with an open transaction of ``count`` records."""
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(count), producer=(PRODUCER, epoch, 0), transactional=True))
    return log


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records(isolation="read_committed")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_a_transaction(bed: LogBed, commit: bool) -> None:  # noqa: FBT001 - a row
    log = opened(bed)
    assert log.offsets().last_stable == 0
    result = log.end_transaction(PRODUCER, 3, commit=commit, coordinator_epoch=9)
    assert (result.base_offset, result.last_offset) == (2, 2)
    assert log.offsets().last_stable == 3
    assert offsets(log) == ([0, 1] if commit else [])
    data = log.fetch(2).read()
    ((batch,),) = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    assert (batch.is_control, batch.is_transactional, batch.base_sequence) == (True, True, -1)
    marker = read_control(data, batch, bed.components)
    assert marker is not None
    assert marker.kind is (ControlType.COMMIT if commit else ControlType.ABORT)
    assert getattr(marker, "coordinator_epoch", None) == 9


def test_a_marker_of_a_newer_epoch_fences_the_producer(bed: LogBed) -> None:
    log = opened(bed)
    log.end_transaction(PRODUCER, 4, commit=False, coordinator_epoch=0)
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(bed.batch(0, records(1), producer=(PRODUCER, 3, 2), transactional=True))
    with pytest.raises(InvalidProducerEpochError):
        log.end_transaction(PRODUCER, 3, commit=True, coordinator_epoch=0)
    assert offsets(log) == []


def test_a_marker_without_a_transaction_is_written_all_the_same(bed: LogBed) -> None:
    log = bed.open()
    log.end_transaction(PRODUCER, 4, commit=False, coordinator_epoch=0)
    assert log.offsets().last_stable == log.offsets().log_end == 1
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(bed.batch(0, records(1), producer=(PRODUCER, 3, 0), transactional=True))


def test_sequences_continue_after_a_marker(bed: LogBed) -> None:
    log = opened(bed)
    log.end_transaction(PRODUCER, 3, commit=True, coordinator_epoch=0)
    log.append_as_leader(bed.batch(0, records(1, start=2), producer=(PRODUCER, 3, 2), transactional=True))
    log.end_transaction(PRODUCER, 3, commit=True, coordinator_epoch=0)
    assert offsets(log) == [0, 1, 3]


@pytest.mark.parametrize("clean", [True, False])
def test_markers_are_replayed(bed: LogBed, clean: bool) -> None:  # noqa: FBT001 - a row
    log = opened(bed)
    log.end_transaction(PRODUCER, 4, commit=False, coordinator_epoch=2)
    if clean:
        log.close()
    log = bed.open(clean=clean)
    assert offsets(log) == []
    assert log.offsets().last_stable == 3
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(bed.batch(0, records(1), producer=(PRODUCER, 3, 2), transactional=True))


def test_open_transactions_are_listed_until_they_end(bed: LogBed) -> None:
    log = opened(bed)
    (transaction,) = log.open_transactions()
    assert (transaction.producer_id, transaction.producer_epoch, transaction.transaction_first_offset) == (
        PRODUCER,
        3,
        0,
    )
    log.end_transaction(PRODUCER, 3, commit=True, coordinator_epoch=0)
    assert log.open_transactions() == []
