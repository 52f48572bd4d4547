"""Limit on the bytes that compaction reads and writes in a second.

Source: apache/kafka Throttler, as LogCleaner uses it.
"""

from __future__ import annotations

import threading
from typing import Final

from stratalog.env import Clock

WINDOW_MS: Final = 300
_NS: Final = 1_000_000


class Throttle:
    """Counter of the bytes that all threads of the cleaner read and write; makes them wait above the limit.

    Args:
        clock: measures the time, and waits.
        bytes_per_second: the limit.
    """

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock, self._limit = clock, bytes_per_second
        self._lock = threading.Lock()
        self._since_ns, self._bytes = clock.monotonic_ns(), 0

    def took(self, size_bytes: int) -> None:
        """Count bytes, and wait until they are within the limit."""
        with self._lock:
            self._bytes += size_bytes
            now_ns = self._clock.monotonic_ns()
            elapsed_ms = (now_ns - self._since_ns) / _NS
            if elapsed_ms < WINDOW_MS and self._bytes * 1000 < self._limit * WINDOW_MS:
                return
            wait_ms = round(self._bytes * 1000 / self._limit - elapsed_ms)
            if wait_ms > 0:
                self._clock.sleep_ms(wait_ms)
            self._since_ns, self._bytes = self._clock.monotonic_ns(), 0
