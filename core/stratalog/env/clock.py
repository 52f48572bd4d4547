"""Time, behind a port."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is measured."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait. Only retries with backoff call it."""

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Wait until an event is set, but not longer; whether it is."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        return time.monotonic_ns()

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        time.sleep(duration_ms / 1000)  # noqa: TID251 - this is the port

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Wait until an event is set, but not longer; whether it is."""
        return event.wait(duration_ms / 1000)


class ManualClock:
    """A clock that moves only when told to: for tests and for replaying schedules."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = now_ms * 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of the same clock."""
        return self._now_ns

    def sleep_ms(self, duration_ms: int) -> None:
        """Move on at once."""
        self.advance_ms(duration_ms)

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        """Move on at once, unless the event is set."""
        if not event.is_set():
            self.advance_ms(duration_ms)
        return event.is_set()

    def advance_ms(self, duration_ms: int) -> None:
        """Move on."""
        if duration_ms < 0:
            raise ValueError("a clock does not go back")
        self._now_ns += duration_ms * 1_000_000
