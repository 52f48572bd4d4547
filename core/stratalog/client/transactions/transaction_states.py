"""Transitions of the state of a transactional producer, as pure functions: each returns the new state.

The end of a transaction of version 2 (KIP-890) increases the producer epoch. A late request of this transaction can
therefore not change the next transaction.

Source: apache/kafka TransactionMetadata, TransactionCoordinator; KIP-360, KIP-890.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from stratalog.client.sequences import LAST_EPOCH, ProducerId
from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER
from stratalog.model.messages.transactions_topic import TransactionPartitions, TransactionState, TransactionStatus
from stratalog.model.names import TopicPartition

EPOCH_RAISING: Final = 2  # first version of transactions that increases the epoch at each end
_LAST_OF_CLIENTS: Final = LAST_EPOCH - 1  # clients never get the last epoch: with it, each client can be fenced
PREPARED: Final = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}
COMPLETED: Final = frozenset(PREPARED.values())
UNFINISHED: Final = frozenset({TransactionStatus.ONGOING, *PREPARED})
EXPIRABLE: Final = COMPLETED | {TransactionStatus.EMPTY}
NewId = Callable[[], int]


class TransactionalProducer(NamedTuple):
    """State of one transactional producer.

    Attributes:
        last_epoch: previous epoch, with which the producer may repeat the request that has increased the epoch; -1 if
            there is no such request. As in Kafka, ``last_epoch`` is not stored.
    """

    state: TransactionState
    last_epoch: int = NO_EPOCH

    @property
    def status(self) -> int:
        """Status as a ``TransactionStatus``, or as a plain number if a later release has stored it."""
        return self.state.status

    @property
    def producer(self) -> ProducerId:
        """Current producer id and epoch; while a transaction is being ended, the id and epoch after its end."""
        if self.state.next_producer_id != NO_PRODUCER:
            return ProducerId(self.state.next_producer_id, 0)
        return ProducerId(self.state.producer_id, self.state.producer_epoch)


def partitions_in(state: TransactionState) -> list[TopicPartition]:
    """Return the partitions of the transaction in ``state``; [] if there is no transaction."""
    return [
        TopicPartition(topic.topic, partition) for topic in state.partitions or () for partition in topic.partitions
    ]


def check_expected(current: TransactionalProducer, expected: ProducerId | None) -> None:
    """Raise ProducerFencedError unless a producer with the id and epoch ``expected`` may continue (KIP-360).

    A repeated request may have the previous epoch of the current id, or, if the id was replaced, the last epoch of the
    previous id.
    """
    if expected is None:
        return
    state = current.state
    is_current = expected.producer_id == state.producer_id and expected.epoch in {
        state.producer_epoch,
        current.last_epoch,
    }
    is_rotated = (
        expected.producer_id == state.previous_producer_id
        and expected.epoch == current.last_epoch >= _LAST_OF_CLIENTS
        and state.producer_epoch == 0
    )
    if expected.epoch < 0 or not (is_current or is_rotated):
        raise ProducerFencedError(
            f"the producer id and epoch are {state.producer_id} and {state.producer_epoch}, not "
            f"{expected.producer_id} and {expected.epoch}"
        )


def initialize(
    current: TransactionalProducer | None,
    timeout_ms: int,
    now_ms: int,
    expected: ProducerId | None,
    new_id: NewId,
    *,
    rotates: bool,
) -> TransactionalProducer:
    """Return the state after InitProducerId, with the next epoch of the producer id, or epoch 0 of a new producer id.

    ``current`` is None for a new transactional id, and ``expected`` is the producer id and epoch of a producer that
    continues, or None for a new producer. ``new_id`` returns an unused producer id, which the producer gets if
    ``rotates`` is True.

    Raises:
        ProducerFencedError: ``expected`` is not allowed to continue; see ``check_expected``.
        ConcurrentTransactionsError: a transaction is open, or is being ended.
    """
    epoch, last_epoch, previous = 0, NO_EPOCH, NO_PRODUCER
    if current is None:
        producer_id = new_id()
    else:
        check_expected(current, expected)
        state = current.state
        if state.status in UNFINISHED:
            raise ConcurrentTransactionsError("a transaction of the producer is open or is being ended")
        producer_id, previous = state.producer_id, state.previous_producer_id
        if expected is not None and expected.epoch != state.producer_epoch:  # a repeated request
            epoch, last_epoch = state.producer_epoch, current.last_epoch
        else:
            last_epoch = NO_EPOCH if expected is None else state.producer_epoch
            if rotates or state.producer_epoch >= _LAST_OF_CLIENTS:
                producer_id, previous = new_id(), producer_id
            else:
                epoch = state.producer_epoch + 1
    new_state = TransactionState(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions=None,
        last_update_timestamp_ms=now_ms,
        start_timestamp_ms=-1,
        previous_producer_id=previous,
    )
    return TransactionalProducer(new_state, last_epoch)


def check_producer(current: TransactionalProducer, producer: ProducerId) -> None:
    """Raise an error unless a producer may add partitions to its transaction, or begin one.

    Raises:
        InvalidProducerIdMappingError: the transactional id has another producer id now.
        ProducerFencedError: the producer id has another epoch now.
        ConcurrentTransactionsError: the previous transaction is being ended.
    """
    state = current.state
    _check_current(state, producer)
    if state.status in PREPARED:
        raise ConcurrentTransactionsError("the end of the transaction has started: the next one cannot begin yet")


def check_contains(current: TransactionalProducer, producer: ProducerId, names: Iterable[TopicPartition]) -> None:
    """Raise an error unless the open transaction of a producer contains all partitions ``names``.

    Raises:
        InvalidTxnStateError: the transaction lacks a partition, or no transaction is open.
        The errors of ``check_producer``.
    """
    check_producer(current, producer)
    partitions = (
        set(partitions_in(current.state)) if current.status == TransactionStatus.ONGOING else set[TopicPartition]()
    )
    missing = next((name for name in names if name not in partitions), None)
    if missing is not None:
        raise InvalidTxnStateError(f"{missing} was not added to the transaction")


def add_partitions(
    current: TransactionalProducer,
    producer: ProducerId,
    names: Collection[TopicPartition],
    now_ms: int,
    version: int = 0,
) -> TransactionalProducer:
    """Return the state after partitions are added; ``current`` itself if the transaction contains all of them.

    If no transaction is open, the new state begins a transaction of ``version``. Raises the errors of
    ``check_producer``.
    """
    check_producer(current, producer)
    state, begins = current.state, current.status != TransactionStatus.ONGOING
    before = set() if begins else set(partitions_in(state))
    after = before | set(names)
    if after == before:
        return current
    new_state = dataclasses.replace(
        state,
        status=TransactionStatus.ONGOING,
        partitions=_group_by_topic(after),
        last_update_timestamp_ms=now_ms,
        start_timestamp_ms=now_ms if begins else state.start_timestamp_ms,
        client_transaction_version=version if begins else state.client_transaction_version,
    )
    return current._replace(state=new_state)


def prepare_end(
    current: TransactionalProducer, producer: ProducerId, now_ms: int, *, commit: bool
) -> TransactionalProducer:
    """Return the prepared state after EndTxn of version 0, which keeps the epoch; ``current`` for a repeated request.

    Raises:
        InvalidProducerIdMappingError, ProducerFencedError: another producer has the transactional id now.
        InvalidTxnStateError: no transaction is open, or its end has started with the opposite outcome.
    """
    state = current.state
    _check_current(state, producer)
    if state.status == TransactionStatus.ONGOING:
        prepared = dataclasses.replace(state, status=_prepared_status(commit=commit), last_update_timestamp_ms=now_ms)
        return current._replace(state=prepared)
    return _check_repeated(current, commit=commit)


def prepare_end_with_next_epoch(
    current: TransactionalProducer, producer: ProducerId, now_ms: int, new_id: NewId, *, commit: bool
) -> TransactionalProducer:
    """Return the prepared state after EndTxn of version 2, which increases the epoch.

    Raises the errors of ``prepare_end``. An abort is allowed without an open transaction. For a repeated request, which
    has the previous epoch, the result is ``current``.
    """
    state = current.state
    is_rotated = (
        state.previous_producer_id == producer.producer_id
        and producer.epoch == _LAST_OF_CLIENTS
        and state.producer_epoch == 0
    )
    if state.producer_id != producer.producer_id and not is_rotated:
        raise _wrong_id_error(state, producer)
    raised = state.client_transaction_version >= EPOCH_RAISING and state.producer_epoch == producer.epoch + 1
    is_repeated = (state.status in PREPARED and raised) or (state.status in COMPLETED and (raised or is_rotated))
    is_current = state.producer_epoch == producer.epoch <= _LAST_OF_CLIENTS and state.status not in PREPARED
    if not is_repeated and not is_current:
        raise _wrong_epoch_error(state, producer)
    if is_repeated:
        return _check_repeated(current, commit=commit)
    begins = state.status != TransactionStatus.ONGOING
    if begins and commit:
        raise _not_ongoing_error(state)
    prepared = dataclasses.replace(
        state,
        producer_epoch=state.producer_epoch + 1,
        status=_prepared_status(commit=commit),
        partitions=() if begins else state.partitions,
        last_update_timestamp_ms=now_ms,
        start_timestamp_ms=now_ms if begins else state.start_timestamp_ms,
        next_producer_id=new_id() if state.producer_epoch >= _LAST_OF_CLIENTS else NO_PRODUCER,
        client_transaction_version=EPOCH_RAISING,
    )
    return TransactionalProducer(prepared, state.producer_epoch)


def prepare_fence(current: TransactionalProducer, now_ms: int) -> TransactionalProducer:
    """Return the state in which an open transaction is prepared for abort. Its next epoch fences the producer.

    As in Kafka 4.1, a producer with transactions of version 2 may repeat its EndTxn, and then continues with the next
    epoch. The highest epoch is reserved for this fencing, and never given to a producer.
    """
    state = current.state
    is_last = state.producer_epoch >= _LAST_OF_CLIENTS
    prepared = dataclasses.replace(
        state,
        client_transaction_version=0 if is_last else state.client_transaction_version,
        producer_epoch=min(state.producer_epoch + 1, LAST_EPOCH),
        status=TransactionStatus.PREPARE_ABORT,
        last_update_timestamp_ms=now_ms,
    )
    return TransactionalProducer(prepared)


def complete_end(current: TransactionalProducer, now_ms: int) -> TransactionalProducer:
    """Return the state after all markers of a prepared transaction are written: COMPLETE_COMMIT or COMPLETE_ABORT."""
    state = current.state
    rotates = state.next_producer_id != NO_PRODUCER
    new_state = dataclasses.replace(
        state,
        producer_id=state.next_producer_id if rotates else state.producer_id,
        producer_epoch=0 if rotates else state.producer_epoch,
        status=PREPARED[TransactionStatus(state.status)],
        partitions=(),
        last_update_timestamp_ms=now_ms,
        previous_producer_id=state.producer_id if rotates else state.previous_producer_id,
        next_producer_id=NO_PRODUCER,
    )
    return current._replace(state=new_state)


def status_name(status: int) -> str:
    """Return the name of a status, or its number as text if a later release stored the status."""
    return TransactionStatus(status).name if status in set(TransactionStatus) else str(status)


def is_overdue(state: TransactionState, now_ms: int) -> bool:
    """Return True if the transaction in ``state`` is open for longer than its timeout."""
    return state.status == TransactionStatus.ONGOING and now_ms - state.start_timestamp_ms > state.timeout_ms


def is_expired(state: TransactionState, now_ms: int, expiration_ms: int) -> bool:
    """Return True if a transactional id has no open transaction and was not used for ``expiration_ms``."""
    return state.status in EXPIRABLE and state.last_update_timestamp_ms <= now_ms - expiration_ms


def _check_current(state: TransactionState, producer: ProducerId) -> None:
    """Raise an error unless a producer has the current producer id and epoch."""
    if state.producer_id != producer.producer_id:
        raise _wrong_id_error(state, producer)
    if state.producer_epoch != producer.epoch:
        raise _wrong_epoch_error(state, producer)


def _wrong_id_error(state: TransactionState, producer: ProducerId) -> InvalidProducerIdMappingError:
    return InvalidProducerIdMappingError(
        f"the transactional id belongs to producer {state.producer_id}, not {producer.producer_id}"
    )


def _wrong_epoch_error(state: TransactionState, producer: ProducerId) -> ProducerFencedError:
    return ProducerFencedError(
        f"producer {state.producer_id} has the epoch {state.producer_epoch}, not {producer.epoch}"
    )


def _prepared_status(*, commit: bool) -> TransactionStatus:
    return TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT


def _check_repeated(current: TransactionalProducer, *, commit: bool) -> TransactionalProducer:
    prepared = _prepared_status(commit=commit)
    if current.status not in {prepared, PREPARED[prepared]}:
        raise _not_ongoing_error(current.state)
    return current


def _not_ongoing_error(state: TransactionState) -> InvalidTxnStateError:
    return InvalidTxnStateError(f"the transaction is {status_name(state.status)}, not ONGOING")


def _group_by_topic(names: Iterable[TopicPartition]) -> tuple[TransactionPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for name in sorted(names):
        topics.setdefault(name.topic, []).append(name.partition)
    return tuple(TransactionPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())
