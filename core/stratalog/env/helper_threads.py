"""A pool of reusable threads that help a caller to work on several items in parallel."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stratalog.env.threads import OwnThread, SharedWork, all_results

_IDLE_S: Final = 10.0
_MAX_THREADS: Final = 16
_NAME: Final = "stratalog-helper"

T = TypeVar("T")
R = TypeVar("R")


class _Offer:
    """Work that at most one helper thread joins."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._claim, self._working = threading.Lock(), threading.Lock()

    def begin(self) -> None:
        """Do the work on this helper thread, unless another helper has joined it or ``end`` was called."""
        with self._working:
            if self._claim.acquire(blocking=False) and self._work is not None:
                self._work()

    def end(self) -> None:
        """Wait for the helper that has joined the work. If there is none, no helper can join any more."""
        if not self._claim.acquire(blocking=False):
            with self._working:
                pass
        self._work = None  # the offer may stay in the queue, and must not keep objects of the work alive


class HelperThreads:
    """A pool of threads that start on demand, and end after ``idle_s`` seconds without work. Thread-safe.

    The caller's thread works on the items, too. When no item is left, the caller waits only for items that a helper has
    started. A forked child can use the pool, which then starts its own threads.

    Args:
        idle_s: how long an idle thread waits for work before it ends.
    """

    def __init__(self, max_threads: int = _MAX_THREADS, idle_s: float = _IDLE_S) -> None:
        self._max_threads, self._idle_s = max_threads, idle_s
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._offers = queue.SimpleQueue[_Offer]()
        self._lock = threading.Lock()  # protects both numbers
        self._count = self._idle = 0

    def results(self, items: Sequence[T], work: Callable[[T], R], threads: int) -> list[R]:
        """Call ``work`` with each item in parallel, and return the results in the order of the items.

        ``outcomes`` describes the arguments.

        Raises:
            Exception: the exception of the first item that failed, in the order of ``items``. After a failure, no
                further item is started.
            BaseException: an exception that is not an Exception, such as KeyboardInterrupt. It is raised after the
                items in progress are finished.
        """
        if self._process != os.getpid():  # the threads of the parent do not exist here
            self._begin()
        shared = SharedWork(items, work, ends_on_error=True)
        offers = list[_Offer]()
        try:
            for _ in range(min(threads, len(items)) - 1):
                offers.append(self._offer(shared.run_in_helper))
            shared.run()
        finally:
            shared.stop()
            for offer in offers:
                offer.end()
        return all_results(shared.outcomes())

    def _offer(self, work: Callable[[], None]) -> _Offer:
        offer = _Offer(work)
        with self._lock:
            starts = self._count < self._max_threads and self._offers.qsize() >= self._idle
            self._count += starts
            self._offers.put(offer)
        if starts:
            try:
                OwnThread(self._serve, _NAME, (self._offers,)).start()
            except RuntimeError:  # the system cannot start a thread
                self._count_down()
        return offer

    def _serve(self, offers: queue.SimpleQueue[_Offer]) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                offer = offers.get(timeout=self._idle_s)
            except queue.Empty:
                self._count_down()
                return
            finally:
                with self._lock:
                    self._idle -= 1
            offer.begin()
            del offer  # an idle helper must not keep objects of the work alive

    def _count_down(self) -> None:
        with self._lock:
            self._count -= 1
