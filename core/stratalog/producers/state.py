"""The producers of one log: sequences, duplicates, transactions under way.

Source: apache/kafka ProducerStateManager, ProducerStateEntry, ProducerAppendInfo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stratalog.errors import InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError
from stratalog.model.batches import NO_PRODUCER, RecordBatch
from stratalog.model.control import ControlType, EndMarker
from stratalog.producers.snapshot import ProducerEntry
from stratalog.producers.transactions import CompletedTransaction

REMEMBERED_BATCHES: Final = 5
_SEQUENCES: Final = 1 << 31


class SeenBatch(NamedTuple):
    """One of the latest batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Of its first record; sequences wrap from 2147483647 to 0."""
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        """Of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class Producer:
    """One producer id. ``transaction_first_offset`` is None without an open transaction."""

    producer_id: int
    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    transaction_first_offset: int | None = None
    batches: deque[SeenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class ProducerState:
    """All producers of a log below ``end_offset``. Changed under the log's lock only."""

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.end_offset = 0
        self._unreplicated: dict[int, int] = {}  # first offset of an ended transaction: marker at or above the HW

    # --- snapshots ---------------------------------------------------------------------------------------------------

    @classmethod
    def restored(cls, entries: Iterable[ProducerEntry], end_offset: int) -> ProducerState:
        """The state that a snapshot holds."""
        state = cls()
        state.end_offset = end_offset
        for entry in entries:
            producer = Producer(
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
        return state

    def entries(self) -> list[ProducerEntry]:
        """What a snapshot of this state holds: of each producer's batches only the last."""
        listed = []
        for producer in self.producers.values():
            last = producer.batches[-1] if producer.batches else SeenBatch(-1, -1, 0, -1)
            open_from = producer.transaction_first_offset
            listed.append(
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
        return listed

    # --- transactions ------------------------------------------------------------------------------------------------

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open, or whose marker is not below the high watermark."""
        self._unreplicated = {first: marker for first, marker in self._unreplicated.items() if marker >= high_watermark}
        open_from = [
            p.transaction_first_offset for p in self.producers.values() if p.transaction_first_offset is not None
        ]
        return min([*open_from, *self._unreplicated], default=None)

    def last_stable_at(self, ended: CompletedTransaction) -> int:
        """The last stable offset that the index entry of an aborted transaction stores."""
        others = [
            producer.transaction_first_offset
            for producer in self.producers.values()
            if producer.transaction_first_offset is not None and producer.producer_id != ended.producer_id
        ]
        return min(others, default=ended.last_offset + 1)

    def ended_by(self, batch: RecordBatch, marker: EndMarker) -> CompletedTransaction | None:
        """The transaction that a marker ends, or would end; None if the producer has none open."""
        producer = self.producers.get(batch.producer_id)
        if producer is None or producer.transaction_first_offset is None:
            return None
        aborted = marker.kind is ControlType.ABORT
        return CompletedTransaction(batch.producer_id, producer.transaction_first_offset, batch.last_offset, aborted)

    # --- appends -----------------------------------------------------------------------------------------------------

    def duplicate_of(self, batch: RecordBatch) -> SeenBatch | None:
        """The remembered batch with the same epoch and sequences, if there is one: a retry to be answered, not written."""
        producer = self.producers.get(batch.producer_id)
        if producer is None or batch.producer_epoch != producer.epoch or batch.base_sequence < 0:
            return None
        last_sequence = _last_sequence(batch)
        for seen in producer.batches:
            if (seen.first_sequence, seen.last_sequence) == (batch.base_sequence, last_sequence):
                return seen
        return None

    def check(self, batch: RecordBatch) -> None:
        """Whether a client's data batch, or a coordinator's marker, may follow.

        Raises:
            InvalidProducerEpochError: a newer epoch has written.
            OutOfOrderSequenceError: the sequence does not continue.
            InvalidTxnStateError: a plain batch inside an open transaction.
        """
        if batch.producer_id == NO_PRODUCER:
            return
        producer = self.producers.get(batch.producer_id)
        if producer is None:
            return
        who = f"producer_id={batch.producer_id} producer_epoch={batch.producer_epoch}"
        if batch.producer_epoch < producer.epoch:
            raise InvalidProducerEpochError(f"epoch {producer.epoch} has written already {who}")
        if batch.is_control:
            return  # without a sequence, and whether or not there is a transaction to end
        last = producer.batches[-1].last_sequence if producer.batches else -1
        if batch.producer_epoch != producer.epoch:
            if batch.base_sequence != 0 and producer.epoch != -1:
                raise OutOfOrderSequenceError(f"a new epoch starts at sequence 0, not {batch.base_sequence} {who}")
        elif batch.base_sequence != (last + 1) % _SEQUENCES:
            raise OutOfOrderSequenceError(f"sequence {batch.base_sequence} does not follow {last} {who}")
        if producer.transaction_first_offset is not None and not batch.is_transactional:
            raise InvalidTxnStateError(f"a plain batch inside an open transaction {who}")

    def update(self, batch: RecordBatch, marker: EndMarker | None = None) -> CompletedTransaction | None:
        """Take note of a batch that was written, or is replayed; ``marker`` is what a control batch holds.

        Returns:
            The transaction that it ended, if any.
        """
        ended = None
        if batch.producer_id != NO_PRODUCER:
            if not batch.is_control:
                self._data(batch)
            elif marker is not None:
                ended = self._marker(batch, marker)
        self.end_offset = batch.next_offset
        return ended

    def _data(self, batch: RecordBatch) -> None:
        producer = self.producers.setdefault(batch.producer_id, Producer(batch.producer_id))
        self._set_epoch(producer, batch.producer_epoch)
        delta = batch.last_offset - batch.base_offset
        producer.batches.append(SeenBatch(_last_sequence(batch), batch.last_offset, delta, batch.max_timestamp_ms))
        producer.last_timestamp_ms = batch.max_timestamp_ms
        if batch.is_transactional and producer.transaction_first_offset is None:
            producer.transaction_first_offset = batch.base_offset

    def _marker(self, batch: RecordBatch, marker: EndMarker) -> CompletedTransaction | None:
        producer = self.producers.setdefault(batch.producer_id, Producer(batch.producer_id))
        self._set_epoch(producer, batch.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = batch.max_timestamp_ms
        ended = self.ended_by(batch, marker)
        if ended is not None:
            self._unreplicated[ended.first_offset] = batch.last_offset
            producer.transaction_first_offset = None
        return ended

    @staticmethod
    def _set_epoch(producer: Producer, epoch: int) -> None:
        if epoch != producer.epoch:
            producer.batches.clear()
            producer.epoch = epoch


def _last_sequence(batch: RecordBatch) -> int:
    if batch.base_sequence < 0:
        return -1
    return (batch.base_sequence + batch.last_offset - batch.base_offset) % _SEQUENCES
