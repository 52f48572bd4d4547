"""Commands whose path is not a log directory: the error has the path as it was typed, and advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.cli.app import run

COMMANDS = [
    ["consume", "orders", "--dir"],
    ["topics", "list", "--dir"],
    ["explain", "orders", "0", "0", "--dir"],
    ["why-kept", "orders", "0", "--dir"],
    ["produce", "orders", "--dir"],
    ["retention", "--dir"],
    ["cleaner", "--dir"],
    ["verify"],
    ["recover"],
    ["sql", "select 1"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_is_no_log_directory(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.txt"
    path.write_text("a record\n")
    assert run([*command, str(path)]) == 2
    assert f"not a directory path={path}: check the path" in capsys.readouterr().err
    assert path.read_text() == "a record\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_missing_directory_is_not_created(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing"
    assert run([*command, str(path)]) == 2
    message = capsys.readouterr().err
    assert "no such " in message
    assert f"path={path}: " in message
    assert not path.exists()


def test_an_engine_advises_to_begin_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new logs"
    assert run(["retention", "--dir", str(path)]) == 2
    assert f"mkdir '{path}'" in capsys.readouterr().err


def test_no_topic_is_created_among_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    assert run(["topics", "create", "orders", "--dir", str(tmp_path)]) == 2
    assert "the directory contains other files, and no logs" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
