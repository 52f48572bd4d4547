"""State of the current transaction of one producer.

Source: apache/kafka TransactionManager, its states and their transitions.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from stratalog.client.sequences import Sequences
from stratalog.client.transactions.coordinator import TransactionCoordinator
from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortedError,
)
from stratalog.model.names import TopicPartition


class _Stage(StrEnum):
    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    FENCED = "fenced"  # final


_REASONS: Final = {  # why a call is refused in this stage
    _Stage.READY: "no transaction is open: call begin_transaction first",
    _Stage.OPEN: "a transaction is open: commit or abort it before the next one begins",
    _Stage.ENDING: "another call is ending the transaction",
}


class Transaction:
    """Transaction state of one transactional producer. Thread-safe.

    The constructor registers the transactional id. An older producer with the same id is fenced, and its open
    transaction is aborted. Methods raise ProducerFencedError if another producer has the transactional id now.

    Args:
        coordinator: stores the state of all transactional producers.
        timeout_ms: how long a transaction may be open.
        durability: durability of the end of a transaction; None is the engine's setting.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        transactional_id: str,
        timeout_ms: int,
        durability: str | None,
        chance: random.Random,
    ) -> None:
        self._coordinator, self.transactional_id, self._timeout_ms = coordinator, transactional_id, timeout_ms
        self._durability = durability
        self._identity = coordinator.open(transactional_id, timeout_ms)
        self.sequences = Sequences(self._identity, chance)
        self._changed = threading.Condition(threading.RLock())  # protects _stage and _sending_count; held briefly
        self._stage = _Stage.READY
        self._sending_count = 0
        self._partitions: set[TopicPartition] = set()
        self._cause: BaseException | None = None  # error of a lost record: only an abort is possible then
        self._may_be_written = False  # True if a failed record may have been written
        self._has_end_started = False  # True from the call to the coordinator to end the transaction until its success

    @property
    def is_open(self) -> bool:
        """True if a transaction is open, and no thread is ending it."""
        return self._stage is _Stage.OPEN

    def begin(self) -> None:
        """Begin a transaction. Raise InvalidTxnStateError if a transaction is open."""
        with self._changed:
            self._check(_Stage.READY)
            self._stage = _Stage.OPEN

    def check_open(self) -> None:
        """Raise an error unless a transaction is open and can get further records.

        Raises:
            InvalidTxnStateError: no transaction is open, or its end has started.
            TransactionAbortedError: a record could not be appended; the transaction can only be aborted.
        """
        with self._changed:
            self._check(_Stage.OPEN)
            if self._has_end_started:  # in logs with the marker, later records would be outside of it
                raise InvalidTxnStateError(
                    "the end of the transaction has started: commit or abort it again "
                    f"(transactional_id={self.transactional_id})"
                )
            self._check_no_failure()

    @contextlib.contextmanager
    def sending(self, name: TopicPartition) -> Iterator[None]:
        """Return a context manager for sending one record to partition ``name`` in the transaction.

        The partition is added to the transaction first. While the block runs, the end of the transaction waits. Raises
        the errors of ``check_open`` and ``TransactionCoordinator.add_partitions``.
        """
        with self._changed:
            self.check_open()
            self._sending_count += 1
        try:
            if name not in self._partitions:
                with self._fencing():
                    self._coordinator.add_partitions(self.transactional_id, self._identity, [name])
                self._partitions.add(name)
            yield
        finally:
            with self._changed:
                self._sending_count -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def ending(self, *, commit: bool) -> Iterator[None]:
        """Return a context manager that commits the transaction (``commit`` True), or aborts it, after the block.

        The block must send or drop the queued records. If the block or the end of the transaction raises an error, the
        transaction stays open, and another call can end it, unless the producer is fenced. Raises the errors of
        ``TransactionCoordinator.end``, and TransactionAbortedError if ``commit`` is True, and a record of the
        transaction could not be appended.
        """
        with self._changed:
            self._check(_Stage.OPEN)
            if commit:
                self._check_no_failure()
            self._stage = _Stage.ENDING
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._sending_count)
            yield
            if commit:
                self._check_no_failure()
            self._end(commit=commit)
        finally:
            if self._stage is _Stage.ENDING:
                self._stage = _Stage.OPEN

    @property
    def is_committing(self) -> bool:
        """True if a commit failed after it was prepared: the transaction must be committed, and cannot be aborted."""
        with self._fencing():
            return self._has_end_started and self._coordinator.is_committing(self.transactional_id, self._identity)

    def _end(self, *, commit: bool) -> None:
        with self._fencing():
            if self._partitions:
                self._has_end_started = True
                self._coordinator.end(self.transactional_id, self._identity, commit=commit, durability=self._durability)
            if self._may_be_written:
                self._identity = self._coordinator.open(self.transactional_id, self._timeout_ms)
                self.sequences.begin(self._identity)
        self._partitions.clear()
        self._cause, self._may_be_written, self._has_end_started = None, False, False
        self._stage = _Stage.READY

    def note_failure(self, error: BaseException, *, unsure: bool) -> None:
        """Record that an append of the transaction failed. ``unsure`` is True if the records may have been written."""
        self._cause = error
        self._may_be_written = self._may_be_written or unsure
        if isinstance(error, InvalidProducerEpochError):
            self._stage = _Stage.FENCED

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except ProducerFencedError as error:
            self._stage, self._cause = _Stage.FENCED, error
            raise

    def _check(self, stage: _Stage) -> None:
        if self._stage is _Stage.FENCED:
            raise ProducerFencedError(
                f"another producer has taken over transactional_id={self.transactional_id}"
            ) from self._cause
        if self._stage is not stage:
            raise InvalidTxnStateError(f"{_REASONS[self._stage]} (transactional_id={self.transactional_id})")

    def _check_no_failure(self) -> None:
        if self._cause is not None:
            raise TransactionAbortedError(
                f"a record of the transaction was not appended: abort it (transactional_id={self.transactional_id})"
            ) from self._cause
