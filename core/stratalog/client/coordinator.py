"""Transaction coordinator: the state of transactions in ``__transaction_state``, and the end markers in the logs.

A transaction ends in three steps. First PREPARE is stored, which decides the outcome. Then markers are appended to
every partition. Last, COMPLETE is stored. A crash may follow each step; after a crash, unfinished transactions are
ended before anything else is done.

Source: apache/kafka TransactionCoordinator, TransactionMetadata, TransactionStateManager.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterable
from typing import Final

from stratalog.client.log_access import Logs
from stratalog.client.sequences import LAST_EPOCH, ProducerId, is_ours, new_producer_id
from stratalog.client.statetopic import Compact, StateTopic
from stratalog.env import Env
from stratalog.errors import InvalidTxnStateError, ProducerFencedError, StorageError, UnknownTopicError
from stratalog.log.log import Log
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionPartitions,
    TransactionState,
    TransactionStatus,
    parse_transaction_record,
    transaction_key,
    transaction_value,
)
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record

VALUE_VERSION: Final = 0  # every release reads it
_LOGGER: Final = logging.getLogger("stratalog.client")
_PREPARED: Final = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}


class Coordinator:
    """Coordinator of the transactional producers of an engine. Thread-safe.

    Args:
        logs: logs of the engine.
        env: clock and random source.
        compact: as in ``StateTopic``.
    """

    def __init__(self, logs: Logs, env: Env, compact: Compact | None = None) -> None:
        self._logs, self._env = logs, env
        self._topic = _TransactionsTopic(logs, compact)
        self._lock = threading.RLock()
        self._recovered = False

    # --- for producers -----------------------------------------------------------------------------------------------

    def open(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Return the id and epoch for a new producer, and fence older producers with the same transactional id.

        The open transaction of an older producer is aborted.

        Raises:
            StorageError: a log cannot be written.
        """
        with self._lock:
            self.recover()
            state = self._settled(transactional_id)
            if state is None or state.producer_epoch >= LAST_EPOCH - 1:
                identity = new_producer_id(self._env.chance)
            else:
                identity = ProducerId(state.producer_id, state.producer_epoch + 1)
            opened = TransactionState(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                timeout_ms=timeout_ms,
                status=TransactionStatus.EMPTY,
                partitions=None,
                last_update_timestamp_ms=self._env.clock.now_ms(),
                start_timestamp_ms=-1,
            )
            self.store(transactional_id, opened)
            return identity

    def add_partitions(self, transactional_id: str, identity: ProducerId, names: Iterable[TopicPartition]) -> None:
        """Store that a transaction writes to partitions, before the write. The first call begins the transaction.

        Raises:
            ProducerFencedError: another producer has the transactional id now.
            InvalidTxnStateError: the end of the transaction has started.
        """
        with self._lock:
            state = self._state_of(transactional_id, identity)
            if state.status in _PREPARED:
                raise InvalidTxnStateError(
                    f"the end of the transaction has started transactional_id={transactional_id}"
                )
            now = self._env.clock.now_ms()
            begins = state.status != TransactionStatus.ONGOING
            before = set() if begins else set(partitions_in(state))
            wanted = before | set(names)
            if wanted == before:
                return
            changed = dataclasses.replace(
                state,
                status=TransactionStatus.ONGOING,
                partitions=_grouped(wanted),
                last_update_timestamp_ms=now,
                start_timestamp_ms=now if begins else state.start_timestamp_ms,
            )
            self.store(transactional_id, changed)

    def end(self, transactional_id: str, identity: ProducerId, *, commit: bool, durability: str | None = None) -> None:
        """End a transaction. If the call fails, a repeated call continues at the failed step.

        With the durability ``durable`` each step is on disk before the next step.

        Raises:
            ProducerFencedError: another producer has the transactional id now.
            InvalidTxnStateError: no transaction is open, or its end has started with the opposite outcome.
        """
        wanted = TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
        with self._lock:
            state = self._state_of(transactional_id, identity)
            if state.status == TransactionStatus.ONGOING:
                state = self.prepared(transactional_id, state, wanted, durability)
            elif state.status == _PREPARED[wanted]:
                return  # an earlier call has completed it
            elif state.status != wanted:
                found = TransactionStatus(state.status).name
                raise InvalidTxnStateError(
                    f"the transaction is {found}, not ONGOING transactional_id={transactional_id}"
                )
            self._complete(transactional_id, state, durability)

    def is_committing(self, transactional_id: str, identity: ProducerId) -> bool:
        """Return True if the transaction is prepared for commit, or committed. An abort is no longer possible then.

        Raises:
            ProducerFencedError: another producer has the transactional id now.
        """
        with self._lock:
            status = self._state_of(transactional_id, identity).status
            return status in {TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT}

    # --- unfinished transactions
    # ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """End the transactions that an earlier engine left unfinished; later calls do nothing.

        Prepared transactions get their decided outcome. Open transactions of stratalog's producers are aborted, because
        those producers ended with their engine. Open transactions of a broker's clients continue until their timeout.
        """
        with self._lock:
            if self._recovered:
                return
            self._recovered = True
            self._topic.refresh_readable()
            for transactional_id, state in list(self._topic.states.items()):
                is_left = state.status == TransactionStatus.ONGOING and is_ours(state.producer_id)
                if is_left or state.status in _PREPARED:
                    self._settle(transactional_id)
            for name in self._logs.partitions():
                self._abort_unknown(name)
            self.abort_expired()

    def _abort_unknown(self, name: TopicPartition) -> None:
        """Abort transactions of stratalog's producers that are open in a log but missing in the state.

        A power failure can lose their state.
        """
        try:
            log = self._logs.log(*name)
            for found in log.open_transactions():
                if is_ours(found.producer_id):
                    epoch = min(found.producer_epoch + 1, LAST_EPOCH)
                    known = max(found.coordinator_epoch, 0)  # an epoch below that of the last marker is fenced
                    log.end_transaction(found.producer_id, epoch, commit=False, coordinator_epoch=known)
        except StorageError:
            _LOGGER.exception("an unknown transaction could not be aborted log=%s", name)

    def abort_expired(self) -> tuple[str, ...]:
        """Abort transactions that are open longer than their timeout, and fence their producers.

        Prepared transactions whose end failed earlier, for instance because the disk was full, are completed.

        Returns:
            The transactional ids of the aborted transactions, sorted.
        """
        with self._lock:
            self.recover()
            self._topic.refresh_readable()
            now, ended = self._env.clock.now_ms(), []
            for transactional_id, state in list(self._topic.states.items()):
                if state.status in _PREPARED:
                    self._settle(transactional_id)
                elif state.status == TransactionStatus.ONGOING and now - state.start_timestamp_ms > state.timeout_ms:
                    self._settle(transactional_id)
                    ended.append(transactional_id)
            return tuple(sorted(ended))

    def _settle(self, transactional_id: str) -> None:
        """End the unfinished transaction of one id. If a log fails, log the error and leave it for the next attempt."""
        try:
            self._settled(transactional_id)
        except StorageError:
            _LOGGER.exception("a transaction could not be ended transactional_id=%s", transactional_id)

    def states(self) -> dict[str, TransactionState]:
        """Return the state of each transactional producer, by transactional id."""
        with self._lock:
            self._topic.refresh_all()
            return dict(self._topic.states)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _settled(self, transactional_id: str) -> TransactionState | None:
        """Complete a prepared transaction or abort an open one, and return the state; None if the id is unknown."""
        state = self._topic.state(transactional_id)
        if state is None:
            return None
        if state.status in _PREPARED:
            return self._complete(transactional_id, state)
        if state.status == TransactionStatus.ONGOING:
            return self._abort(transactional_id, state)
        return state

    def _state_of(self, transactional_id: str, identity: ProducerId) -> TransactionState:
        state = self._topic.state(transactional_id)
        if state is None or (state.producer_id, state.producer_epoch) != identity:
            raise ProducerFencedError(f"another producer has taken over transactional_id={transactional_id}")
        return state

    def _abort(self, transactional_id: str, state: TransactionState) -> TransactionState:
        """Abort with the next producer epoch, which fences the producer that began the transaction."""
        fencing = dataclasses.replace(state, producer_epoch=min(state.producer_epoch + 1, LAST_EPOCH))
        prepared = self.prepared(transactional_id, fencing, TransactionStatus.PREPARE_ABORT)
        return self._complete(transactional_id, prepared)

    def prepared(
        self,
        transactional_id: str,
        state: TransactionState,
        status: TransactionStatus,
        durability: str | None = None,
    ) -> TransactionState:
        """Store a transaction with another status, and return it."""
        changed = dataclasses.replace(state, status=status, last_update_timestamp_ms=self._env.clock.now_ms())
        self.store(transactional_id, changed, durability)
        return changed

    def _complete(
        self, transactional_id: str, state: TransactionState, durability: str | None = None
    ) -> TransactionState:
        status = TransactionStatus(state.status)
        coordinator_epoch = self._topic.log_of(transactional_id).leader_epoch
        for name in partitions_in(state):
            with contextlib.suppress(UnknownTopicError):  # deleted meanwhile
                self._logs.log(*name).end_transaction(
                    state.producer_id,
                    state.producer_epoch,
                    commit=status is TransactionStatus.PREPARE_COMMIT,
                    coordinator_epoch=coordinator_epoch,
                    durability=durability,
                )
        changed = dataclasses.replace(
            state, status=_PREPARED[status], partitions=(), last_update_timestamp_ms=self._env.clock.now_ms()
        )
        self.store(transactional_id, changed, durability)
        return changed

    def store(self, transactional_id: str, state: TransactionState, durability: str | None = None) -> None:
        """Append the state of a transaction to the topic of transactions."""
        record = Record(
            timestamp_ms=state.last_update_timestamp_ms,
            key=transaction_key(transactional_id),
            value=transaction_value(state, VALUE_VERSION),
        )
        self._topic.append(self._topic.partition_of(transactional_id), [record], durability)


def partitions_in(state: TransactionState) -> list[TopicPartition]:
    """Return the partitions of a transaction."""
    return [
        TopicPartition(found.topic, partition) for found in state.partitions or () for partition in found.partitions
    ]


def _grouped(names: Iterable[TopicPartition]) -> tuple[TransactionPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for name in sorted(names):
        topics.setdefault(name.topic, []).append(name.partition)
    return tuple(TransactionPartitions(topic=topic, partitions=tuple(found)) for topic, found in topics.items())


class _TransactionsTopic(StateTopic):
    def __init__(self, logs: Logs, compact: Compact | None) -> None:
        super().__init__(logs, TRANSACTIONS_TOPIC, compact)
        self.states: dict[str, TransactionState] = {}

    def state(self, transactional_id: str) -> TransactionState | None:
        """Return the state of a producer, or None if the id is unknown."""
        self.refresh(self.partition_of(transactional_id))
        return self.states.get(transactional_id)

    def log_of(self, transactional_id: str) -> Log:
        """Return the log that stores a producer's state."""
        return self.log(self.partition_of(transactional_id))

    def apply(self, partition: int, record: Record) -> None:
        del partition  # place_of computes it from the id
        parsed = parse_transaction_record(record.key, record.value)
        if parsed is None:
            return
        if parsed.value is None:
            self.states.pop(parsed.key.transactional_id, None)
        else:
            self.states[parsed.key.transactional_id] = parsed.value

    def forget(self, partition: int) -> None:
        self.states = {found: state for found, state in self.states.items() if self.place_of(found) != partition}
