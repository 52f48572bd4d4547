"""Turns of threads that answer short requests: one at a time, which saves switches between the threads.

Python's own lock passes to another thread at each system call. With four busy connections, the switches for a request
cost more than the request. A turn covers all short requests of a connection that have arrived.
"""

from __future__ import annotations

import threading
from typing import Final

_STUCK_S: Final = 0.01


class Turns:
    """Lets one thread at a time answer short requests. Thread-safe.

    A turn protects no state. If a turn lasts 10 ms, because a disk or a client blocks its thread, the next turn begins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> threading.Lock:
        """Wait for a turn; release the result to end the turn."""
        lock = self._lock
        if not lock.acquire(timeout=_STUCK_S):
            lock = threading.Lock()
            lock.acquire()
            self._lock = lock
        return lock
