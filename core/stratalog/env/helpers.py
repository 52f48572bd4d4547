"""Threads that stay for a while, and lend a hand to whoever has several pieces of work at once."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from stratalog.env.threads import OwnThread, SharedWork

_IDLE_S: Final = 10.0
_MOST: Final = 16
_NAME: Final = "stratalog-helper"

T = TypeVar("T")
R = TypeVar("R")


class _Offer:
    """Work that a helper may take part in: at most once, and not after ``end``."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._claim, self._working = threading.Lock(), threading.Lock()

    def begin(self) -> None:
        """Take part in the work; for a helper."""
        with self._working:
            if self._claim.acquire(blocking=False) and self._work is not None:
                self._work()

    def end(self) -> None:
        """Wait for the helper if it has begun; else it never will."""
        if not self._claim.acquire(blocking=False):
            with self._working:
                pass
        self._work = None  # the offer may stay in the queue, and shall not keep alive what the work refers to


class Helpers:
    """A pool of threads, each started when it is first wanted, and ended when nobody wants it for some seconds.

    No caller depends on a helper: it takes items itself until none is left, and waits only for those that a helper has
    begun. Where all cores are busy, one thread does the work, as if there were no helpers. Thread-safe, also in the child
    of a fork, which has none of its parent's threads.

    Args:
        most: threads at a time.
        idle_s: how long one waits for work.
    """

    def __init__(self, most: int, idle_s: float = _IDLE_S) -> None:
        self._most, self._idle_s = most, idle_s
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._offers = queue.SimpleQueue[_Offer]()
        self._lock = threading.Lock()  # over both numbers
        self._count = self._idle = 0

    def results(self, items: Sequence[T], work: Callable[[T], R], threads: int) -> list[R]:
        """Do ``work`` to each item; what came of each, in the order of the items, which are begun in that order.

        Args:
            items: shared out, if they are several.
            work: must be thread-safe.
            threads: that work at a time at most, the caller's included.

        Raises:
            Exception: what ``work`` raised, of the first item of which it did; those behind it may not have been begun.
            BaseException: an interrupt; work that has begun is waited for, no other begins.
        """
        shared = SharedWork(items, work, ends_on_error=True)
        offers = list[_Offer]()
        try:
            for _ in range(min(threads, len(items)) - 1):
                offers.append(self._offered(shared.run_beside))
            shared.run()
        finally:
            shared.stop()
            for offer in offers:
                offer.end()
        if shared.ending is not None:
            raise shared.ending
        return list(_results(shared.found[index] for index in range(len(items))))

    def _offered(self, work: Callable[[], None]) -> _Offer:
        offer = _Offer(work)
        with self._lock:
            starts = self._count < self._most and self._offers.qsize() >= self._idle
            self._count += starts
            self._offers.put(offer)
        if starts:
            try:
                OwnThread(self._serve, _NAME, (self._offers,)).start()
            except RuntimeError:  # the system gives no thread
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
            del offer  # and all that it refers to

    def _count_down(self) -> None:
        with self._lock:
            self._count -= 1


def _results(found: Iterable[R | Exception]) -> Iterator[R]:
    for outcome in found:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome


HELPERS: Final = Helpers(_MOST)
"""The helpers of this process: all engines share them, as they share its cores."""
