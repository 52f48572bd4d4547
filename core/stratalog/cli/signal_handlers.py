"""Temporary handlers of Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def signal_handler(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Return a context manager in which ``handler`` handles a signal. At the end, the old handler is restored.

    In a thread other than the main thread, the context manager does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    # signal returns None for a handler that Python did not set, and cannot restore
    before = signal.signal(number, handler) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def interrupt_on_sigterm() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after a SIGTERM. Within the context, SIGTERM has the effect of Ctrl-C.

    A second SIGTERM ends the process. In a thread other than the main thread, SIGTERM keeps its effect.
    """
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    received = list[int]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before)
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    with signal_handler(signal.SIGTERM, interrupt):
        yield lambda: bool(received)
