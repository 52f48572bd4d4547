"""The lock under which threads answer short requests, one at a time, which saves switches between the threads.

Python's own lock passes to another thread at each system call. With four busy connections, the switches for a request
cost more than the request. A thread holds this lock for all short requests of a connection that have arrived.
"""

from __future__ import annotations

import threading
from typing import Final

_STUCK_S: Final = 0.01


class RunLock:
    """Lock for one thread at a time that answers short requests. Thread-safe.

    It protects no state. If a thread holds it for 10 ms, because a disk or a client blocks that thread, the next thread
    no longer waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self) -> threading.Lock:
        """Wait for the lock; the caller releases the result."""
        lock = self._lock
        if not lock.acquire(timeout=_STUCK_S):
            lock = threading.Lock()
            lock.acquire()
            self._lock = lock
        return lock
