"""Shell completion: the script that a shell loads, and the requests that the script makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from own_command import own_command
from stratalog.cli.app import run


def asked(monkeypatch: pytest.MonkeyPatch, words: str, number: int) -> None:
    monkeypatch.setenv("_STRATALOG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(number))


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --")])
def test_the_script_of_a_shell_is_printed(
    shell: str, mark: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("there is no bash, which click asks for its version")
    monkeypatch.setenv("_STRATALOG_COMPLETE", f"{shell}_source")
    assert run() == 0
    script = capsys.readouterr().out
    assert mark in script
    assert f"_STRATALOG_COMPLETE={shell}_complete" in script


def test_the_installed_command_prints_it() -> None:
    environment = {**os.environ, "_STRATALOG_COMPLETE": "zsh_source"}
    printed = subprocess.check_output(own_command(), env=environment, text=True)  # noqa: S603 - our own interpreter
    assert "#compdef stratalog" in printed


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [
        ("stratalog t", 1, {"plain,tier", "plain,top", "plain,topics"}),
        ("stratalog topics d", 2, {"plain,delete", "plain,describe"}),
        ("stratalog topics list --ti", 3, {"plain,--tier", "plain,--tier-option"}),
        ("stratalog verify ", 2, {"file,"}),
    ],
)
def test_commands_options_and_paths_are_completed(
    words: str, number: int, expected: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(monkeypatch, words, number)
    assert run() == 0
    assert set(capsys.readouterr().out.split()) == expected


def test_wrong_settings_do_not_keep_our_own_commands_from_being_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stratalog.toml").write_text("no = 'setting'\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    asked(monkeypatch, "stratalog to", 1)
    assert run() == 0
    assert capsys.readouterr().out.split() == ["plain,top", "plain,topics"]


def test_the_help_explains_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "_STRATALOG_COMPLETE=bash_source" in capsys.readouterr().out
