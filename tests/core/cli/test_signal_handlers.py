"""Handlers of signals for a limited time."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.cli.app import run
from stratalog.cli.signal_handlers import interrupt_on_sigterm
from stratalog.tier.takeover.archive import Archiver


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"v")])
        engine.log("t", 0).roll()
    return tmp_path / "data"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_command_that_then_closes_its_logs_cleanly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Engine, "apply_retention", lambda _, **__: signal.raise_signal(number))
    assert run(["retention", "--dir", str(folder)]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("interrupted; ")
    assert (folder / ".kafka_cleanshutdown").exists()
    assert signal.getsignal(signal.SIGTERM) == handler


def test_an_archive_that_follows_a_broker_ends_in_order_at_sigterm(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original_run = Archiver.run

    def interrupted(archiver: Archiver) -> Any:
        yield from original_run(archiver)
        signal.raise_signal(signal.SIGTERM)

    (tmp_path / "tier").mkdir()
    monkeypatch.setattr(Archiver, "run", interrupted)
    assert run(["archive", str(folder), (tmp_path / "tier").as_uri(), "--follow"]) == 0
    assert "t-0: 1 segments" in capsys.readouterr().out
