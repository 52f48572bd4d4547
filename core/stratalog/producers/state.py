"""State of the producers of one log: sequence numbers, duplicates and open transactions.

Source: apache/kafka ProducerStateManager, ProducerStateEntry, ProducerAppendInfo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from stratalog.model.batches import NO_PRODUCER, RecordBatch
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.producers.snapshot import ProducerEntry

REMEMBERED_BATCHES: Final = 5
_SEQUENCES: Final = 1 << 31


class SeenBatch(NamedTuple):
    """One of the latest batches of a producer. ``offset_delta`` is its last minus its first offset."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Sequence number of the first record; meaningless if the batch has none. 0 follows 2147483647."""
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker has ended (Kafka: CompletedTxn).

    ``first_offset`` is the offset of the transaction's first record. ``last_offset`` is the offset of the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerHistory:
    """State of one producer id. ``transaction_first_offset`` is None without an open transaction.

    In the other fields, -1 means "none".
    """

    producer_id: int
    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    transaction_first_offset: int | None = None
    batches: deque[SeenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    def copy(self) -> ProducerHistory:
        """Return an independent copy."""
        return replace(self, batches=self.batches.copy())

    def check(self, batch: RecordBatch, marker: EndMarker | None, *, in_sequence: bool) -> None:
        """Raise the errors of ``ProducerState.check`` if a leader must not append a batch of this producer next."""
        description = f"(producer_id={self.producer_id} producer_epoch={batch.producer_epoch})"
        if batch.producer_epoch < self.epoch:
            raise InvalidProducerEpochError(
                f"a producer with the newer epoch {self.epoch} has already written {description}"
            )
        if batch.is_control:
            if marker is not None and marker.coordinator_epoch < self.coordinator_epoch:
                raise TransactionCoordinatorFencedError(
                    f"coordinator epoch {marker.coordinator_epoch} is stale, because epoch {self.coordinator_epoch} has "
                    f"already written {description}"
                )
            return  # a marker has no sequence number, and is valid without an open transaction
        if in_sequence and batch.base_sequence >= 0 and self.epoch >= 0:
            self._check_sequence(batch, description)
        if self.transaction_first_offset is not None and not batch.is_transactional:
            raise InvalidTxnStateError(f"a transaction is open, but the batch is not transactional {description}")

    def _check_sequence(self, batch: RecordBatch, description: str) -> None:
        last = self.batches[-1].last_sequence if self.batches else -1
        if batch.producer_epoch != self.epoch:
            if batch.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"a new epoch starts at sequence 0, not {batch.base_sequence} {description}"
                )
        elif batch.base_sequence != (last + 1) % _SEQUENCES:
            raise OutOfOrderSequenceError(f"sequence {batch.base_sequence} does not follow {last} {description}")

    def set_epoch(self, epoch: int) -> None:
        """Set the producer epoch; if it changes, forget the latest batches and their sequence numbers."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerState:
    """State of all producers of a log below ``end_offset``. Not thread-safe: the caller holds the log's lock.

    An append checks its batches in order, in a copy of the state (a ``draft``), which each batch updates. After the
    bytes are written, ``adopt`` replaces the state by the draft.

    Attributes:
        producers: all known producers, by their ids.
        end_offset: exclusive end offset of the batches that the state includes.
        open_transactions: maps the first offset of each open transaction to its producer id, in ascending order of the
            offsets.
    """

    def __init__(self) -> None:
        self.producers: dict[int, ProducerHistory] = {}
        self.end_offset = 0
        self._base_producers: Mapping[int, ProducerHistory] = {}  # in a draft: the producers that it was made from
        self.open_transactions: dict[int, int] = {}
        self._unreplicated: dict[
            int, int
        ] = {}  # marker offsets of ended transactions, at or above the HW, by first offset

    # --- drafts ------------------------------------------------------------------------------------------------------

    def draft(self) -> ProducerState:
        """Return a draft for an append: a continuation of this state. Changes of the draft do not change this state."""
        draft = ProducerState()
        draft.end_offset, draft._base_producers = self.end_offset, self.producers
        draft.open_transactions, draft._unreplicated = dict(self.open_transactions), dict(self._unreplicated)
        return draft

    def adopt(self, draft: ProducerState) -> None:
        """Replace this state by ``draft``. This state must not have changed since ``draft()`` returned the draft."""
        self.producers.update(draft.producers)
        self.end_offset, self._unreplicated = draft.end_offset, draft._unreplicated
        self.open_transactions = draft.open_transactions

    def _find(self, producer_id: int) -> ProducerHistory | None:
        history = self.producers.get(producer_id)
        if history is None:
            base_history = self._base_producers.get(producer_id)
            if base_history is not None:
                history = self.producers[producer_id] = base_history.copy()
        return history

    def _get_or_create(self, producer_id: int) -> ProducerHistory:
        return self._find(producer_id) or self.producers.setdefault(producer_id, ProducerHistory(producer_id))

    # --- snapshots ---------------------------------------------------------------------------------------------------

    @classmethod
    def restore(cls, entries: Iterable[ProducerEntry], end_offset: int) -> ProducerState:
        """Return the state in a snapshot, which includes the batches below ``end_offset``."""
        state = cls()
        state.end_offset = end_offset
        for entry in entries:
            producer = ProducerHistory(
                entry.producer_id,
                entry.producer_epoch,
                entry.coordinator_epoch,
                entry.last_timestamp_ms,
                entry.transaction_first_offset if entry.transaction_first_offset >= 0 else None,
            )
            if entry.last_offset >= 0:
                producer.batches.append(
                    SeenBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.last_timestamp_ms)
                )
            state.producers[entry.producer_id] = producer
        with_open_transaction = [
            producer for producer in state.producers.values() if producer.transaction_first_offset is not None
        ]
        with_open_transaction.sort(key=lambda producer: producer.transaction_first_offset or 0)
        state.open_transactions = {
            producer.transaction_first_offset or 0: producer.producer_id for producer in with_open_transaction
        }
        return state

    def entries(self) -> list[ProducerEntry]:
        """Return the entries of a snapshot of this state, with only the last batch of each producer."""
        entries = []
        for producer in self.producers.values():
            last = producer.batches[-1] if producer.batches else SeenBatch(-1, -1, 0, -1)
            open_from = producer.transaction_first_offset
            entries.append(
                ProducerEntry(
                    producer.producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    producer.last_timestamp_ms,
                    producer.coordinator_epoch,
                    -1 if open_from is None else open_from,
                )
            )
        return entries

    # --- transactions ------------------------------------------------------------------------------------------------

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction that bounds the last stable offset; None if there is none.

        Such a transaction is open, or its marker is not below the high watermark. The call forgets ended transactions
        whose markers are below the high watermark.
        """
        if not self.open_transactions and not self._unreplicated:
            return None
        self._unreplicated = {first: marker for first, marker in self._unreplicated.items() if marker >= high_watermark}
        return min([*islice(self.open_transactions, 1), *self._unreplicated], default=None)

    def last_stable_at(self, ended: CompletedTransaction) -> int:
        """Return the last stable offset to store in the transaction index with the aborted transaction ``ended``.

        That is the first offset of the oldest open transaction of another producer, or the offset after the marker if
        there is none.
        """
        first_offsets = (
            first for first, producer_id in self.open_transactions.items() if producer_id != ended.producer_id
        )
        return next(first_offsets, ended.last_offset + 1)

    def transaction_ended_by(self, batch: RecordBatch, marker: EndMarker) -> CompletedTransaction | None:
        """Return the transaction that ``marker`` in ``batch`` ends; None if the producer has no open transaction.

        The state is not changed.
        """
        producer = self._find(batch.producer_id)
        if producer is None or producer.transaction_first_offset is None:
            return None
        aborted = marker.kind is ControlType.ABORT
        return CompletedTransaction(batch.producer_id, producer.transaction_first_offset, batch.last_offset, aborted)

    # --- appends -----------------------------------------------------------------------------------------------------

    def find_duplicate(self, batch: RecordBatch) -> SeenBatch | None:
        """Return the producer's recent batch with the same epoch and sequence numbers as ``batch``, or None.

        The last five batches of the producer are compared. The result is None if ``batch`` has no sequence numbers, or
        if the producer is unknown.
        """
        producer = self.producers.get(batch.producer_id)
        if producer is None or batch.producer_epoch != producer.epoch or batch.base_sequence < 0:
            return None
        last_sequence = _last_sequence(batch)
        for recent_batch in producer.batches:
            if (recent_batch.first_sequence, recent_batch.last_sequence) == (batch.base_sequence, last_sequence):
                return recent_batch
        return None

    def check(self, batch: RecordBatch, marker: EndMarker | None = None, *, in_sequence: bool = True) -> None:
        """Raise an error if a leader must not append a batch next; ``marker`` is the content of a control batch.

        Sequence numbers are not checked if ``in_sequence`` is False, or if the batch has none, for example a batch of a
        coordinator. A producer without a state is new or was silent for too long. It may begin at any sequence number.

        Raises:
            InvalidProducerEpochError: a newer epoch of the producer has written, or the epoch is negative.
            TransactionCoordinatorFencedError: a newer coordinator has ended a transaction of the producer.
            OutOfOrderSequenceError: the sequence number does not follow the last one.
            InvalidTxnStateError: the batch is not transactional, and the producer has an open transaction.
        """
        if batch.producer_id <= NO_PRODUCER:
            return
        if batch.producer_epoch < 0:
            raise InvalidProducerEpochError(f"producer {batch.producer_id} sent the epoch {batch.producer_epoch}")
        producer = self._find(batch.producer_id)
        if producer is not None:
            producer.check(batch, marker, in_sequence=in_sequence)

    def update(self, batch: RecordBatch, marker: EndMarker | None = None) -> CompletedTransaction | None:
        """Add a written or replayed batch to the state; ``marker`` is the content of a control batch.

        Return the transaction that the batch ended; None if it ended none.
        """
        ended = None
        if batch.producer_id > NO_PRODUCER:
            if not batch.is_control:
                self._add_data(batch)
            elif marker is not None:
                ended = self._add_marker(batch, marker)
        self.end_offset = batch.next_offset
        return ended

    def forget_silent(self, before_ms: int) -> int:
        """Forget producers whose last batch has the timestamp ``before_ms`` or an older one; return their number.

        Producers with an open transaction are kept.

        Source: apache/kafka ProducerStateManager.isProducerExpired, removeExpiredProducers, loadFromSnapshot.
        """
        silent = [
            producer.producer_id
            for producer in self.producers.values()
            if producer.transaction_first_offset is None and producer.last_timestamp_ms <= before_ms
        ]
        for producer_id in silent:
            del self.producers[producer_id]
        return len(silent)

    def _add_data(self, batch: RecordBatch) -> None:
        producer = self._get_or_create(batch.producer_id)
        producer.set_epoch(batch.producer_epoch)
        delta = batch.last_offset - batch.base_offset
        producer.batches.append(SeenBatch(_last_sequence(batch), batch.last_offset, delta, batch.max_timestamp_ms))
        producer.last_timestamp_ms = batch.max_timestamp_ms
        if batch.is_transactional and producer.transaction_first_offset is None:
            producer.transaction_first_offset = batch.base_offset
            self.open_transactions[batch.base_offset] = batch.producer_id

    def _add_marker(self, batch: RecordBatch, marker: EndMarker) -> CompletedTransaction | None:
        producer = self._get_or_create(batch.producer_id)
        producer.set_epoch(batch.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = batch.max_timestamp_ms
        ended = self.transaction_ended_by(batch, marker)
        if ended is not None:
            self._unreplicated[ended.first_offset] = batch.last_offset
            self.open_transactions.pop(ended.first_offset, None)
            producer.transaction_first_offset = None
        return ended


def _last_sequence(batch: RecordBatch) -> int:
    if batch.base_sequence < 0:
        return -1
    return (batch.base_sequence + batch.last_offset - batch.base_offset) % _SEQUENCES
