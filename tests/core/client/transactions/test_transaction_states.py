"""State transitions of a transactional producer, compared with Kafka's rules."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from stratalog import ProducerId, TopicPartition
from stratalog.client.sequences import LAST_EPOCH
from stratalog.client.transactions.transaction_states import (
    TransactionalProducer,
    add_partitions,
    check_contains,
    check_producer,
    complete_end,
    initialize,
    is_expired,
    is_overdue,
    partitions_in,
    prepare_end,
    prepare_end_with_next_epoch,
    prepare_fence,
    status_name,
)
from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from stratalog.model.messages.transactions_topic import TransactionStatus

NOW = 1_000_000
P0, P1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 3)
ids = itertools.count(100)


def new_id() -> int:
    return next(ids)


def created() -> TransactionalProducer:
    return initialize(None, 60_000, NOW, None, new_id, rotates=False)


def ongoing(version: int = 0) -> TransactionalProducer:
    current = created()
    return add_partitions(current, current.producer, [P0], NOW, version)


def done(*, commit: bool = True) -> TransactionalProducer:
    current = ongoing()
    return complete_end(prepare_end(current, current.producer, NOW, commit=commit), NOW)


def at_epoch(current: TransactionalProducer, epoch: int) -> TransactionalProducer:
    return current._replace(state=dataclasses.replace(current.state, producer_epoch=epoch))


def following(current: TransactionalProducer, expected: ProducerId | None = None) -> TransactionalProducer:
    return initialize(current, 60_000, NOW + 1, expected, new_id, rotates=False)


# --- InitProducerId --------------------------------------------------------------------------------------------------


def test_a_new_transactional_id_begins_at_epoch_0_without_partitions() -> None:
    current = created()
    assert (current.producer.epoch, current.last_epoch, current.status) == (0, -1, TransactionStatus.EMPTY)
    assert (current.state.partitions, current.state.start_timestamp_ms) == (None, -1)


@pytest.mark.parametrize("known", [created(), done(), done(commit=False)])
def test_each_new_producer_gets_the_next_epoch(known: TransactionalProducer) -> None:
    assert following(known).producer == (known.producer.producer_id, known.producer.epoch + 1)
    assert following(known).last_epoch == -1


def test_a_producer_that_continues_repeats_its_request_without_another_epoch() -> None:
    current = created()
    raised = following(current, current.producer)
    assert (raised.producer.epoch, raised.last_epoch) == (1, 0)
    assert following(raised, current.producer).producer == raised.producer
    assert following(raised, raised.producer).producer.epoch == 2


@pytest.mark.parametrize("expected", [ProducerId(7, 0), ProducerId(7, -1)])
def test_a_producer_that_names_another_id_is_fenced(expected: ProducerId) -> None:
    with pytest.raises(ProducerFencedError):
        following(created(), expected)


def test_a_newer_producer_ends_the_repetitions_of_the_older() -> None:
    current = created()
    newer = following(following(current, current.producer))
    with pytest.raises(ProducerFencedError):
        following(newer, current.producer)


def test_the_last_epoch_of_clients_is_followed_by_a_new_id() -> None:
    exhausted = at_epoch(created(), LAST_EPOCH - 1)
    rotated = following(exhausted, exhausted.producer)
    assert rotated.producer.producer_id != exhausted.producer.producer_id
    assert (rotated.producer.epoch, rotated.state.previous_producer_id) == (0, exhausted.producer.producer_id)
    assert following(rotated, exhausted.producer).producer == rotated.producer  # a repeated request
    assert following(exhausted).last_epoch == -1


def test_a_producer_of_another_kind_gets_a_new_id() -> None:
    current = created()
    rotated = initialize(current, 1, NOW, None, new_id, rotates=True)
    assert rotated.producer.producer_id != current.producer.producer_id
    assert rotated.producer.epoch == 0


def test_an_open_or_prepared_transaction_must_end_first() -> None:
    current = ongoing()
    for unfinished in (current, prepare_end(current, current.producer, NOW, commit=True), prepare_fence(current, NOW)):
        with pytest.raises(ConcurrentTransactionsError):
            following(unfinished)


# --- AddPartitionsToTxn ----------------------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction_and_later_ones_keep_its_start() -> None:
    current = ongoing()
    extended = add_partitions(current, current.producer, [OTHER, P1, P0], NOW + 5)
    assert partitions_in(extended.state) == [OTHER, P0, P1]
    assert (extended.state.start_timestamp_ms, extended.state.last_update_timestamp_ms) == (NOW, NOW + 5)
    assert add_partitions(extended, current.producer, [P1], NOW + 9) is extended


def test_a_transaction_begins_without_the_partitions_of_the_one_before() -> None:
    current = done()
    second = add_partitions(current, current.producer, [P1], NOW + 5)
    assert (partitions_in(second.state), second.state.start_timestamp_ms) == ([P1], NOW + 5)


def test_only_the_current_producer_adds_and_only_before_the_end() -> None:
    current = ongoing()
    (producer_id, epoch), prepared = current.producer, prepare_end(current, current.producer, NOW, commit=False)
    with pytest.raises(InvalidProducerIdMappingError):
        add_partitions(current, ProducerId(7, epoch), [P1], NOW)
    for wrong_epoch in (epoch - 1, epoch + 1):
        with pytest.raises(ProducerFencedError):
            add_partitions(current, ProducerId(producer_id, wrong_epoch), [P1], NOW)
    with pytest.raises(ConcurrentTransactionsError):
        add_partitions(prepared, current.producer, [P1], NOW)


def test_a_check_requires_all_partitions_in_an_open_transaction() -> None:
    current = ongoing()
    check_contains(current, current.producer, [P0])
    with pytest.raises(InvalidTxnStateError, match="t-1 was not added"):
        check_contains(current, current.producer, [P0, P1])
    finished = done()
    with pytest.raises(InvalidTxnStateError):
        check_contains(finished, finished.producer, [P0])


# --- EndTxn that keeps the epoch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_prepared_then_complete_and_may_be_repeated(*, commit: bool) -> None:
    current = ongoing()
    prepared = prepare_end(current, current.producer, NOW + 1, commit=commit)
    kind = "COMMIT" if commit else "ABORT"
    assert status_name(prepared.status) == f"PREPARE_{kind}"
    assert partitions_in(prepared.state) == [P0]
    assert prepare_end(prepared, current.producer, NOW + 2, commit=commit) is prepared
    complete = complete_end(prepared, NOW + 3)
    assert (status_name(complete.status), complete.state.partitions) == (f"COMPLETE_{kind}", ())
    assert complete.producer == current.producer
    assert prepare_end(complete, current.producer, NOW + 4, commit=commit) is complete
    for state in (prepared, complete):
        with pytest.raises(InvalidTxnStateError):
            prepare_end(state, current.producer, NOW, commit=not commit)


def test_an_end_needs_an_open_transaction_of_the_current_producer() -> None:
    current = created()
    with pytest.raises(InvalidTxnStateError, match="EMPTY, not ONGOING"):
        prepare_end(current, current.producer, NOW, commit=False)
    with pytest.raises(InvalidProducerIdMappingError):
        prepare_end(ongoing(), ProducerId(7, 0), NOW, commit=True)
    started = ongoing()
    with pytest.raises(ProducerFencedError):
        prepare_end(started, ProducerId(started.producer.producer_id, 1), NOW, commit=True)


# --- EndTxn that raises the epoch (KIP-890) --------------------------------------------------------------------------


def raised(current: TransactionalProducer, producer: ProducerId, *, commit: bool = True) -> TransactionalProducer:
    return prepare_end_with_next_epoch(current, producer, NOW + 1, new_id, commit=commit)


def test_an_end_raises_the_epoch_of_the_markers_and_of_the_next_transaction() -> None:
    current = ongoing(version=2)
    prepared = raised(current, current.producer)
    assert (prepared.producer.epoch, prepared.last_epoch) == (1, 0)
    assert raised(prepared, current.producer) is prepared
    complete = complete_end(prepared, NOW + 2)
    assert raised(complete, current.producer) is complete
    with pytest.raises(InvalidTxnStateError):
        raised(complete, current.producer, commit=False)
    with pytest.raises(InvalidTxnStateError):
        raised(complete, complete.producer)  # no transaction is open
    with pytest.raises(ProducerFencedError):
        add_partitions(complete, current.producer, [P0], NOW, 2)


def test_an_abort_without_a_transaction_raises_the_epoch() -> None:
    for current in (created(), done(), done(commit=False)):
        prepared = raised(current, current.producer, commit=False)
        assert (prepared.state.partitions, prepared.producer.epoch) == ((), current.producer.epoch + 1)
        assert prepared.state.start_timestamp_ms == NOW + 1


def test_only_the_current_producer_ends() -> None:
    current = ongoing(version=2)
    with pytest.raises(InvalidProducerIdMappingError):
        raised(current, ProducerId(7, 0))
    for wrong_epoch in (-1, 1, LAST_EPOCH):
        with pytest.raises(ProducerFencedError):
            raised(current, ProducerId(current.producer.producer_id, wrong_epoch))
    prepared = raised(current, current.producer)
    with pytest.raises(ProducerFencedError):
        raised(prepared, prepared.producer)


def test_the_last_epoch_of_clients_ends_with_a_new_id() -> None:
    current = at_epoch(ongoing(version=2), LAST_EPOCH - 1)
    prepared = raised(current, current.producer)
    assert prepared.state.producer_epoch == LAST_EPOCH  # of the markers
    assert prepared.producer.producer_id != current.producer.producer_id
    assert raised(prepared, current.producer) is prepared
    complete = complete_end(prepared, NOW)
    assert complete.producer == prepared.producer == (prepared.state.next_producer_id, 0)
    assert raised(complete, current.producer) is complete
    assert following(complete, current.producer).producer == complete.producer


# --- fencing, timeout, expiration ------------------------------------------------------------------------------------


def test_a_fenced_producer_cannot_end_its_transaction() -> None:
    current = ongoing()
    aborted = prepare_fence(current, NOW)
    assert (aborted.status, aborted.producer.epoch) == (TransactionStatus.PREPARE_ABORT, 1)
    for state in (aborted, complete_end(aborted, NOW)):
        for commit in (True, False):
            with pytest.raises(ProducerFencedError):
                prepare_end(state, current.producer, NOW, commit=commit)
            with pytest.raises(ProducerFencedError):
                raised(state, current.producer, commit=commit)


def test_a_producer_that_raises_epochs_continues_after_its_timeout_with_an_abort() -> None:
    current = ongoing(version=2)
    aborted = complete_end(prepare_fence(current, NOW), NOW)
    with pytest.raises(InvalidTxnStateError):
        raised(aborted, current.producer)
    assert raised(aborted, current.producer, commit=False).producer == (current.producer.producer_id, 1)


def test_the_last_epoch_belongs_to_no_producer() -> None:
    current = at_epoch(ongoing(version=2), LAST_EPOCH - 1)
    aborted = complete_end(prepare_fence(current, NOW), NOW)
    assert aborted.producer.epoch == LAST_EPOCH
    with pytest.raises(ProducerFencedError):
        raised(aborted, current.producer, commit=False)
    assert following(aborted).producer.epoch == 0


def test_a_transaction_is_overdue_after_its_timeout() -> None:
    state = ongoing().state
    assert not is_overdue(state, NOW + 60_000)
    assert is_overdue(state, NOW + 60_001)
    assert not is_overdue(done().state, NOW + (1 << 40))


def test_an_id_expires_unless_its_transaction_is_unfinished() -> None:
    assert is_expired(created().state, NOW + 10, 10)
    assert not is_expired(created().state, NOW + 9, 10)
    assert is_expired(done().state, NOW + 10, 10)
    current = ongoing()
    for unfinished in (current, prepare_end(current, current.producer, NOW, commit=True)):
        assert not is_expired(unfinished.state, NOW + (1 << 40), 10)


def test_a_status_of_a_later_release_keeps_its_number() -> None:
    current = created()
    odd = current._replace(state=dataclasses.replace(current.state, status=9))
    check_producer(odd, odd.producer)
    with pytest.raises(InvalidTxnStateError, match="is 9, not ONGOING"):
        prepare_end(odd, odd.producer, NOW, commit=True)
