"""The threads of a producer, which deliver the batches that are due."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

from stratalog.client.pending import Accumulator, PendingBatch, RecordMetadata
from stratalog.env.clock import Clock
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import OwnThread
from stratalog.errors import ClosedError, ConfigError
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record

NS_IN_S: Final = 1_000_000_000


class Sender:
    """Queue of a producer's records, and the threads that deliver them in order within each partition. Thread-safe.

    Threads are started on demand, up to ``max_in_flight``, and end with ``close``.

    Args:
        accumulator: the queue; only the sender may use the queue from now on.
        deliver: appends a batch and sets the results of its futures; raises nothing.
        clock: clock that decides when a batch is due.
        max_in_flight: maximum number of batches that are delivered concurrently, at most one for each partition.
        buffer_bytes: ``put`` waits while this many bytes, or more, are not delivered.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        deliver: Callable[[PendingBatch], None],
        clock: Clock,
        *,
        max_in_flight: int,
        buffer_bytes: int,
    ) -> None:
        self._accumulator, self._deliver, self._clock = accumulator, deliver, clock
        self._max_in_flight, self._buffer_bytes = max_in_flight, buffer_bytes
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # a batch may be due
        self._progress = threading.Condition(self._lock)  # a batch is finished
        self._threads: list[OwnThread] = []
        self._idle_count = 0
        self._flush_count = 0
        self._closed = False
        ends_with_fork(self)

    def put(self, name: TopicPartition, record: Record, size_bytes: int) -> Future[RecordMetadata]:
        """Add a record, and return its future. Wait while the buffer is full, except on a thread of this sender.

        Raises:
            ClosedError: after ``close``.
        """
        with self._lock:
            while self._accumulator.size_bytes >= self._buffer_bytes and not self._closed and not self._is_own_thread():
                with self._treat_all_as_due():
                    self._progress.wait()  # until a batch is finished
            if self._closed:
                raise ClosedError("the producer is closed")
            future, changed = self._accumulator.add(name, record, size_bytes, self._clock.monotonic_ns())
            if changed or not self._threads:  # no thread runs if an earlier start has failed
                self._wake()
            return future

    def flush(self) -> None:
        """Wait until all records that were added before are delivered or have failed.

        Raises:
            ConfigError: the caller is a callback of a future of this producer, which would wait for itself.
        """
        self.check_outside()
        with self._lock:
            unfinished = list(self._accumulator.unfinished_batches())
            with self._treat_all_as_due():
                self._progress.wait_for(lambda: all(batch.finished for batch in unfinished))

    def check_outside(self) -> None:
        """Raise ConfigError on a thread of this sender (in a callback of a future), which would wait for itself."""
        if self._is_own_thread():
            raise ConfigError("a callback of a producer's future cannot wait for the producer: wait in another thread")

    @contextlib.contextmanager
    def _treat_all_as_due(self) -> Iterator[None]:
        self._flush_count += 1
        try:
            self._wake()
            yield
        finally:
            self._flush_count -= 1

    def drop_waiting(self) -> list[PendingBatch]:
        """Remove and return the batches that are not in progress.

        The caller must set the results of the futures of the returned batches, and then call ``flush`` to wait for the
        batches in progress.
        """
        with self._lock:
            dropped = self._accumulator.drop_waiting()
            self._progress.notify_all()
        return dropped

    def close(self) -> None:
        """Deliver all waiting records, then end the threads. Idempotent. Raises the errors of ``check_outside``."""
        self.flush()
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._progress.notify_all()
        for thread in self._threads:
            thread.join()

    def _is_own_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def _wake(self) -> None:
        """Wake an idle thread, or start a thread if a batch is due or will be due. The caller holds the lock."""
        due = self._accumulator.due_in_ns(self._clock.monotonic_ns(), everything=self._flush_count > 0)
        if self._idle_count:
            self._work.notify()
        elif due is not None and len(self._threads) < (self._max_in_flight if due == 0 else 1):
            thread = OwnThread(self._run, f"stratalog-producer-{len(self._threads)}")
            try:
                thread.start()
            except RuntimeError:  # the process has too many threads: the running ones deliver all batches
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._deliver(batch)
            finally:
                with self._lock:
                    self._accumulator.finish(batch)
                    self._progress.notify_all()

    def _next(self) -> PendingBatch | None:
        """Wait for the next batch that is due, and return it; None after ``close``."""
        with self._lock:
            while True:
                now = self._clock.monotonic_ns()
                batch = self._accumulator.take(now, everything=self._closed or self._flush_count > 0)
                if batch is not None:
                    self._wake()  # more batches may be due, for another thread
                    return batch
                if self._closed:
                    return None
                due = self._accumulator.due_in_ns(now)
                self._idle_count += 1
                self._work.wait(None if due is None else min(due / NS_IN_S, threading.TIMEOUT_MAX))
                self._idle_count -= 1
