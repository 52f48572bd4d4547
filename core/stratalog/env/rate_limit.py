"""Limits on bytes per second: the reads and writes of cleaning, and the uploads to a tier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from stratalog.env.clock import Clock

WINDOW_MS: Final = 300
_SLICE_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000


class Throttle:
    """Limit on the bytes per second that all threads of the cleaner together read and write. Thread-safe.

    Source: apache/kafka Throttler and LogCleaner.
    """

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock, self._limit = clock, bytes_per_second
        self._lock = threading.Lock()
        self._since_ns, self._bytes = clock.monotonic_ns(), 0

    def count_and_wait(self, size_bytes: int) -> None:
        """Count bytes that were read or written, and wait until the rate is at most the limit.

        The rate is checked every 300 ms, and when the bytes of 300 ms at the limit were counted.
        """
        with self._lock:
            self._bytes += size_bytes
            now_ns = self._clock.monotonic_ns()
            elapsed_ms = (now_ns - self._since_ns) / _NS_PER_MS
            if elapsed_ms < WINDOW_MS and self._bytes * 1000 < self._limit * WINDOW_MS:
                return
            wait_ms = round(self._bytes * 1000 / self._limit - elapsed_ms)
            if wait_ms > 0:
                self._clock.sleep_ms(wait_ms)
            self._since_ns, self._bytes = self._clock.monotonic_ns(), 0


class CopyRate:
    """Limit on the rate at which segments are copied to a tier, for all logs together. Thread-safe.

    After an upload has begun, the next upload waits for the time that the bytes of the first upload take at the limit.
    A running upload is not slowed down, because it has a deadline. Kafka's RLMQuotaManager computes the rate over time
    windows.

    Args:
        bytes_per_second: the limit; None means no limit.
    """

    def __init__(self, bytes_per_second: int | None, clock: Clock) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._lock = threading.Lock()
        self._free_ns = clock.monotonic_ns()  # time from which the next upload may begin; under _lock
        self._waited_ns = 0

    @property
    def waited_ms(self) -> int:
        """Total time (ms) that uploads have waited for the limit."""
        return self._waited_ns // _NS_PER_MS

    def begin(self, size_bytes: int) -> bool:
        """Return True if the upload of a segment of this size may begin now; the caller must then begin it."""
        return not self._wait_ns(size_bytes)

    def take(self, size_bytes: int, is_wanted: Callable[[], bool]) -> bool:
        """Wait until the upload of a segment of this size may begin; the caller must then begin it.

        Args:
            size_bytes: size of the segment.
            is_wanted: called first, and at least about once a second during the wait; False ends the wait.

        Returns:
            True if the upload may begin; False if ``is_wanted`` returned False.
        """
        while is_wanted():
            if not (wait_ns := self._wait_ns(size_bytes)):
                return True
            pause_ms = min(_SLICE_MS, -(-wait_ns // _NS_PER_MS))
            self._clock.sleep_ms(pause_ms)
            with self._lock:
                self._waited_ns += pause_ms * _NS_PER_MS
        return False

    def _wait_ns(self, size_bytes: int) -> int:
        """Return the time (ns) until an upload may begin. If it is 0, the next upload waits for this one."""
        if self._rate is None:
            return 0
        with self._lock:
            now = self._clock.monotonic_ns()
            if now < self._free_ns:
                return self._free_ns - now
            self._free_ns = now + size_bytes * _NS_PER_SECOND // self._rate
            return 0
