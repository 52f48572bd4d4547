"""Our own deadline around every call: libraries' time-outs start again with each byte that drips in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from stratalog.spi import Clock, StoreTimeoutError

T = TypeVar("T")
_GRACE_S: Final = 5.0  # for a cancelled call to let go; only a blocked event loop needs it


def seconds_left(clock: Clock, deadline_ns: int, key: str) -> float:
    """Seconds until the deadline; StoreTimeoutError if it has passed: then nothing was sent."""
    left_ns = deadline_ns - clock.monotonic_ns()
    if left_ns <= 0:
        raise StoreTimeoutError("the deadline has passed before the request", key)
    return left_ns / 1e9


class Pending(Generic[T]):
    """A coroutine that runs on a loop in another thread, and is cancelled after ``timeout_s``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._future: Future[T] = asyncio.run_coroutine_threadsafe(_bounded(call, timeout_s), loop)

    def result(self) -> T:
        """Wait for it.

        Raises:
            TimeoutError: it did not end in time.
        """
        try:
            return self._future.result(self._timeout_s + _GRACE_S)
        finally:
            self.cancel()  # does nothing once it is done; after an interrupt nothing goes on in the background

    def when_over(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, once it is done, failed or cancelled."""
        self._future.add_done_callback(lambda _: call())

    def cancel(self) -> None:
        """Stop it, if it still runs."""
        self._future.cancel()


def run(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
    """Run a coroutine on a loop in another thread and wait for it; errors as ``Pending.result``."""
    return Pending(loop, call, timeout_s).result()


async def _bounded(call: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
    return await asyncio.wait_for(call(), timeout_s)
