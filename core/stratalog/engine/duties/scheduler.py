"""A scheduler of periodic duties on one thread.

Source: apache/kafka KafkaScheduler.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.env import Clock
from stratalog.env.latencies import Watch
from stratalog.env.threads import Loop, is_own_thread

_LOGGER: Final = logging.getLogger(__name__)
_NS: Final = 1_000_000
_FIRST_PAUSE_MS: Final = 1000
_LONGEST_PAUSE_MS: Final = 300_000
_NOTICED_MS: Final = 60_000  # the thread checks the clock at least this often


@dataclass(frozen=True, slots=True)
class Duty:
    """A function that a ``Scheduler`` runs repeatedly.

    ``interval_ms`` is the time from the creation of the scheduler to the first run, and from the end of a run to the
    next run.
    """

    name: str
    interval_ms: int
    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class DutyStatus:
    """Status of a duty.

    Attributes:
        runs: number of runs, including failed ones.
        failures: number of failed runs.
        failing: number of failures since the last successful run.
        error: error of the latest failed run; "" if none has failed.
    """

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
    """Scheduler that runs duties when they are due, on its own thread after ``start``, and in ``run_due``.

    Only one duty runs at a time. A failure is logged and counted, and the other duties continue. A failed duty is
    retried after its interval, or after a pause, whichever is longer. The pause doubles with each failure, from 1
    second to 5 minutes.

    Args:
        duties: duties, run in this order if several are due.
    """

    def __init__(
        self, clock: Clock, duties: Iterable[Duty], name: str = "stratalog-duties", watch: Watch | None = None
    ) -> None:
        self._clock, self._watch = clock, watch or Watch()
        now = clock.monotonic_ns()
        self._entries = [_Entry(duty, now + duty.interval_ms * _NS, DutyStatus(duty.name)) for duty in duties]
        self._run_lock = threading.RLock()  # a duty may close the engine, which waits for the duties
        self._closed = False
        self._loop = Loop(name, self._step)

    def start(self) -> None:
        """Start the thread that runs the duties. Idempotent."""
        self._loop.start()

    def run_due(self) -> int:
        """Run the duties that are due now, on this thread. Return the time (ms) until the next duty is due."""
        with self._run_lock:
            for entry in self._entries:
                if not self._closed and entry.due_ns <= self._clock.monotonic_ns():
                    self._run(entry)
            now = self._clock.monotonic_ns()
            return max(0, min((-(-(entry.due_ns - now) // _NS) for entry in self._entries), default=_NOTICED_MS))

    def status(self) -> tuple[DutyStatus, ...]:
        """Return the status of each duty, in the order of ``duties``."""
        return tuple(entry.status for entry in self._entries)

    def close(self) -> None:
        """Start no further duty, and wait for the running duty, unless that duty called ``close``. Idempotent."""
        self._closed = True
        self._loop.close()
        with self._run_lock:
            pass

    def _step(self) -> float:
        return min(self.run_due(), _NOTICED_MS)

    def _run(self, entry: _Entry) -> None:
        before, duty = entry.status, entry.duty
        wait_ms, failing, error = duty.interval_ms, 0, before.error
        try:
            with self._watch.observe(f"duty {duty.name}", {"stratalog.duty": duty.name}):
                duty.work()
        except BaseException as failure:  # on the scheduler's own thread, the other duties run even after SystemExit
            if not isinstance(failure, Exception) and not is_own_thread():
                raise
            failing, error = before.failing + 1, f"{type(failure).__name__}: {failure}"
            pause_ms = min(_FIRST_PAUSE_MS << min(before.failing, 20), _LONGEST_PAUSE_MS)
            wait_ms = max(wait_ms, pause_ms)
            _LOGGER.warning("duty %s failed and will be retried in %d ms: %s", duty.name, wait_ms, error)
        failures = before.failures + (1 if failing else 0)
        entry.status = DutyStatus(duty.name, before.runs + 1, failures, failing, error)
        entry.due_ns = self._clock.monotonic_ns() + wait_ms * _NS
