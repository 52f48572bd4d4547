"""Duties that come due again and again, on one thread.

Source: apache/kafka KafkaScheduler; a duty that fails waits longer each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.env import Clock
from stratalog.env.threads import Loop, is_own_thread

_LOGGER: Final = logging.getLogger(__name__)
_NS: Final = 1_000_000
_FIRST_PAUSE_MS: Final = 1000
_LONGEST_PAUSE_MS: Final = 300_000
_NOTICED_MS: Final = 60_000  # the thread looks at the clock at least so often


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to do every ``interval_ms``, for the first time an interval after the scheduler is made."""

    name: str
    interval_ms: int
    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class DutyStatus:
    """How a duty fares: ``failures`` of ``runs``, ``failing`` of them in a row now, the last error in words."""

    name: str
    runs: int = 0
    failures: int = 0
    failing: int = 0
    error: str = ""


@dataclass(slots=True)
class _Entry:
    duty: Duty
    due_ns: int
    status: DutyStatus


class Scheduler:
    """Runs duties when they are due: on its own thread after ``start``, and for whoever calls ``run_due``.

    A duty never runs twice at a time. One that fails is logged, counted, and tried again after its interval or a pause
    that doubles, whichever is longer; the others go on.

    Args:
        clock: its monotonic time says what is due.
        duties: run in this order when several are due.
        name: of the thread.
    """

    def __init__(self, clock: Clock, duties: Iterable[Duty], name: str = "stratalog-duties") -> None:
        self._clock = clock
        now = clock.monotonic_ns()
        self._entries = [_Entry(duty, now + duty.interval_ms * _NS, DutyStatus(duty.name)) for duty in duties]
        self._running = threading.RLock()  # a duty may close the engine, which waits for the duties
        self._closed = False
        self._loop = Loop(name, self._step)

    def start(self) -> None:
        """Run duties on a thread from now on. Twice is fine."""
        self._loop.start()

    def run_due(self) -> int:
        """Run what is due now; how long (ms) until something is due again."""
        with self._running:
            for entry in self._entries:
                if not self._closed and entry.due_ns <= self._clock.monotonic_ns():
                    self._run(entry)
            now = self._clock.monotonic_ns()
            return max(0, min((-(-(entry.due_ns - now) // _NS) for entry in self._entries), default=_NOTICED_MS))

    def status(self) -> tuple[DutyStatus, ...]:
        """How the duties fare."""
        return tuple(entry.status for entry in self._entries)

    def close(self) -> None:
        """Begin no further duty, and wait for the one that runs. Twice is fine."""
        self._closed = True
        self._loop.close()
        with self._running:
            pass

    def _step(self) -> float:
        return min(self.run_due(), _NOTICED_MS)

    def _run(self, entry: _Entry) -> None:
        before, duty = entry.status, entry.duty
        wait_ms, failing, error = duty.interval_ms, 0, before.error
        try:
            duty.work()
        except BaseException as found:  # whatever a duty raises, the others are not its business
            if not isinstance(found, Exception) and not is_own_thread():
                raise
            failing, error = before.failing + 1, f"{type(found).__name__}: {found}"
            pause_ms = min(_FIRST_PAUSE_MS << min(before.failing, 20), _LONGEST_PAUSE_MS)
            wait_ms = max(wait_ms, pause_ms)
            _LOGGER.warning("duty %s failed and is tried again in %d ms: %s", duty.name, wait_ms, error)
        failures = before.failures + (1 if failing else 0)
        entry.status = DutyStatus(duty.name, before.runs + 1, failures, failing, error)
        entry.due_ns = self._clock.monotonic_ns() + wait_ms * _NS
