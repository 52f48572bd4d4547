from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.errors import InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError
from stratalog.model.batches import CONTROL_BIT, TRANSACTIONAL_BIT, RecordBatch
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.producers.snapshot import decode_snapshot, encode_snapshot
from stratalog.producers.state import CompletedTransaction, ProducerState, SeenBatch

LAST_SEQUENCE = (1 << 31) - 1
P1, P2, P3 = 1, 2, 3


def batch(
    offset: int,
    sequence: int = -1,
    count: int = 1,
    *,
    producer: int = P1,
    epoch: int = 0,
    transactional: bool = False,
    control: bool = False,
    stamp: int = 1000,
) -> RecordBatch:
    """Return the header of a batch of ``count`` records at ``offset``."""
    attributes = (TRANSACTIONAL_BIT if transactional or control else 0) | (CONTROL_BIT if control else 0)
    last = offset + count - 1
    return RecordBatch(2, 0, 100, offset, last, stamp, stamp, 0, producer, epoch, sequence, count, attributes, 0)


def data(offset: int, producer: int, sequence: int = 0) -> RecordBatch:
    return batch(offset, sequence, producer=producer, transactional=True)


def marker(
    state: ProducerState, offset: int, producer: int, kind: ControlType, *, epoch: int = 0, coordinator_epoch: int = 0
) -> CompletedTransaction | None:
    header = batch(offset, producer=producer, control=True, epoch=epoch)
    return state.update(header, EndMarker(kind, coordinator_epoch))


def state_of(batches: Sequence[tuple[int, int]], epoch: int = 0) -> ProducerState:
    """Return the state after consecutive batches of one producer; each is given by its first and last sequence."""
    state = ProducerState()
    for first, last in batches:
        count = (last - first) % (LAST_SEQUENCE + 1) + 1
        state.update(batch(state.end_offset, first, count, epoch=epoch))
    return state


def restarted(state: ProducerState) -> ProducerState:
    return ProducerState.restore(decode_snapshot(encode_snapshot(state.entries()), "f"), state.end_offset)


# --- sequences: Kafka's worked example ---------------------------------------------------------------------------

SIX_BATCHES = [(0, 2), (3, 3), (4, 9), (10, 10), (11, 12), (13, 13)]


@pytest.mark.parametrize("first_last", SIX_BATCHES[1:])
def test_a_retry_of_the_last_five_batches_is_answered_with_their_offsets(first_last: tuple[int, int]) -> None:
    first, last = first_last
    duplicate = state_of(SIX_BATCHES).find_duplicate(batch(14, first, last - first + 1))
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset, duplicate.timestamp_ms) == (first, last, 1000)


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 3), (4, 5), (5, 5), (4, 7), (15, 1), (13, 2), (12, 1)],
    ids=["evicted", "shorter", "later start", "longer", "gap", "overlap", "part of one"],
)
def test_other_sequences_are_out_of_order(first: int, count: int) -> None:
    state = state_of(SIX_BATCHES)
    retry = batch(14, first, count)
    assert state.find_duplicate(retry) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(retry)


def test_the_next_sequence_may_follow() -> None:
    state = state_of(SIX_BATCHES)
    state.check(batch(14, 14, 3))
    assert state.find_duplicate(batch(14, 14, 3)) is None


def test_exactly_five_batches_are_remembered() -> None:
    producer = state_of(SIX_BATCHES).producers[P1]
    assert [(remembered.first_sequence, remembered.last_sequence) for remembered in producer.batches] == SIX_BATCHES[1:]


# --- sequences wrap ----------------------------------------------------------------------------------------------


def test_a_batch_across_the_wrap() -> None:
    """Five records from sequence 2147483646 on end at sequence 2. The next batch starts at 3."""
    state = state_of([(LAST_SEQUENCE - 1, 2)])
    remembered = state.producers[P1].batches[-1]
    assert (remembered.first_sequence, remembered.last_sequence, remembered.offset_delta) == (LAST_SEQUENCE - 1, 2, 4)
    state.check(batch(5, 3))
    assert state.find_duplicate(batch(5, LAST_SEQUENCE - 1, 5)) == remembered
    for sequence in (2, 4, 0):
        with pytest.raises(OutOfOrderSequenceError):
            state.check(batch(5, sequence))


