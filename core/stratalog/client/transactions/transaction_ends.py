"""Ends of transactions: markers in the logs, recovery of interrupted ends, and aborts of expired transactions.

Source: apache/kafka TransactionMarkerChannelManager, TransactionCoordinator.abortTimedOutTransactions,
TransactionStateManager.removeExpiredTransactionalIds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import Final

from stratalog.client.log_access import Logs, raise_if_closed
from stratalog.client.sequences import LAST_EPOCH, ProducerId, is_external, is_internal
from stratalog.client.transactions.transaction_log import TransactionLog
from stratalog.client.transactions.transaction_states import (
    PREPARED,
    UNFINISHED,
    complete_end,
    is_expired,
    is_overdue,
    partitions_in,
    prepare_fence,
)
from stratalog.env.clock import Clock
from stratalog.errors import ConcurrentTransactionsError, StorageError, UnknownTopicError
from stratalog.model.messages.transactions_topic import TransactionStatus
from stratalog.model.names import TopicPartition

_LOGGER: Final = logging.getLogger("stratalog.client")


class _Locks:
    """Locks of one transactional id: ``changing`` for changes of its state, ``ending`` for writing its markers.

    A thread that needs both locks takes ``ending`` first. A ``_Locks`` object exists as long as a thread refers to it.
    """

    __slots__ = ("__weakref__", "changing", "ending")

    def __init__(self) -> None:
        self.changing, self.ending = threading.Lock(), threading.Lock()


class TransactionEnds:
    """Completion of prepared transactions, and abort of abandoned or overdue transactions. Thread-safe.

    Args:
        expiration_ms: time from the last use of a transactional id without an open transaction to its deletion.
    """

    def __init__(self, logs: Logs, states: TransactionLog, clock: Clock, expiration_ms: int) -> None:
        self._logs, self._states, self._clock, self._expiration_ms = logs, states, clock, expiration_ms
        self._lock = threading.Lock()  # protects _locks
        self._locks: weakref.WeakValueDictionary[str, _Locks] = weakref.WeakValueDictionary()
        # Logs that have the markers of a transaction whose end has failed, by transactional id.
        self._marked_logs: dict[str, tuple[ProducerId, set[TopicPartition]]] = {}
        self._recovering = threading.RLock()
        self._is_recovered = False

    def _locks_of(self, transactional_id: str) -> _Locks:
        with self._lock:
            locks = self._locks.get(transactional_id)
            if locks is None:
                locks = self._locks[transactional_id] = _Locks()
            return locks

    @contextlib.contextmanager
    def changing(self, transactional_id: str) -> Iterator[None]:
        """Return a context manager that holds the lock for changes of a producer's state."""
        locks = self._locks_of(transactional_id)
        with locks.changing:
            yield

    @contextlib.contextmanager
    def ending(self, transactional_id: str, *, waits: bool = True) -> Iterator[None]:
        """Return a context manager that holds the lock for the end of a producer's transactions.

        Raises:
            ConcurrentTransactionsError: ``waits`` is False, and another thread holds the lock.
        """
        locks = self._locks_of(transactional_id)
        if not locks.ending.acquire(blocking=waits):
            raise ConcurrentTransactionsError(f"a transaction is being ended (transactional_id={transactional_id})")
        try:
            yield
        finally:
            locks.ending.release()

    def is_ending(self, transactional_id: str) -> bool:
        """Return True if a thread is ending a transaction of the producer."""
        return self._locks_of(transactional_id).ending.locked()

    def complete(self, transactional_id: str, durability: str | None = None) -> None:
        """Write the markers of a prepared transaction, and store its completion.

        Do nothing if no transaction is prepared. The caller holds the lock of ``ending``, but not the lock of
        ``changing``. A deleted log is skipped. If a log cannot be written, the other logs still get their markers.

        Raises:
            StorageError: error of the first log that failed. A repeated call writes the missing markers.
        """
        current = self._states.find(transactional_id)
        if current is None or current.status not in PREPARED:
            return
        state, coordinator_epoch = current.state, self._states.log_of(transactional_id).leader_epoch
        producer = ProducerId(state.producer_id, state.producer_epoch)
        marked_producer, marked = self._marked_logs.pop(transactional_id, (producer, set[TopicPartition]()))
        if marked_producer != producer:
            marked = set()
        first_error: StorageError | None = None
        for name in partitions_in(state):
            if name in marked:
                continue
            try:
                self._logs.log(*name).end_transaction(
                    state.producer_id,
                    state.producer_epoch,
                    commit=state.status == TransactionStatus.PREPARE_COMMIT,
                    coordinator_epoch=coordinator_epoch,
                    durability=durability,
                )
                marked.add(name)
            except UnknownTopicError:
                continue  # deleted meanwhile
            except StorageError as error:
                first_error = first_error or error
        if first_error is not None:
            self._marked_logs[transactional_id] = producer, marked
            raise first_error
        with self.changing(transactional_id):
            self._states.store(transactional_id, complete_end(current, self._clock.now_ms()), durability)

    def recover(self) -> None:
        """End the transactions that an earlier engine left unfinished; see ``TransactionCoordinator.recover``."""
        with self._recovering:
            if self._is_recovered:
                return
            self._is_recovered = True  # first, because abort_expired calls this method
            try:
                self._end_unfinished()
            except BaseException:  # Ctrl-C for instance: the next call tries again
                self._is_recovered = False
                raise

    def _end_unfinished(self) -> None:
        states, _ = self._states.readable_states()
        for transactional_id, state in states.items():
            is_abandoned = state.status == TransactionStatus.ONGOING and is_internal(state.producer_id)
            if is_abandoned or state.status in PREPARED:
                self._settle(transactional_id)
        states, is_complete = self._states.readable_states()
        unfinished_ids = {state.producer_id for state in states.values() if state.status in UNFINISHED}
        for name in self._logs.partitions():
            self._abort_unknown(name, unfinished_ids, is_complete=is_complete)
        self.abort_expired()

    def _abort_unknown(self, name: TopicPartition, known_ids: Collection[int], *, is_complete: bool) -> None:
        """Abort transactions that are open in a log, but whose producer ids are not in ``known_ids``.

        ``known_ids`` are the producer ids of the unfinished transactions in the stored states.

        A power failure can lose a state. Only transactions with producer ids that stratalog has created are aborted.
        Transactions of producers outside the process are aborted only if all states could be read (``is_complete``).
        """
        try:
            log = self._logs.log(*name)
            for transaction in log.open_transactions():
                is_lost = is_internal(transaction.producer_id) or (is_complete and is_external(transaction.producer_id))
                if is_lost and transaction.producer_id not in known_ids:
                    epoch = min(transaction.producer_epoch + 1, LAST_EPOCH)
                    # A coordinator epoch below the epoch of the last marker would be fenced.
                    coordinator_epoch = max(transaction.coordinator_epoch, 0)
                    log.end_transaction(
                        transaction.producer_id, epoch, commit=False, coordinator_epoch=coordinator_epoch
                    )
        except StorageError as error:
            raise_if_closed(error, self._logs)
            _LOGGER.exception("an unknown transaction could not be aborted log=%s", name)

    def abort_expired(self) -> tuple[str, ...]:
        """Abort transactions that exceed their timeout; see ``TransactionCoordinator.abort_expired``."""
        self.recover()
        now_ms, aborted = self._clock.now_ms(), []
        states, _ = self._states.readable_states()
        for transactional_id, state in states.items():
            if state.status in PREPARED:
                self._settle(transactional_id)
            elif is_overdue(state, now_ms) and self._settle(transactional_id, overdue_ms=now_ms):
                aborted.append(transactional_id)
            elif is_expired(state, now_ms, self._expiration_ms):
                self._forget(transactional_id, now_ms)
        return tuple(sorted(aborted))

    def _forget(self, transactional_id: str, now_ms: int) -> None:
        with self.changing(transactional_id):
            try:
                current = self._states.find(transactional_id)
                if current is not None and is_expired(current.state, now_ms, self._expiration_ms):
                    self._states.forget(transactional_id, now_ms)
            except StorageError as error:
                raise_if_closed(error, self._logs)
                _LOGGER.exception("an expired transactional id was not removed transactional_id=%s", transactional_id)

    def _settle(self, transactional_id: str, *, overdue_ms: int | None = None) -> bool:
        """Complete a prepared transaction, or abort an open one. Return True if an open transaction was aborted.

        With the current time as ``overdue_ms``, an open transaction is aborted only after its timeout. Errors are only
        logged, except for the ClosedError of a closed engine. If another thread is ending the transaction, do nothing.
        """
        try:
            with self.ending(transactional_id, waits=False):
                is_aborted = self._fence(transactional_id, overdue_ms)
                self.complete(transactional_id)
        except ConcurrentTransactionsError:
            return False
        except StorageError as error:
            raise_if_closed(error, self._logs)
            _LOGGER.exception("a transaction could not be ended transactional_id=%s", transactional_id)
            return False
        return is_aborted

    def _fence(self, transactional_id: str, overdue_ms: int | None) -> bool:
        """Prepare the abort of an open transaction. Return False if no transaction is open, or it is not overdue."""
        with self.changing(transactional_id):
            current = self._states.find(transactional_id)
            if current is None or current.status != TransactionStatus.ONGOING:
                return False
            if overdue_ms is not None and not is_overdue(current.state, overdue_ms):
                return False
            self._states.store(transactional_id, prepare_fence(current, self._clock.now_ms()))
            return True
