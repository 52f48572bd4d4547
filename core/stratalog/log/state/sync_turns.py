"""Taking turns: one thread does something for all, the others wait until it is done. So appends share one sync.

This is one half of group commit, ``row`` is the other. Each waiter has a lock of its own and is woken once: when what it
waits for is done, or when it is its turn. A condition variable would wake all of them at each sync, only to queue for its
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

REFUSED: Final = -1
NOT_WRITTEN: Final = 1 << 63  # above all offsets


def _nothing() -> None:
    """Write nothing: no row was set."""


class Waiter:
    """A thread that waits until everything below offset ``end`` is done.

    ``end`` is ``NOT_WRITTEN`` as long as it is not known, and ``REFUSED`` if there is nothing to wait for.
    """

    __slots__ = ("end", "gate")

    def __init__(self, end: int) -> None:
        self.end = end
        self.gate: Final = threading.Lock()  # opened by whoever takes the waiter off the list, once each time
        self.gate.acquire()


class Turns:
    """At most one has the turn at a time. Thread-safe.

    Who calls ``take`` has to call ``leave`` in the end, whatever happens between the two, Ctrl-C included: for a turn that
    nobody leaves the others wait for ever.
    """

    __slots__ = ("_company", "_gathering", "_has_turn", "_is_called", "_lock", "_row", "_waiting", "write_row")

    def __init__(self) -> None:
        self.write_row: Callable[[], None] = _nothing  # writes what is in the row; the log that owns the turns sets it
        self._lock = threading.Lock()
        self._has_turn: Waiter | None = None
        self._waiting: list[Waiter] | None = None  # in the order of their coming; of most logs nobody ever waits
        self._company = 0  # how many may come back soon: those who went on when the last turn ended, or wait since then
        self._gathering = False
        self._row: list[Waiter] | None = None  # those who have something to be written, in the order of their coming
        self._is_called = False  # whether somebody is about to call the row

    def line_up(self, waiter: Waiter) -> bool:
        """Put a waiter at the end of the row of those with something to be written; True if the caller is to call it."""
        with self._lock:
            if self._row is None:
                self._row = []
            self._row.append(waiter)
            is_first, self._is_called = not self._is_called, True
            return is_first

    def called(self) -> list[Waiter]:
        """Take everybody out of the row. Who is to call it goes on until nobody is left."""
        with self._lock:
            came, self._row = self._row or [], None
            self._is_called = bool(came)
            return came

    def take(self, waiter: Waiter) -> bool:
        """Whether it is the caller's turn. If not, wait at the ``gate``, look whether it is done, and ask again."""
        with self._lock:
            if self._has_turn is None or self._has_turn is waiter:
                self._has_turn = waiter
                return True
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            if self._gathering and len(self._waiting) >= self._company:
                self._gathering = False
                self._has_turn.gate.release()  # it waits there, in gather, for nothing else
            return False

    def gather(self, waiter: Waiter, at_most_s: float) -> None:
        """Wait, ``at_most_s`` at most, for those who shared the last turn: they may come back soon."""
        with self._lock:
            if at_most_s <= 0 or len(self._waiting or ()) >= self._company:
                return
            self._gathering = True
        try:
            waiter.gate.acquire(timeout=at_most_s)
        finally:
            with self._lock:
                self._gathering = False

    def leave(self, waiter: Waiter, done: int) -> None:
        """Wait no more. If the caller had the turn: those whose ``end`` is at most ``done`` go on, one of the others is next."""
        with self._lock:
            waiting = self._waiting or []
            if self._row and waiter in self._row:
                self._row.remove(waiter)
            if self._has_turn is not waiter:
                if waiter in waiting:
                    waiting.remove(waiter)
                return
            woken = [other for other in waiting if other.end <= done]
            left = [other for other in waiting if other.end > done]
            self._has_turn = None
            if left:
                self._has_turn = left.pop(0)
                woken.append(self._has_turn)
            self._waiting = left
            self._company = len(left) + len(woken) - 1
        for other in woken:
            other.gate.release()
