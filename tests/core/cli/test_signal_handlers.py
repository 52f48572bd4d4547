"""Handlers of signals for a limited time."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from stratalog.cli.signal_handlers import interrupt_on_sigterm


def test_a_handler_that_python_did_not_set_is_replaced_by_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python may have set a handler in C, which Python can neither call nor restore."""
    real, before, restored = signal.signal, signal.getsignal(signal.SIGTERM), list[object]()

    def replacing(number: int, handler: Any) -> None:
        restored.append(handler)
        real(number, handler)

    try:
        monkeypatch.setattr(signal, "signal", replacing)
        monkeypatch.setattr(signal, "getsignal", {signal.SIGINT: signal.default_int_handler}.get)
        with pytest.raises(KeyboardInterrupt), interrupt_on_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGTERM, before)
    assert restored[1:] == [signal.SIG_DFL, signal.SIG_DFL]  # at the signal, and at the end of the context
