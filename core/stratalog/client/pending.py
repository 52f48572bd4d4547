"""Records of a producer that wait to be appended, in batches by partition. ``Sender`` supplies locks, threads and time.

Source: apache/kafka RecordAccumulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.model.names import TopicPartition
from stratalog.model.records import Record


class RecordMetadata(NamedTuple):
    """Topic, partition, offset and timestamp (ms since 1970) of an appended record.

    With ``message.timestamp.type=LogAppendTime``, the timestamp is the time of the append.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Records of one partition, each with its future.

    ``created_ns`` is a monotonic time. ``finished`` is True after the batch was delivered (with or without an error) or
    dropped.
    """

    name: TopicPartition
    created_ns: int
    records: list[Record] = field(default_factory=list)
    futures: list[Future[RecordMetadata]] = field(default_factory=list)
    size_bytes: int = 0
    finished: bool = False


class Accumulator:
    """Queue of a producer's batches by partition: batches being filled, full batches, and batches in progress.

    A batch is due when it is full or ``linger_ns`` old. To keep the order of records, only one batch of a partition is
    in progress at a time. Records that are added meanwhile are put into the next batch of the partition.

    Args:
        batch_size_bytes: size of a full batch.
        linger_ns: how long a batch waits for more records.
    """

    def __init__(self, batch_size_bytes: int, linger_ns: int) -> None:
        self._batch_size_bytes, self._linger_ns = batch_size_bytes, linger_ns
        self._open: dict[TopicPartition, PendingBatch] = {}  # oldest first
        self._full: dict[TopicPartition, deque[PendingBatch]] = {}
        self._ready: deque[TopicPartition] = deque()  # partitions with a full batch, and no batch in progress
        self._in_delivery: dict[TopicPartition, PendingBatch] = {}
        self.size_bytes = 0  # total size of all batches that are not finished

    def add(
        self, name: TopicPartition, record: Record, size_bytes: int, now_ns: int
    ) -> tuple[Future[RecordMetadata], bool]:
        """Add a record.

        Returns:
            The record's future, which cannot be cancelled, and True if the result of ``due_in_ns`` may have changed.
        """
        batch = self._open.get(name)
        changed = batch is None
        if batch is not None and batch.size_bytes + size_bytes > self._batch_size_bytes:
            self._close(batch)
            batch, changed = None, True
        if batch is None:
            batch = self._open[name] = PendingBatch(name, now_ns)
        future: Future[RecordMetadata] = Future()
        future.set_running_or_notify_cancel()
        batch.records.append(record)
        batch.futures.append(future)
        batch.size_bytes += size_bytes
        self.size_bytes += size_bytes
        if batch.size_bytes >= self._batch_size_bytes:
            self._close(batch)
            changed = True
        return future, changed

    def _close(self, batch: PendingBatch) -> None:
        del self._open[batch.name]
        waiting = self._full.setdefault(batch.name, deque())
        if not waiting and batch.name not in self._in_delivery:
            self._ready.append(batch.name)
        waiting.append(batch)

    def take(self, now_ns: int, *, everything: bool = False) -> PendingBatch | None:
        """Return the next batch that is due, or None. The batch is in progress until the call of ``finish``.

        ``everything`` is True to treat all batches as due.
        """
        batch = self._next_open(now_ns, everything=everything)
        if self._ready:
            full = self._full[self._ready[0]]
            if batch is None or full[0].created_ns <= batch.created_ns:
                batch = full.popleft()
                self._ready.popleft()
                if not full:
                    del self._full[batch.name]
        if batch is None:
            return None
        if self._open.get(batch.name) is batch:
            del self._open[batch.name]
        self._in_delivery[batch.name] = batch
        return batch

    def _next_open(self, now_ns: int, *, everything: bool = False) -> PendingBatch | None:
        """Return the oldest batch that is not full, but old enough to be delivered; None if there is none.

        Batches are skipped if their partition has a full batch or a batch in progress. With ``everything``, each batch
        is old enough.
        """
        for name, batch in self._open.items():
            if not everything and now_ns - batch.created_ns < self._linger_ns:
                break  # the remaining batches are younger
            if name not in self._in_delivery and name not in self._full:
                return batch
        return None

    def due_in_ns(self, now_ns: int, *, everything: bool = False) -> int | None:
        """Return the time (ns) until a batch is due; None if no batch becomes due without ``add`` or ``finish``."""
        if self._ready:
            return 0
        for name, batch in self._open.items():
            if name not in self._in_delivery:
                return 0 if everything else max(batch.created_ns + self._linger_ns - now_ns, 0)
        return None

    def finish(self, batch: PendingBatch) -> None:
        """Mark a batch as finished after its delivery. ``take`` can then return the next batch of the partition."""
        del self._in_delivery[batch.name]
        self._forget(batch)
        if batch.name in self._full:
            self._ready.append(batch.name)

    def _forget(self, batch: PendingBatch) -> None:
        batch.finished = True
        self.size_bytes -= batch.size_bytes

    def unfinished_batches(self) -> Iterator[PendingBatch]:
        """Iterate over all batches that are not finished: in progress, full, and being filled."""
        yield from self._in_delivery.values()
        for waiting in self._full.values():
            yield from waiting
        yield from self._open.values()

    def drop_waiting(self) -> list[PendingBatch]:
        """Remove and return all batches that are not in progress. The caller must set the results of their futures."""
        dropped = [batch for batch in self.unfinished_batches() if batch is not self._in_delivery.get(batch.name)]
        self._open.clear()
        self._full.clear()
        self._ready.clear()
        for batch in dropped:
            self._forget(batch)
        return dropped
