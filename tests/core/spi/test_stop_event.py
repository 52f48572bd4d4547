"""``stop_event``: the event that ends a command at Ctrl-C."""

import signal
import sys
import threading
from typing import Any

import pytest

from forked import in_child
from stratalog.spi import stop_event

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 warns where there are threads
]


class SignalledCondition(threading.Condition):
    """A condition that receives a signal each time a thread waits for it, while its lock is held."""

    def wait(self, timeout: float | None = None) -> bool:
        signal.raise_signal(signal.SIGINT)
        return super().wait(timeout)


def wait_with_a_signal() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Condition", SignalledCondition)
        with stop_event() as stop:
            patch.undo()
            stop.wait()


def signal_twice() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with SIGINT ignored
    with stop_event() as stop:
        signal.raise_signal(signal.SIGINT)
        stop.wait()
        signal.raise_signal(signal.SIGINT)


def signal_after_the_end() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with stop_event():
        pass
    signal.raise_signal(signal.SIGINT)


def test_a_signal_that_comes_while_the_lock_of_the_event_is_held_ends_the_wait() -> None:
    assert in_child(wait_with_a_signal) == [""]


def test_a_second_signal_and_one_after_the_end_have_their_usual_effect() -> None:
    assert in_child(signal_twice, signal_after_the_end) == ["KeyboardInterrupt: "] * 2


def test_a_handler_that_python_did_not_set_is_replaced_by_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python may have set a handler in C, which Python can neither call nor restore."""
    real, restored = signal.signal, dict[int, object]()

    def replacing(number: int, handler: Any) -> object:
        restored[number] = handler
        real(number, handler)
        return None

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        monkeypatch.setattr(signal, "signal", replacing)
        with stop_event():
            pass
    finally:
        monkeypatch.undo()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert restored == {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}
