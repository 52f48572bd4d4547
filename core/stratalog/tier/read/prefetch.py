"""Reading ahead for those who read on and on: spans of objects are fetched before they are asked for.

Who reads on is seen from what is asked: a reader that asks for the span behind the one it has begun a *stream*, across
objects, too. With each further span twice as many are asked for ahead, up to what threads and memory allow.
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
_STREAMS: Final = 64  # remembered at a time
_STALE_STEPS: Final = 256  # steps of other streams after which what was read ahead for one may go


class Span(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


class Pool:
    """A bounded number of threads that run jobs in the order of their coming. Thread-safe; none runs before a job comes."""

    def __init__(self, threads: int, name: str) -> None:
        self._idle = [Worker(f"{name}-{number}", limit=0) for number in range(threads)]  # under _lock
        self._workers = tuple(self._idle)
        self._jobs: deque[Callable[[], None]] = deque()  # under _lock
        self._lock = threading.Lock()
        ends_with_fork(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` when a thread is free."""
        with self._lock:
            self._jobs.append(job)
            worker = self._idle.pop() if self._idle else None
        if worker is not None:
            worker.submit(lambda: self._run(worker))

    def close(self) -> None:
        """Begin nothing further, and wait for what runs. Twice is fine."""
        with self._lock:
            self._jobs.clear()
        for worker in self._workers:
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
    """One reader that reads on. ``ahead`` are the spans behind those that were asked for; None if that is not known."""

    step: int
    ahead: Iterator[Span] | None = None
    window: int = 1
    asked: deque[Span] = field(default_factory=deque)  # and not yet passed


@dataclass(slots=True)
class _Held:
    """A span on its way, or there, and not taken yet; its bytes count from the beginning."""

    stream: _Stream
    found: Future[bytes] = field(default_factory=Future)


