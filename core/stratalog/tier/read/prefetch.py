"""Prefetching for sequential readers: ranges of objects (spans) are fetched before readers request them.

Sequential readers are detected by their requests: a reader that requests the span after its last span begins a
*stream*, even if the next span is in another object. Each further span doubles the number of prefetched spans, up to
the limits of threads and memory.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import Worker
from stratalog.errors import StorageError

_LOGGER: Final = logging.getLogger(__name__)
_PAUSE_READS: Final = 1024  # reads by others after which a stream is forgotten
_STALE_STEPS: Final = 256  # steps of other streams after which a stream's prefetched spans may be dropped


class ObjectRange(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


class Pool:
    """A limited number of threads that begin jobs in submission order. Threads start when needed. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._workers: list[Worker] = []  # made when needed; under _lock
        self._idle: list[Worker] = []  # under _lock
        self._jobs: deque[Callable[[], None]] = deque()  # under _lock
        self._lock = threading.Lock()
        ends_with_fork(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` on a thread of the pool as soon as one is free; return at once.

        If the system cannot start a thread, the job waits for a running thread or for the next call.
        """
        with self._lock:
            self._jobs.append(job)
            if not self._idle and len(self._workers) < self._threads:
                self._idle.append(Worker(f"{self._name}-{len(self._workers)}", limit=0))
                self._workers += self._idle
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            return
        try:
            worker.submit(lambda: self._run(worker))
        except RuntimeError as error:
            with self._lock:
                self._idle.append(worker)
            _LOGGER.debug("a thread for reading ahead was not started: %s", error)

    def close(self) -> None:
        """Drop the jobs that have not begun and all later jobs, and wait for the running ones. Idempotent."""
        with self._lock:
            self._jobs.clear()
            self._threads = 0
            workers = self._workers.copy()
        for worker in workers:
            worker.close()

    def _run(self, worker: Worker) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._idle.append(worker)
                    return
                job = self._jobs.popleft()
            job()


@dataclass(slots=True, eq=False)
class _Stream:
    """One sequential reader. ``ahead`` yields the spans after the prefetched ones; None if they are not known yet."""

    step: int
    read: int = 0  # number of the stream's last read
    is_sequential: bool = False  # True after its second read
    ahead: Iterator[ObjectRange] | None = None
    window: int = 1
    requested: deque[ObjectRange] = field(default_factory=deque)  # prefetched, and not yet passed by the reader


@dataclass(slots=True)
class _Prefetch:
    """A span that is being fetched, or that was fetched and not used yet."""

    stream: _Stream
    future: Future[bytes] = field(default_factory=Future)


class Prefetcher:
    """Fetches ranges of objects (spans) before sequential readers request them. Thread-safe. Call ``close`` at the end.

    Args:
        load: fetches one span, on a thread of the prefetcher. Its errors are dropped: the reader's own request raises
            them.
        is_cached: returns True if a span is already cached; called without a lock.
        limit_bytes: largest size of all prefetched and unused spans; 0 disables prefetching.
        threads: the largest number of spans to fetch at the same time.

    Attributes:
        readers: the number of sequential readers. A reader is counted from its second read on, until 1,024 reads of others
            have followed its last read.
    """

    def __init__(
        self,
        load: Callable[[ObjectRange], bytes],
        is_cached: Callable[[ObjectRange], bool],
        limit_bytes: int,
        threads: int,
    ) -> None:
        self._load, self._is_cached = load, is_cached
        self._limit_bytes, self._max_window = limit_bytes, 2 * threads
        self._pool = Pool(threads, "stratalog-tier-read")
        self._lock = threading.Lock()
        self._prefetches: OrderedDict[ObjectRange, _Prefetch] = OrderedDict()  # oldest first; under _lock
        self._held_bytes = 0  # under _lock, as are all below
        self._stream_by_id: OrderedDict[Hashable, _Stream] = OrderedDict()  # by the id of the next span, oldest first
        self._steps = self._reads = 0
        self._closed = False
        self.readers = 0  # read without _lock: a wrong value does little harm
        ends_with_fork(self)

    def note_read(
        self,
        span_ids: Collection[Hashable],
        following: Hashable,
        current: ObjectRange,
        ahead: Callable[[], Iterator[ObjectRange]],
    ) -> None:
        """Record that a reader has reached a range of an object (a span), and prefetch if it reads sequentially.

        Args:
            span_ids: ids of this span; if one of them was ``following`` in an earlier call, the reader is sequential.
            following: an id of the reader's next span; no earlier span of the reader has this id.
            current: this span.
            ahead: returns the spans after this one; called and consumed only if the reader is sequential.
        """
        with self._lock:
            self._reads += 1
            if following in self._stream_by_id and not any(name in self._stream_by_id for name in span_ids):
                self._count_read(self._stream_by_id[following], following, is_sequential=True)
                return  # the same span again
            self._steps += 1
            stream = next((self._stream_by_id.pop(name) for name in span_ids if name in self._stream_by_id), None)
            is_new = stream is None
            stream = stream or _Stream(self._steps)
            stream.step = self._steps
            replaced = self._stream_by_id.get(following)  # another reader has reached the same span
            self.readers -= replaced is not None and replaced.is_sequential
            self._stream_by_id[following] = stream
            self._count_read(stream, following, is_sequential=not is_new)
        if not is_new and self._limit_bytes:
            self._prefetch_more(stream, current, ahead)

    def expects(self, span_id: Hashable) -> bool:
        """Return True if ``span_id`` was ``following`` in an earlier call of ``note_read``: its reader is sequential."""
        with self._lock:
            return span_id in self._stream_by_id

    def take(self, span: ObjectRange) -> bytes | None:
        """Return the prefetched bytes of ``span`` and drop them; wait if the span is being fetched.

        Return None if the span was not prefetched, if its fetch failed, or if the fetch has not begun. A fetch that has
        not begun is cancelled.
        """
        with self._lock:
            prefetch = self._prefetches.get(span)
            if prefetch is None or prefetch.future.cancel():  # not started: the reader's own request is as fast
                if prefetch is not None:
                    self._release(span)
                return None
        try:
            return prefetch.future.result()
        except Exception:  # noqa: BLE001 - the reader's own request raises the error
            return None
        finally:
            with self._lock:
                if self._prefetches.get(span) is prefetch:
                    self._release(span)

    def holds(self, span: ObjectRange) -> bool:
        """Return True if a prefetch of ``span`` was requested, and its result was neither taken (``take``) nor dropped.

        The prefetch may be in progress, or may have failed.
        """
        with self._lock:
            return span in self._prefetches

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are being prefetched, or were prefetched and not used yet."""
        with self._lock:
            return self._held_bytes

    def drop(self, keys: Collection[str]) -> None:
        """Drop the prefetched bytes of the objects with these keys."""
        with self._lock:
            for span in [span for span in self._prefetches if span.key in keys]:
                self._release(span)

    def close(self) -> None:
        """Start no further prefetch, and wait for those in progress. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._stream_by_id.clear()
            self.readers = 0
            for span in list(self._prefetches):
                self._release(span)
        self._pool.close()

    def _prefetch_more(self, stream: _Stream, current: ObjectRange, ahead: Callable[[], Iterator[ObjectRange]]) -> None:
        """Prefetch as many spans as the stream's window allows. Only the stream's reader calls this method."""
        with self._lock:
            if current in stream.requested:
                while stream.requested.popleft() != current:
                    pass
            else:
                stream.ahead = None
                stream.requested.clear()
            spans, stream.ahead = stream.ahead, None
            stream.window = min(2 * stream.window, self._max_window)
            span_count = stream.window - len(stream.requested)
        try:
            if spans is None:
                spans = ahead()
            for _ in range(span_count):
                span = next(spans, None)
                if span is None:
                    break
                if not self._request(stream, span):
                    spans = itertools.chain((span,), spans)
                    break
        except (StorageError, OSError) as error:  # the list of segments cannot be read: the reader's own request raises
            _LOGGER.debug("reading ahead failed: %s", error)
            return
        with self._lock:
            stream.ahead = spans

    def _request(self, stream: _Stream, span: ObjectRange) -> bool:
        size_bytes = span.end - span.start
        is_cached = self._is_cached(span)
        with self._lock:
            if self._closed or size_bytes > self._limit_bytes:
                return False
            if span in self._prefetches or is_cached:
                stream.requested.append(span)
                return True
            if not self._make_room(size_bytes):
                return False
            prefetch = self._prefetches[span] = _Prefetch(stream)
            self._held_bytes += size_bytes
            stream.requested.append(span)
        self._pool.submit(lambda: self._fetch(span, prefetch))
        return True

    def _fetch(self, span: ObjectRange, prefetch: _Prefetch) -> None:
        if not prefetch.future.set_running_or_notify_cancel():
            return
        try:
            prefetch.future.set_result(self._load(span))
        except BaseException as error:  # noqa: BLE001 - the waiting reader must get every error
            prefetch.future.set_exception(error)

    # --- all under _lock ---------------------------------------------------------------------------------------------

    def _count_read(self, stream: _Stream, following: Hashable, *, is_sequential: bool) -> None:
        """Record a read of a stream, and forget the streams whose last read was too long ago."""
        self.readers += is_sequential - stream.is_sequential
        stream.read, stream.is_sequential = self._reads, is_sequential
        self._stream_by_id.move_to_end(following)
        while self._reads - next(iter(self._stream_by_id.values())).read > _PAUSE_READS:
            self._forget_stream(self._stream_by_id.popitem(last=False)[1])

    def _make_room(self, size_bytes: int) -> bool:
        """Drop prefetched spans of streams that are no longer read; return True if there is room."""
        if self._held_bytes + size_bytes > self._limit_bytes:
            for span, prefetch in list(self._prefetches.items()):
                if self._steps - prefetch.stream.step > _STALE_STEPS:
                    self._release(span)
        return self._held_bytes + size_bytes <= self._limit_bytes

    def _forget_stream(self, stream: _Stream) -> None:
        self.readers -= stream.is_sequential
        for span in stream.requested:
            prefetch = self._prefetches.get(span)
            if prefetch is not None and prefetch.stream is stream:
                self._release(span)

    def _release(self, span: ObjectRange) -> None:
        prefetch = self._prefetches.pop(span)
        prefetch.future.cancel()
        self._held_bytes -= span.end - span.start
