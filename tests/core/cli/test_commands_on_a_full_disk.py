"""Commands on a full disk: results that need no space are shown, and no output file is incomplete."""

from __future__ import annotations

import errno
import json
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


@pytest.fixture
def full(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: DirectoryCheckpoints) -> None:
        raise DiskFullError("no space left on device", f"{folder}/recovery-point-offset-checkpoint.tmp")

    monkeypatch.setattr(DirectoryCheckpoints, "write", refuse)


@pytest.fixture
def half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each write of a text fail after its first half, as on a full disk."""
    original_write = Path.write_text

    def write(path: Path, text: str, encoding: str) -> int:
        original_write(path, text[: len(text) // 2], encoding)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write)


@pytest.mark.usefixtures("full")
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


@pytest.mark.usefixtures("full")
def test_an_error_is_shown_before_the_disk_is_full(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "create", "orders", "--dir", folder]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.usefixtures("half_written")
@pytest.mark.parametrize(
    ("command", "earlier"),
    [
        (("report", "{folder}", "-o", "{file}"), None),
        (("report", "{folder}", "-o", "{file}"), b"earlier"),
        (("verify", "{tier}", "--budget", "requests=1", "--state", "{file}"), None),
    ],
)
def test_a_file_of_results_is_written_as_a_whole_or_not_at_all(
    folder: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    earlier: bytes | None,
) -> None:
    outputs = tmp_path_factory.mktemp("outputs")
    tier = tmp_path_factory.mktemp("tier").as_uri()
    with open_engine(folder) as engine:
        engine.log("orders", 0).roll()
        engine.log("orders", 0).append([Record(value=b"v")])
        engine.log("orders", 0).roll()
    assert run(["archive", folder, tier]) == 0
    file = outputs / "file"
    if earlier is not None:
        file.write_bytes(earlier)
    capsys.readouterr()
    assert run([part.format(folder=folder, file=file, tier=tier) for part in command]) == 2
    assert (
        capsys.readouterr().err
        == f"error: no space left on device path={file}: free space on this disk, then repeat the call\n"
    )
    assert {path: path.read_bytes() for path in outputs.iterdir()} == ({file: earlier} if file.exists() else {})


@pytest.mark.usefixtures("half_written")
def test_a_new_plugin_is_written_as_a_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new-plugin", "codec", "mine", "--into", str(tmp_path / "new"), "--json"]) == 2
    assert json.loads(capsys.readouterr().err) == {
        "error": "DiskFullError",
        "message": f"no space left on device path={tmp_path / 'new' / 'stratalog-mine'}: free space on this disk, then "
        "repeat the call",
    }
    assert list((tmp_path / "new").iterdir()) == []
