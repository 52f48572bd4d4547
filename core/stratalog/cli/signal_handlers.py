"""Handlers of Ctrl-C and SIGTERM that commands use for a limited time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def signal_handler(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Return a context manager in which ``handler`` handles a signal; the handler from before is restored at its end.

    In a thread other than the main thread, the context manager does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    # None: a handler that Python did not set, and cannot restore
    before = signal.signal(number, handler) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupt_on_sigterm() -> AbstractContextManager[None]:
    """Return a context manager in which the first SIGTERM has the effect of Ctrl-C, and a second one ends the process.

    It is for commands that remove their files and objects at the end. In a thread other than the main thread, it does
    nothing.
    """
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before)
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    return signal_handler(signal.SIGTERM, interrupt)
