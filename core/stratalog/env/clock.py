"""Clocks: the interface, the system's clock, and a manual one for tests."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time: wall time for stored timestamps, monotonic time for measured durations."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since 1970, UTC."""

    def monotonic_ns(self) -> int:
        """Return the time (ns) of a clock that never goes back. Only the difference of two results has a meaning."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for ``duration_ms``. Nothing can interrupt this wait: use ``wait`` if an event must end it earlier."""

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Wait until ``event`` is set, at most for ``duration_ms``. Return True if ``event`` is set."""


class SystemClock:
    """The operating system's clocks, as a ``Clock``."""

    def now_ms(self) -> int:
        """Return the current time in milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for ``duration_ms``."""
        time.sleep(duration_ms / 1000)  # noqa: TID251 - this is the port

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Wait until ``event`` is set, at most for ``duration_ms``. Return True if ``event`` is set."""
        return event.wait(min(duration_ms / 1000, threading.TIMEOUT_MAX))


class ManualClock:
    """A clock whose time changes only when its methods are called, for tests."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = now_ms * 1_000_000

    def now_ms(self) -> int:
        """Return the clock's time in milliseconds since 1970, UTC."""
        return self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Return the clock's time in nanoseconds. Unlike that of a real clock, it counts from 1970."""
        return self._now_ns

    def sleep_ms(self, duration_ms: int) -> None:
        """Advance the clock by ``duration_ms`` without waiting."""
        self.advance_ms(duration_ms)

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Advance the clock by ``duration_ms`` unless ``event`` is set. Return True if ``event`` is set. Never wait."""
        if not event.is_set():
            self.advance_ms(duration_ms)
        return event.is_set()

    def advance_ms(self, duration_ms: int) -> None:
        """Advance the clock by ``duration_ms``; raise ValueError if ``duration_ms`` is negative."""
        if duration_ms < 0:
            raise ValueError("a clock cannot be set to an earlier time")
        self._now_ns += duration_ms * 1_000_000
