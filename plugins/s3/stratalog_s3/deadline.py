"""Deadlines of calls to libraries.

The timeouts of the libraries are not sufficient: each received byte restarts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from stratalog.errors import StoreTimeoutError
from stratalog.spi import Clock

T = TypeVar("T")
_GRACE_S: Final = 5.0  # time for a cancelled call to end; a call needs it only if the event loop is blocked


def seconds_left(clock: Clock, deadline_ns: int, key: str) -> float:
    """Return the seconds until the monotonic time ``deadline_ns``. Raise StoreTimeoutError if it has passed."""
    remaining_ns = deadline_ns - clock.monotonic_ns()
    if remaining_ns <= 0:
        raise passed_deadline(key)
    return remaining_ns / 1e9


def passed_deadline(key: str) -> StoreTimeoutError:
    """Return the error of a request that was not sent, because its deadline had passed."""
    return StoreTimeoutError("the deadline has passed before the request", key)


class Pending(Generic[T]):
    """A coroutine that runs on an event loop in another thread, and is cancelled after ``timeout_s``.

    ``call`` returns the coroutine.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._future: Future[T] = asyncio.run_coroutine_threadsafe(_run_with_timeout(call, timeout_s), loop)

    def result(self) -> T:
        """Wait for the coroutine. Return its result, or raise its error.

        Raises:
            TimeoutError: the coroutine did not end within ``timeout_s``.
        """
        try:
            return self._future.result(self._timeout_s + _GRACE_S)
        finally:
            self.cancel()  # stops the coroutine if this thread was interrupted; no effect on a finished coroutine

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Call ``call``, on any thread, when the coroutine has finished, has failed or was cancelled."""
        self._future.add_done_callback(lambda _: call())

    def cancel(self) -> None:
        """Cancel the coroutine if it still runs."""
        self._future.cancel()


def run(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
    """Run the coroutine that ``call`` returns on an event loop in another thread, and return its result.

    Raises the errors of ``Pending.result``.
    """
    return Pending(loop, call, timeout_s).result()


async def _run_with_timeout(call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
    return await asyncio.wait_for(call(), timeout_s)
