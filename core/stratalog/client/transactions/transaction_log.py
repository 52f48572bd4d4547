"""The stored states of transactional producers: Kafka's topic ``__transaction_state``.

Source: apache/kafka TransactionStateManager, TransactionLog.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from stratalog.client.log_access import Logs
from stratalog.client.statetopic import PARTITIONS, Compact, StateTopic
from stratalog.client.transactions.transaction_states import EPOCH_RAISING, TransactionalProducer
from stratalog.log.log import Log
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionState,
    parse_transaction_record,
    transaction_key,
    transaction_value,
)
from stratalog.model.records import Record

_PLAIN_VERSION: Final = 0  # every release reads it
_TAGGED_VERSION: Final = 1  # has the fields of transactions that increase the epoch; Kafka reads it from 3.5 on


class TransactionLog:
    """Store of the state of each transactional producer, by transactional id. Thread-safe.

    Args:
        compact: compacts a log of ``__transaction_state``; see ``StateTopic``.
        partitions: number of partitions of ``__transaction_state`` if the topic must be created.
    """

    def __init__(self, logs: Logs, compact: Compact | None = None, partitions: int = PARTITIONS) -> None:
        self._logs, self._partitions, self._lock = logs, partitions, threading.Lock()
        self._topic = _TransactionsTopic(logs, compact)
        self._repeatable: dict[str, tuple[int, int]] = {}  # by id: last epoch, previous producer id; not in version 0

    def find(self, transactional_id: str) -> TransactionalProducer | None:
        """Return the latest state of a producer, or None if the transactional id is unknown.

        Raises:
            StorageError: the partition with the state cannot be read.
        """
        with self._lock:
            self._topic.refresh_for(transactional_id)
            state = self._topic.states.get(transactional_id)
            if state is None:
                return None
            last_epoch, previous_id = self._repeatable.get(transactional_id, (NO_EPOCH, state.previous_producer_id))
            return TransactionalProducer(replace(state, previous_producer_id=previous_id), last_epoch)

    def states(self) -> dict[str, TransactionState]:
        """Return the states of all producers by transactional id; raise StorageError if a partition cannot be read."""
        with self._lock:
            self._topic.refresh_all()
            return dict(self._topic.states)

    def readable_states(self) -> tuple[dict[str, TransactionState], bool]:
        """Return the states in readable partitions by transactional id, and True if all partitions are readable.

        Errors are logged.
        """
        with self._lock:
            is_complete = self._topic.refresh_readable()
            return dict(self._topic.states), is_complete

    def store(
        self, transactional_id: str, producer_state: TransactionalProducer, durability: str | None = None
    ) -> None:
        """Store a new state of a producer, or raise StorageError if the state could not be appended."""
        state = producer_state.state
        is_tagged = state.client_transaction_version >= EPOCH_RAISING or state.next_producer_id != NO_PRODUCER
        value = transaction_value(state, _TAGGED_VERSION if is_tagged else _PLAIN_VERSION)
        self._append(transactional_id, state.last_update_timestamp_ms, value, durability)
        with self._lock:
            if producer_state.last_epoch == NO_EPOCH:
                self._repeatable.pop(transactional_id, None)
            else:
                self._repeatable[transactional_id] = producer_state.last_epoch, state.previous_producer_id

    def forget(self, transactional_id: str, now_ms: int) -> None:
        """Delete the state of a producer by a tombstone, or raise StorageError if it could not be appended."""
        self._append(transactional_id, now_ms, None, None)
        with self._lock:
            self._repeatable.pop(transactional_id, None)

    def log_of(self, transactional_id: str) -> Log:
        """Return the log that stores a producer's state; create the topic if the topic does not exist."""
        name = self._topic.created_partition(transactional_id, self._lock, self._logs, self._partitions)
        return self._logs.log(*name)

    def _append(self, transactional_id: str, now_ms: int, value: bytes | None, durability: str | None) -> None:
        record = Record(timestamp_ms=now_ms, key=transaction_key(transactional_id), value=value)
        self.log_of(transactional_id).append([record], durability)


class _TransactionsTopic(StateTopic):
    def __init__(self, logs: Logs, compact: Compact | None) -> None:
        super().__init__(logs, TRANSACTIONS_TOPIC, compact)
        self.states: dict[str, TransactionState] = {}

    def apply(self, partition: int, record: Record) -> None:
        del partition  # partition_number computes it from the id
        parsed = parse_transaction_record(record.key, record.value)
        if parsed is None:
            return
        if parsed.value is None:
            self.states.pop(parsed.key.transactional_id, None)
        else:
            self.states[parsed.key.transactional_id] = parsed.value

    def forget(self, partition: int) -> None:
        self.states = {
            transactional_id: state
            for transactional_id, state in self.states.items()
            if self.partition_number(transactional_id) != partition
        }
