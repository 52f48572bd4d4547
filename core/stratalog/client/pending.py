"""Records that wait to be appended, as batches by partition. No locks, threads or clocks: the owner has them.

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
    """Where a record went. ``timestamp_ms`` is the one that is stored."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Records of one partition, each with its future.

    ``created_ns`` is of a monotonic clock; ``finished`` says that every future has its result.
    """

    name: TopicPartition
    created_ns: int
    records: list[Record] = field(default_factory=list)
    futures: list[Future[RecordMetadata]] = field(default_factory=list)
    size_bytes: int = 0
    finished: bool = False


class Accumulator:
    """Batches that fill up, and batches that are due.

    A batch is due when it is full or ``linger_ns`` old. Of each partition one batch is out at a time, so that records
    keep their order; what comes meanwhile joins the next batch.

    Args:
        batch_size_bytes: of a full batch.
        linger_ns: how long a batch waits for more.
    """

    def __init__(self, batch_size_bytes: int, linger_ns: int) -> None:
        self._batch_size_bytes, self._linger_ns = batch_size_bytes, linger_ns
        self._open: dict[TopicPartition, PendingBatch] = {}  # oldest first
        self._full: dict[TopicPartition, deque[PendingBatch]] = {}
        self._ready: deque[TopicPartition] = deque()  # have a full batch, and none out
        self._out: dict[TopicPartition, PendingBatch] = {}
        self.size_bytes = 0  # of all that is not finished

    def add(
        self, name: TopicPartition, record: Record, size_bytes: int, now_ns: int
    ) -> tuple[Future[RecordMetadata], bool]:
        """Take a record in.

        Returns:
            Its future, which cannot be cancelled, and whether ``due_in_ns`` may have changed.
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
        if not waiting and batch.name not in self._out:
            self._ready.append(batch.name)
        waiting.append(batch)

    def take(self, now_ns: int, *, everything: bool = False) -> PendingBatch | None:
        """The next batch that is due (``everything``: any), which then is out until ``finish``; None if there is none."""
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
        self._out[batch.name] = batch
        return batch

    def _next_open(self, now_ns: int, *, everything: bool = False) -> PendingBatch | None:
        """The oldest batch that is not full, but due."""
        for name, batch in self._open.items():
            if not everything and now_ns - batch.created_ns < self._linger_ns:
                break  # the others are younger
            if name not in self._out and name not in self._full:
                return batch
        return None

    def due_in_ns(self, now_ns: int, *, everything: bool = False) -> int | None:
        """How long until ``take`` finds something; None if it will not by time alone."""
        if self._ready:
            return 0
        for name, batch in self._open.items():
            if name not in self._out:
                return 0 if everything else max(batch.created_ns + self._linger_ns - now_ns, 0)
        return None

    def finish(self, batch: PendingBatch) -> None:
        """Take note that a batch is no longer out."""
        del self._out[batch.name]
        self._forget(batch)
        if batch.name in self._full:
            self._ready.append(batch.name)

    def _forget(self, batch: PendingBatch) -> None:
        batch.finished = True
        self.size_bytes -= batch.size_bytes

    def unfinished(self) -> Iterator[PendingBatch]:
        """All batches, those that are out as well."""
        yield from self._out.values()
        for waiting in self._full.values():
            yield from waiting
        yield from self._open.values()

    def drop_waiting(self) -> list[PendingBatch]:
        """Give up every batch that is not out; their futures are the caller's to end."""
        dropped = [batch for batch in self.unfinished() if batch is not self._out.get(batch.name)]
        self._open.clear()
        self._full.clear()
        self._ready.clear()
        for batch in dropped:
            self._forget(batch)
        return dropped