class Prefetcher:
    """Fetches spans ahead of readers. Thread-safe. ``close`` ends its threads.

    Args:
        load: fetches one span, on a thread of the prefetcher. Its errors are not told: the reader will see its own.
        is_there: whether a span need not be fetched; called with no lock held.
        limit_bytes: of what was asked for ahead and not taken; 0: nothing is read ahead.
        threads: how many spans are fetched at a time.
    """

    def __init__(
        self, load: Callable[[Span], bytes], is_there: Callable[[Span], bool], limit_bytes: int, threads: int
    ) -> None:
        self._load, self._is_there = load, is_there
        self._limit_bytes, self._most = limit_bytes, 2 * threads
        self._pool = Pool(threads, "stratalog-tier-read")
        self._lock = threading.Lock()
        self._held: OrderedDict[Span, _Held] = OrderedDict()  # oldest first; under _lock
        self._held_bytes = 0  # under _lock, as are all below
        self._expected: OrderedDict[Hashable, _Stream] = OrderedDict()  # by what would be read next, oldest first
        self._steps = 0
        self._closed = False
        ends_with_fork(self)

    def passed(
        self, here: Collection[Hashable], following: Hashable, current: Span, ahead: Callable[[], Iterator[Span]]
    ) -> None:
        """A reader has come to a span.

        Args:
            here: what a stream that leads here expects.
            following: what this reader will come to if it reads on; no span of the same reader before it expects it.
            current: the span.
            ahead: the spans behind it; asked for, and walked, only if this is a stream.
        """
        if not self._limit_bytes:
            return
        with self._lock:
            if following in self._expected and not any(name in self._expected for name in here):
                return  # the same span once more
            self._steps += 1
            stream = next((self._expected.pop(name) for name in here if name in self._expected), None)
            is_new = stream is None
            stream = stream or _Stream(self._steps)
            stream.step = self._steps
            self._expected[following] = stream
            while len(self._expected) > _STREAMS:
                self._forget_stream(self._expected.popitem(last=False)[1])
        if not is_new:
            self._read_on(stream, current, ahead)

    def take(self, span: Span) -> bytes | None:
        """What was fetched ahead, waiting for it if it is on its way; None if there is nothing, or it failed."""
        with self._lock:
            held = self._held.get(span)
            if held is None or held.found.cancel():  # nobody has begun with it: the reader is faster
                if held is not None:
                    self._let_go(span)
                return None
        try:
            return held.found.result()
        except Exception:  # noqa: BLE001 - the reader asks itself, and sees what is wrong
            return None
        finally:
            with self._lock:
                if self._held.get(span) is held:
                    self._let_go(span)

    def holds(self, span: Span) -> bool:
        """Whether a span was asked for ahead and not taken."""
        with self._lock:
            return span in self._held

    @property
    def held_bytes(self) -> int:
        """Of what was asked for ahead and not taken."""
        with self._lock:
            return self._held_bytes

    def drop(self, keys: Collection[str]) -> None:
        """Forget what was fetched ahead of some objects."""
        with self._lock:
            for span in [span for span in self._held if span.key in keys]:
                self._let_go(span)

    def close(self) -> None:
        """Ask for nothing further, and wait for the requests under way. Twice is fine."""
        with self._lock:
            self._closed = True
            self._expected.clear()
            for span in list(self._held):
                self._let_go(span)
        self._pool.close()

    def _read_on(self, stream: _Stream, current: Span, ahead: Callable[[], Iterator[Span]]) -> None:
        """Ask for what the window has room for. Only the stream's reader does, so that ``ahead`` is walked by one."""
        with self._lock:
            if current in stream.asked:
                while stream.asked.popleft() != current:
                    pass
            else:
                stream.ahead = None
                stream.asked.clear()
            spans, stream.ahead = stream.ahead, None
            stream.window = min(2 * stream.window, self._most)
            wanted = stream.window - len(stream.asked)
        try:
            if spans is None:
                spans = ahead()
            for _ in range(wanted):
                span = next(spans, None)
                if span is None:
                    break
                if not self._ask(stream, span):
                    spans = itertools.chain((span,), spans)
                    break
        except (StorageError, OSError) as error:  # the list of segments could not be read: the reader will be told
            _LOGGER.debug("nothing is read ahead: %s", error)
            return
        with self._lock:
            stream.ahead = spans

    def _ask(self, stream: _Stream, span: Span) -> bool:
        size_bytes = span.end - span.start
        is_there = self._is_there(span)
        with self._lock:
            if self._closed or size_bytes > self._limit_bytes:
                return False
            if span in self._held or is_there:
                stream.asked.append(span)
                return True
            if not self._make_room(size_bytes):
                return False
            held = self._held[span] = _Held(stream)
            self._held_bytes += size_bytes
            stream.asked.append(span)
        self._pool.submit(lambda: self._fetch(span, held))
        return True

    def _fetch(self, span: Span, held: _Held) -> None:
        if not held.found.set_running_or_notify_cancel():
            return
        try:
            held.found.set_result(self._load(span))
        except BaseException as error:  # noqa: BLE001 - whoever waits must be told, whatever it is
            held.found.set_exception(error)

    # --- all under _lock ---------------------------------------------------------------------------------------------

    def _make_room(self, size_bytes: int) -> bool:
        """Let go of what was read ahead for streams that nobody reads any more; whether there is room."""
        if self._held_bytes + size_bytes > self._limit_bytes:
            for span, held in list(self._held.items()):
                if self._steps - held.stream.step > _STALE_STEPS:
                    self._let_go(span)
        return self._held_bytes + size_bytes <= self._limit_bytes

    def _forget_stream(self, stream: _Stream) -> None:
        for span in stream.asked:
            held = self._held.get(span)
            if held is not None and held.stream is stream:
                self._let_go(span)

    def _let_go(self, span: Span) -> None:
        held = self._held.pop(span)
        held.found.cancel()
        self._held_bytes -= span.end - span.start
