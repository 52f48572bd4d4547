"""Turns of syncing threads: one thread syncs for all waiting threads, so appends share one sync.

A turn is the right to sync. ``SyncTurns`` also has the queue of batches that group commit writes. Each waiter has its
own lock and is woken once: when its records are durable, or when it has the turn. A condition variable would wake all
waiters at each sync, and all of them would then wait for the lock of the variable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from stratalog.env.lock_order import LockRank

REFUSED: Final = -1
NOT_WRITTEN: Final = 1 << 63  # above all offsets


class Waiter:
    """A thread that waits until everything below offset ``end`` is durable.

    ``end`` is ``NOT_WRITTEN`` while the waiter's batches are not written, and ``REFUSED`` if their write failed.
    """

    __slots__ = ("end", "gate")

    def __init__(self, end: int) -> None:
        self.end = end
        self.gate: Final = threading.Lock()  # released once each time the waiter is removed from the list
        self.gate.acquire()


class SyncTurns:
    """The turn (right to sync), which at most one waiter has at a time, and the queue of batches to write. Thread-safe.

    Each caller of ``take`` must call ``leave`` at the end, even after an exception such as Ctrl-C. If ``leave`` is not
    called, the other waiters wait forever.
    """

    __slots__ = (
        "_expected_waiters",
        "_gathering",
        "_has_turn",
        "_has_writer",
        "_lock",
        "_queued",
        "_waiting",
        "write_queued",
    )

    def __init__(self) -> None:
        self.write_queued: Callable[[], None] = lambda: None  # writes the queued batches
        self._lock = LockRank.LEAF.lock()
        self._has_turn: Waiter | None = None
        self._waiting: list[Waiter] | None = None  # in order of arrival; None because most logs never have waiters
        self._expected_waiters = 0  # number of waiters that the end of the last turn released or left waiting
        self._gathering = False
        self._queued: list[Waiter] | None = None  # waiters with a batch to write, in order of arrival
        self._has_writer = False  # True while a thread is responsible for calling ``take_queued``

    def set_writer(self, write_queued: Callable[[], None]) -> None:
        """Write the queued batches with ``write_queued`` from now on. The owning log calls it once."""
        self.write_queued = write_queued

    def enqueue(self, waiter: Waiter) -> bool:
        """Add a waiter to the end of the queue of batches. Return True if the caller must write the queue."""
        with self._lock:
            if self._queued is None:
                self._queued = []
            self._queued.append(waiter)
            is_first, self._has_writer = not self._has_writer, True
            return is_first

    def take_queued(self) -> list[Waiter]:
        """Remove all waiters from the queue and return them. The writing thread repeats this until none is left."""
        with self._lock:
            waiters, self._queued = self._queued or [], None
            self._has_writer = bool(waiters)
            return waiters

    def take(self, waiter: Waiter) -> bool:
        """Take the turn (right to sync) if no other waiter has it. Return True if ``waiter`` now has the turn.

        If the result is False, the caller acquires the waiter's ``gate``, checks if its records are durable, and calls
        ``take`` again if not.
        """
        with self._lock:
            if self._has_turn is None or self._has_turn is waiter:
                self._has_turn = waiter
                return True
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            if self._gathering and len(self._waiting) >= self._expected_waiters:
                self._gathering = False
                self._has_turn.gate.release()  # the waiter with the turn waits for this in gather()
            return False

    def gather(self, waiter: Waiter, at_most_s: float) -> None:
        """Wait up to ``at_most_s`` seconds, until as many waiters have arrived as shared the last sync.

        The caller has the turn.
        """
        with self._lock:
            if at_most_s <= 0 or len(self._waiting or ()) >= self._expected_waiters:
                return
            self._gathering = True
        try:
            waiter.gate.acquire(timeout=at_most_s)
        finally:
            with self._lock:
                self._gathering = False

    def leave(self, waiter: Waiter, recovery_point: int) -> None:
        """Remove the waiter, and its batches if they are queued. If it has the turn, give the turn to the next waiter.

        If the waiter has the turn, waiters whose ``end`` is at or below ``recovery_point`` are woken too.
        """
        with self._lock:
            waiting = self._waiting or []
            if self._queued and waiter in self._queued:
                self._queued.remove(waiter)
            if self._has_turn is not waiter:
                if waiter in waiting:
                    waiting.remove(waiter)
                return
            woken = [other_waiter for other_waiter in waiting if other_waiter.end <= recovery_point]
            remaining = [other_waiter for other_waiter in waiting if other_waiter.end > recovery_point]
            self._has_turn = None
            if remaining:
                self._has_turn = remaining.pop(0)
                woken.append(self._has_turn)
            self._waiting = remaining
            self._expected_waiters = len(remaining) + len(woken) - 1
        for other_waiter in woken:
            other_waiter.gate.release()
