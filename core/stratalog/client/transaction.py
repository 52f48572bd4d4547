"""The transactions of one producer, one after the other.

Source: apache/kafka TransactionManager, its states and who may go from which to which.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from enum import StrEnum

from stratalog.client.coordinator import Coordinator
from stratalog.client.sequences import Sequences
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
    FENCED = "fenced"  # nothing is left


class Transaction:
    """Where a transactional producer stands. Thread-safe.

    Making it opens the transactional id: a transaction that an older producer left open is aborted, and the older
    producer fenced.

    Args:
        coordinator: keeps the state of all transactional producers.
        transactional_id: whose.
        timeout_ms: how long a transaction may be open.
        durability: of its end; None is the engine's setting.
        chance: of the engine.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        transactional_id: str,
        timeout_ms: int,
        durability: str | None,
        chance: random.Random,
    ) -> None:
        self._coordinator, self._id, self._timeout_ms = coordinator, transactional_id, timeout_ms
        self._durability = durability
        self._identity = coordinator.open(transactional_id, timeout_ms)
        self.sequences = Sequences(self._identity, chance)
        self._changed = threading.Condition(threading.RLock())  # over _stage and _sending; held for moments only
        self._stage = _Stage.READY
        self._sending = 0
        self._partitions: set[TopicPartition] = set()
        self._cause: BaseException | None = None  # why a record is missing: an abort alone is left
        self._unsure = False
        self._ends = False  # the coordinator was asked to end it, and did not say that it has

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that an abort would end."""
        return self._stage is _Stage.OPEN

    def begin(self) -> None:
        """Begin; InvalidTxnStateError if one is open."""
        with self._changed:
            self._check(_Stage.READY)
            self._stage = _Stage.OPEN

    def check_open(self) -> None:
        """Raise InvalidTxnStateError unless a transaction is open, TransactionAbortedError if it cannot be committed."""
        with self._changed:
            self._check(_Stage.OPEN)
            if self._ends:  # its markers may be in some logs: what came behind them would be in no transaction
                raise InvalidTxnStateError(f"the transaction is about to end: end it again transactional_id={self._id}")
            self._check_whole()

    @contextlib.contextmanager
    def sending(self, name: TopicPartition) -> Iterator[None]:
        """While a record is handed over that is part of the transaction; errors as ``check_open``."""
        with self._changed:
            self.check_open()
            self._sending += 1
        try:
            if name not in self._partitions:
                with self._fencing():
                    self._coordinator.add_partitions(self._id, self._identity, [name])
                self._partitions.add(name)
            yield
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def ending(self, *, commit: bool) -> Iterator[None]:
        """End the transaction, after what the caller does inside: get the records delivered, or drop them.

        If something fails the transaction stays open, and ending it can be tried again.
        """
        with self._changed:
            self._check(_Stage.OPEN)
            if commit:
                self._check_whole()
            self._stage = _Stage.ENDING
            self._changed.wait_for(lambda: not self._sending)
        try:
            yield
            if commit:
                self._check_whole()
            self._end(commit=commit)
        finally:
            if self._stage is _Stage.ENDING:
                self._stage = _Stage.OPEN

    @property
    def is_committing(self) -> bool:
        """Whether a commit failed when it was settled already: then it can be completed, and not be aborted any more."""
        with self._fencing():
            return self._ends and self._coordinator.is_committing(self._id, self._identity)

    def _end(self, *, commit: bool) -> None:
        with self._fencing():
            if self._partitions:
                self._ends = True
                self._coordinator.end(self._id, self._identity, commit=commit, durability=self._durability)
            if self._unsure:
                self._identity = self._coordinator.open(self._id, self._timeout_ms)
                self.sequences.begin(self._identity)
        self._partitions.clear()
        self._cause, self._unsure, self._ends = None, False, False
        self._stage = _Stage.READY

    def failed(self, error: BaseException, *, unsure: bool) -> None:
        """A record was not appended; if ``unsure`` nobody knows."""
        self._cause = error
        self._unsure = self._unsure or unsure
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
            raise ProducerFencedError(f"another producer has taken over transactional_id={self._id}") from self._cause
        if self._stage is not stage:
            raise InvalidTxnStateError(f"the transaction is {self._stage}, not {stage} transactional_id={self._id}")

    def _check_whole(self) -> None:
        if self._cause is not None:
            raise TransactionAbortedError(
                f"a record of the transaction was not appended: abort it transactional_id={self._id}"
            ) from self._cause