def test_zero_follows_the_last_sequence() -> None:
    state = state_of([(0, LAST_SEQUENCE)])
    state.check(batch(state.end_offset, 0))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(state.end_offset, 1))


@pytest.mark.parametrize(
    ("last", "delta", "first"), [(9, 5, 4), (2, 4, LAST_SEQUENCE - 1), (0, 0, 0), (0, 1, LAST_SEQUENCE)]
)
def test_the_first_sequence_of_a_batch(last: int, delta: int, first: int) -> None:
    assert SeenBatch(last, 100, delta, 0).first_sequence == first


# --- epochs ------------------------------------------------------------------------------------------------------


def test_an_unknown_producer_may_begin_anywhere() -> None:
    ProducerState().check(batch(0, 17))
    state_of([(0, 0)]).check(batch(1, 17, producer=P2))


def test_plain_batches_are_not_checked() -> None:
    state = state_of([(0, 4)])
    state.check(batch(5, producer=-1, epoch=-1))
    assert state.find_duplicate(batch(5, producer=-1, epoch=-1)) is None
    state.update(batch(5, producer=-1, epoch=-1))
    assert (list(state.producers), state.end_offset) == ([P1], 6)


def test_an_older_epoch_is_fenced_even_when_its_batch_is_remembered() -> None:
    state = state_of([(0, 4)], epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        state.check(batch(5, 5, epoch=0))
    assert state.find_duplicate(batch(5, 0, 5, epoch=0)) is None


def test_a_newer_epoch_begins_at_sequence_zero() -> None:
    state = state_of([(0, 4)])
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(5, 5, epoch=1))
    state.check(batch(5, 0, epoch=1))
    state.update(batch(5, 0, epoch=1))
    assert [remembered.last_sequence for remembered in state.producers[P1].batches] == [0]
    assert state.find_duplicate(batch(6, 0, 5, epoch=1)) is None


def test_after_a_marker_of_a_newer_epoch_data_begins_at_zero() -> None:
    state = state_of([(0, 4)])
    marker(state, 5, P1, ControlType.ABORT, epoch=1)
    state.check(batch(6, 0, epoch=1))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(6, 5, epoch=1))


def test_a_marker_of_the_same_epoch_keeps_the_sequences() -> None:
    state = state_of([(0, 4)])
    marker(state, 5, P1, ControlType.COMMIT)
    state.check(batch(6, 5))
    assert state.find_duplicate(batch(6, 0, 5)) is not None


def test_replaying_an_older_epoch_is_no_error() -> None:
    """A replica accepts every batch that its leader accepted."""
    state = state_of([(0, 4)], epoch=3)
    state.update(batch(5, 9, epoch=2))
    assert state.producers[P1].epoch == 2
    assert state.end_offset == 6


# --- restarts ----------------------------------------------------------------------------------------------------


def test_a_snapshot_remembers_one_batch_a_producer() -> None:
    state = restarted(state_of(SIX_BATCHES))
    assert state.end_offset == 14
    assert state.find_duplicate(batch(14, 13)) is not None
    assert state.find_duplicate(batch(14, 11, 2)) is None
    state.check(batch(14, 14))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(14, 11, 2))


def test_a_snapshot_keeps_open_transactions_and_epochs() -> None:
    state = ProducerState()
    state.update(data(10, P1))
    state.update(data(11, P2))
    marker(state, 12, P2, ControlType.COMMIT, coordinator_epoch=9)
    restored = restarted(state)
    assert restored.producers[P1].transaction_first_offset == 10
    assert restored.producers[P2].transaction_first_offset is None
    assert restored.producers[P2].coordinator_epoch == 9
    assert restored.first_unstable(13) == 10


