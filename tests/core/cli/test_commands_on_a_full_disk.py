"""Commands on a disk that is too full for the checkpoints of a clean shutdown still show their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.engine.open.directory_checkpoints import DirectoryCheckpoints
from stratalog.errors import DiskFullError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    return str(tmp_path)


@pytest.fixture(autouse=True)
def full(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: DirectoryCheckpoints) -> None:
        raise DiskFullError("no space left on device", f"{folder}/recovery-point-offset-checkpoint.tmp")

    monkeypatch.setattr(DirectoryCheckpoints, "write", refuse)


@pytest.mark.parametrize(
    "command", [("retention",), ("retention", "--dry-run"), ("why-kept", "orders", "0"), ("topics", "create", "new")]
)
def test_results_found_before_the_disk_was_full_are_shown(
    folder: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run([*command, "--dir", folder, "--json"]) == 0
    assert printed_items(capsys)
    assert "did not stop cleanly" in caplog.text
    assert f"path={folder}/recovery-point" in caplog.text


def test_an_error_is_shown_before_the_disk_is_full(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "create", "orders", "--dir", folder]) == 2
    assert "exists already" in capsys.readouterr().err
