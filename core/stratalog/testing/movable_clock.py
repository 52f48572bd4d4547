"""A running clock that a test can move forward."""

from __future__ import annotations

import threading
from typing import Final

from stratalog.env.clock import SystemClock

_STEP_S: Final = 0.02  # a wait notices after this time that the clock was moved
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class MovableClock:
    """The system's clock, plus the time by which ``advance_ms`` moved it. Thread-safe."""

    def __init__(self) -> None:
        self._system, self._lock = SystemClock(), threading.Lock()
        self._moved_ms = 0  # changes under _lock

    def now_ms(self) -> int:
        """Return the system's time in ms since 1970 (UTC), plus the time by which the clock was moved."""
        return self._system.now_ms() + self._moved_ms

    def monotonic_ns(self) -> int:
        """Return the system's monotonic time in ns, plus the time by which the clock was moved."""
        return self._system.monotonic_ns() + self._moved_ms * _NS_PER_MS

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for ``duration_ms`` of this clock. If the clock is moved meanwhile, the wait is shorter in real time."""
        self.wait(threading.Event(), duration_ms)

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Wait until an event is set, at most ``duration_ms`` of this clock. Return True if the event is set."""
        until_ns = self.monotonic_ns() + duration_ms * _NS_PER_MS
        while True:
            left_s = (until_ns - self.monotonic_ns()) / _NS_PER_S
            if event.wait(min(max(left_s, 0), _STEP_S)):
                return True
            if left_s <= _STEP_S and self.monotonic_ns() >= until_ns:
                return event.is_set()

    def advance_ms(self, duration_ms: int) -> None:
        """Move the clock forward by ``duration_ms``; raise ValueError if it is negative.

        Waits on this clock that end at or before the new time return within 20 milliseconds.
        """
        if duration_ms < 0:
            raise ValueError("a clock cannot be set to an earlier time")
        with self._lock:
            self._moved_ms += duration_ms