def test_a_snapshot_of_a_producer_with_a_marker_alone() -> None:
    state = ProducerState()
    marker(state, 0, P1, ControlType.COMMIT, epoch=4, coordinator_epoch=2)
    restored = restarted(state)
    assert not restored.producers[P1].batches
    assert restored.entries() == state.entries()
    assert (restored.entries()[0].last_offset, restored.entries()[0].producer_epoch) == (-1, 4)


def test_a_snapshot_without_producers_is_read_back() -> None:
    assert restarted(ProducerState()).entries() == []


# --- transactions: Kafka's worked example ------------------------------------------------------------------------


def example() -> tuple[ProducerState, list[CompletedTransaction | None]]:
    """Return the state and the ended transactions after the batches of Kafka's example.

    The offsets are: 0 without a producer, 1 data of P1, 2 data of P2, 3 data of P1, 4 ABORT of P1, 5 data of P2, 6
    COMMIT of P2.
    """
    state = ProducerState()
    state.update(batch(0, producer=-1, epoch=-1))
    state.update(data(1, P1, 0))
    state.update(data(2, P2, 0))
    state.update(data(3, P1, 1))
    aborted = marker(state, 4, P1, ControlType.ABORT)
    assert aborted is not None
    assert state.last_stable_at(aborted) == 2
    state.update(data(5, P2, 1))
    return state, [aborted, marker(state, 6, P2, ControlType.COMMIT)]


def test_transactions_that_ended() -> None:
    _, ended = example()
    assert ended == [CompletedTransaction(P1, 1, 4, aborted=True), CompletedTransaction(P2, 2, 6, aborted=False)]


@pytest.mark.parametrize(("high_watermark", "unstable"), [(4, 1), (5, 2), (6, 2), (7, None)])
def test_a_transaction_is_unstable_until_its_marker_is_below_the_high_watermark(
    high_watermark: int, unstable: int | None
) -> None:
    state, _ = example()
    assert state.first_unstable(high_watermark) == unstable


def test_the_first_unstable_offset_as_the_high_watermark_moves() -> None:
    state, _ = example()
    assert [state.first_unstable(high_watermark) for high_watermark in (4, 5, 6, 7)] == [1, 2, 2, None]


def test_an_open_transaction_is_unstable_whatever_the_high_watermark() -> None:
    state = ProducerState()
    state.update(data(3, P1))
    state.update(data(4, P2))
    assert state.first_unstable(100) == 3
    marker(state, 5, P1, ControlType.COMMIT)
    assert state.first_unstable(100) == 4


def test_without_other_transactions_the_last_stable_offset_follows_the_marker() -> None:
    state = ProducerState()
    state.update(data(3, P1))
    ended = marker(state, 8, P1, ControlType.ABORT)
    assert ended is not None
    assert state.last_stable_at(ended) == 9


def test_a_marker_without_a_transaction_ends_none_but_is_noted() -> None:
    state = state_of([(0, 0)])
    assert marker(state, 1, P1, ControlType.ABORT, epoch=2, coordinator_epoch=5) is None
    producer = state.producers[P1]
    assert (producer.epoch, producer.coordinator_epoch, state.end_offset) == (2, 5, 2)
    assert state.first_unstable(2) is None


def test_an_emptied_control_batch_changes_nothing() -> None:
    state = ProducerState()
    state.update(data(3, P1))
    assert state.update(batch(4, control=True, epoch=9), None) is None
    assert (state.producers[P1].epoch, state.first_unstable(10), state.end_offset) == (0, 3, 5)


def test_a_transaction_begins_once() -> None:
    state = ProducerState()
    state.update(data(3, P1, 0))
    state.update(data(7, P1, 1))
    ended = marker(state, 8, P1, ControlType.COMMIT)
    assert ended == CompletedTransaction(P1, 3, 8, aborted=False)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    state = ProducerState()
    state.update(data(0, P1, 0))
    with pytest.raises(InvalidTxnStateError):
        state.check(batch(1, 1))
    state.check(data(1, P1, 1))
    marker(state, 1, P1, ControlType.COMMIT)
    state.check(batch(2, 1))
