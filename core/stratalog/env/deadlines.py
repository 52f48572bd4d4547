"""Calls with a deadline. If a call exceeds its deadline, the caller stops waiting; the call continues on its thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar

from stratalog.env.clock import SystemClock
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import OwnThread

_LOGGER: Final = logging.getLogger(__name__)
_NAME: Final = "stratalog-call"
MAX_LAGGARDS: Final = 8
_POLL_S: Final = 0.05  # interval of the checks for stuck calls
_LEAST_S: Final = 0.1  # minimum time of each call while an engine closes
_CLOCK: Final = SystemClock()  # real time, even if the engine has another clock

T = TypeVar("T")


class OverdueError(Exception):
    """A call did not return in time, or a call was refused because too many earlier calls are still running."""


class DeadlineCalls:
    """Runner of calls with deadlines, each on its own thread. Thread-safe.

    A laggard is a call that exceeded its deadline and still runs. The caller of a laggard has stopped waiting, and a
    warning with the name of the laggard's thread was logged. Calls into a component with too many laggards are refused
    until one of the laggards returns.

    Args:
        max_laggards: calls into a component that has this many laggards are refused.
        wait_s: default time to wait for a call. This class only stores the value for its users.

    Attributes:
        has_strangers: True after the first call of ``register``.
    """

    def __init__(self, max_laggards: int = MAX_LAGGARDS, wait_s: float = 300.0) -> None:
        self._max_laggards, self.wait_s = max_laggards, wait_s
        self._lock = threading.Lock()
        self._laggards = Counter[str]()  # by component; under _lock
        self._hurry_s: float | None = None  # deadline of all calls, in the system's monotonic time; set by hurry
        self._hurried = threading.Condition(self._lock)
        self._running: dict[object, float] = {}  # calls without a deadline, and when they began; each change is atomic
        self._closing: Future[None] | None = None
        self._is_close_reported = False  # True if a caller got the result of _closing
        self.has_strangers = False
        ends_with_fork(self)

    def call(
        self,
        component: str,
        method: str,
        work: Callable[[], T],
        wait_s: float,
        close: Callable[[T], object] | None = None,
    ) -> T:
        """Run ``work`` on its own thread, and return its result or raise its exception.

        Args:
            component: name of the called component; laggards are counted for each component.
            method: name of the called method, for log messages.
            work: the call. After the deadline, it continues on its thread.
            wait_s: deadline, counted from now; ``hurry`` may shorten it.
            close: closes a result that was returned after the deadline; None if results need no closing.

        Raises:
            OverdueError: the call did not return in time, or was refused because the component has too many laggards.
            BaseException: the exception of ``work``.
        """
        with self._lock:
            if self._laggards[component] >= self._max_laggards:
                raise OverdueError(f"was not called: {self._max_laggards} earlier calls are still running")
        call, thread = self._start(work, method)
        in_time = False
        try:
            in_time = self._wait_until_over(call, wait_s)
        finally:
            if not in_time:
                self._leave(component, method, call, thread, close)
        if in_time:
            return call.result()
        raise OverdueError(f"did not return in {wait_s:.1f} s")

    def hurry(self, wait_s: float) -> None:
        """Limit all running and later calls of ``call`` to ``wait_s`` from now, because the engine closes.

        An earlier deadline of a call stays. A call may run for at least 0.1 s, unless its own deadline is shorter.
        """
        with self._lock:
            self._hurry_s = _now_s() + wait_s
            self._hurried.notify_all()

    def register(self, call: object) -> None:
        """Register a call into a component. The call begins on this thread, and has no deadline.

        ``call`` is any hashable object; ``str(call)`` describes the call in error texts.
        """
        self.has_strangers = True
        self._running[call] = _now_s()

    def unregister(self, call: object) -> None:
        """Remove a call that ``register`` registered, after its return. Do nothing if ``call`` is not registered."""
        self._running.pop(call, None)

    def run_unless_stuck(self, work: Callable[[], None], wait_s: float) -> None:
        """Run ``work``, and stop waiting for its end if a call registered by ``register`` takes too long.

        If ``register`` was never called, ``work`` runs on the caller's thread. If ``register`` was called, ``work``
        runs on its own thread, and continues there if the caller stops waiting. Later calls of this method then ignore
        their argument ``work``, and wait for the first ``work``. Only the first call that reaches the end of ``work``
        raises the exception of ``work``.

        Args:
            work: function to run.
            wait_s: how long to wait for one registered call, from its beginning or, if later, from now.

        Raises:
            OverdueError: a registered call did not return in time; the text describes the call.
            BaseException: the exception of ``work``.
        """
        if self._closing is None:
            if not self.has_strangers:
                work()
                return
            self._closing, _ = self._start(work, "close")
        self._await(self._closing, wait_s)
        with self._lock:
            is_reported, self._is_close_reported = self._is_close_reported, True
        if not is_reported:
            self._closing.result()

    def open_unless_stuck(self, work: Callable[[], T], close: Callable[[T], object], wait_s: float) -> T:
        """Return the result of ``work``, and stop waiting for it if a call registered by ``register`` takes too long.

        ``work`` opens an object and returns it, on its own thread. If the caller stops waiting, ``work`` continues, and
        ``close`` closes the object. ``wait_s`` and the errors are those of ``run_unless_stuck``.
        """
        call, _ = self._start(partial(contextvars.copy_context().run, work), "open")
        try:
            self._await(call, wait_s)
        except BaseException:
            call.add_done_callback(_closing(close))
            raise
        return call.result()

    def _start(self, work: Callable[[], T], name_suffix: str) -> tuple[Future[T], threading.Thread]:
        call = Future[T]()
        call.add_done_callback(self._notify_waiting)
        thread = OwnThread(_run, f"{_NAME}-{name_suffix}", (call, work))
        thread.start()
        return call, thread

    def _notify_waiting(self, _: object) -> None:
        with self._lock:
            self._hurried.notify_all()

    def _await(self, call: Future[T], wait_s: float) -> None:
        """Wait until ``call`` ends; raise OverdueError if a registered call takes longer than ``wait_s``."""
        began_s = _now_s()
        with self._lock:
            while not call.done():
                stuck, since_s = min(list(self._running.items()), key=lambda item: item[1], default=(None, 0.0))
                end_s = max(since_s, began_s) + wait_s
                if stuck is not None and _now_s() >= end_s:
                    raise OverdueError(f"{stuck} did not return in {wait_s:.1f} s")
                self._hurried.wait(_POLL_S)  # calls are registered and removed without the lock

    def _wait_until_over(self, call: Future[T], wait_s: float) -> bool:
        began_s = _now_s()
        with self._lock:
            while not call.done():
                now_s, last_s = _now_s(), began_s + wait_s
                if self._hurry_s is not None:
                    last_s = min(last_s, max(self._hurry_s, began_s + _LEAST_S))
                if now_s >= last_s:
                    return False
                self._hurried.wait(min(last_s - now_s, threading.TIMEOUT_MAX))
        return True

    def _leave(
        self,
        component: str,
        method: str,
        call: Future[T],
        thread: threading.Thread,
        close: Callable[[T], object] | None,
    ) -> None:
        if close is not None:
            call.add_done_callback(_closing(close))
        with self._lock:
            if call.done():
                return
            self._laggards[component] += 1
        call.add_done_callback(lambda _: self._count_returned_laggard(component))
        _LOGGER.warning(
            "a call took too long and was abandoned: component=%s method=%s thread=%s", component, method, thread.name
        )

    def _count_returned_laggard(self, component: str) -> None:
        with self._lock:
            self._laggards[component] -= 1
            if not self._laggards[component]:
                del self._laggards[component]


def _run(call: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        call.set_exception(error)
    else:
        call.set_result(result)


def _closing(close: Callable[[T], object]) -> Callable[[Future[T]], None]:
    """Return a function that closes the result of a finished call on a new thread. Errors are only logged."""

    def run(call: Future[T]) -> None:
        try:
            close(call.result())
        except BaseException:
            _LOGGER.warning("what was opened too late was not closed cleanly", exc_info=True)

    return lambda call: OwnThread(run, f"{_NAME}-close", (call,)).start()


def _now_s() -> float:
    return _CLOCK.monotonic_ns() / 1_000_000_000
