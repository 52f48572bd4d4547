"""SIGTERM as an interrupt, for commands that remove their files and objects at the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Return a context manager in which the first SIGTERM has the effect of Ctrl-C, and a second one ends the process.

    In a thread other than the main thread, the context manager does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before)
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
