"""Calls with a deadline: a late call continues on its own thread, and its caller no longer waits for it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from stratalog.env.clock import SystemClock
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import OwnThread

_LOGGER: Final = logging.getLogger(__name__)
_NAME: Final = "stratalog-call"
MOST_LAGGARDS: Final = 8
_LEAST_S: Final = 0.1  # each call gets at least this long while an engine closes
_CLOCK: Final = SystemClock()  # threads run in real time, for any clock of the engine

T = TypeVar("T")


class OverdueError(Exception):
    """A call passed its deadline, or was refused because too many earlier calls passed theirs. Its result is lost."""


class DeadlineCalls:
    """Runner of calls with deadlines, each on its own thread. Thread-safe.

    A call that passes its deadline is a laggard: it continues to run, a warning names its thread, and no caller waits
    for it. If a component has too many laggards, further calls into it are refused until some return. This bounds the
    threads.

    Args:
        most: maximum number of laggards of one component.

    Attributes:
        wait_s: default time to wait for a call.
    """

    def __init__(self, most: int = MOST_LAGGARDS) -> None:
        self._most = most
        self.wait_s = 300.0
        self._lock = threading.Lock()
        self._laggards = Counter[str]()  # by component; under _lock
        self._hurry_s: float | None = None  # deadline of all calls, in the system's monotonic time; set by hurry
        self._hurried = threading.Condition(self._lock)
        ends_with_fork(self)

    def call(self, component: str, method: str, work: Callable[[], T], wait_s: float) -> T:
        """Return the result of ``work``, or raise its exception.

        Args:
            component: name of the called component; laggards are counted per component.
            method: name of the called method, for log messages.
            work: runs on its own thread.
            wait_s: how long to wait.

        Raises:
            OverdueError: the call did not end in time, or was not started.
        """
        with self._lock:
            if self._laggards[component] >= self._most:
                raise OverdueError(f"was not called: {self._most} earlier calls are still running")
        call = _Call(work, self._hurried)
        thread = OwnThread(call.run, f"{_NAME}-{method}")
        thread.start()
        try:
            if self._is_over(call, wait_s):
                return call.result()
        finally:
            if not call.is_over:
                self._leave(component, method, call, thread)
        raise OverdueError(f"did not return in {wait_s:.1f} s")

    def hurry(self, wait_s: float) -> None:
        """Limit the waiting time of all calls to ``wait_s`` from now on, because the engine closes.

        A call that starts later still gets a tenth of a second.
        """
        with self._lock:
            self._hurry_s = _now_s() + wait_s
            self._hurried.notify_all()

    def _is_over(self, call: _Call[T], wait_s: float) -> bool:
        began_s = _now_s()
        with self._lock:
            while not call.is_over:
                now_s, last_s = _now_s(), began_s + wait_s
                if self._hurry_s is not None:
                    last_s = min(last_s, max(self._hurry_s, began_s + _LEAST_S))
                if now_s >= last_s:
                    return False
                self._hurried.wait(min(last_s - now_s, threading.TIMEOUT_MAX))
        return True

    def _leave(self, component: str, method: str, call: _Call[T], thread: threading.Thread) -> None:
        with self._lock:
            if call.is_over:
                return
            self._laggards[component] += 1
            call.when_over = lambda: self._returned(component)
        _LOGGER.warning(
            "a call took too long and was abandoned: component=%s method=%s thread=%s", component, method, thread.name
        )

    def _returned(self, component: str) -> None:
        """Remove one laggard from the count. The caller holds the lock."""
        self._laggards[component] -= 1
        if not self._laggards[component]:
            del self._laggards[component]


def _now_s() -> float:
    return _CLOCK.monotonic_ns() / 1_000_000_000


class _Call(Generic[T]):
    """One call; the lock of ``over`` protects its public attributes."""

    def __init__(self, work: Callable[[], T], over: threading.Condition) -> None:
        self._work, self._over = work, over
        self._result: tuple[T] | None = None
        self._error: BaseException | None = None
        self.is_over = False
        self.when_over: Callable[[], None] | None = None

    def run(self) -> None:
        """Make the call, on the call's own thread."""
        try:
            self._result = (self._work(),)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        with self._over:
            self.is_over = True
            self._over.notify_all()
            if self.when_over is not None:
                self.when_over()

    def result(self) -> T:
        """Return the result of the finished call, or raise its exception."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result[0]
