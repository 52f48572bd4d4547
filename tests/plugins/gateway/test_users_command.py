from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from own_command import running_command
from stratalog.cli.app import app
from stratalog.errors import ConfigError
from stratalog_gateway.security.users import load_users
from stratalog_gateway.users_command import users


def run(*arguments: str, text: str = "") -> Any:
    return CliRunner().invoke(users, arguments, input=text, **app.context_settings)


def test_a_user_is_added_changed_listed_and_removed(tmp_path: Path) -> None:
    file = str(tmp_path / "users.json")
    assert run("add", file, "alice", text="one\none\n").exit_code == 0
    assert run("add", file, "bob", "--password-stdin", "--iterations", "4096", text="two\n").exit_code == 0
    assert run("list", file).output == "alice\nbob\n"
    loaded_users = load_users(Path(file))
    assert loaded_users["alice"].keys() == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert all(credential.accepts("one") for credential in loaded_users["alice"].values())
    assert all(
        credential.accepts("two") and credential.iterations == 4096 for credential in loaded_users["bob"].values()
    )
    assert run("add", file, "alice", "--password-stdin", text="three\n").exit_code == 0
    assert not load_users(Path(file))["alice"]["SCRAM-SHA-256"].accepts("one")
    assert run("remove", file, "alice").exit_code == 0
    assert run("list", file).output == "bob\n"


def test_only_the_owner_reads_the_file_and_it_has_no_password(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    assert run("add", str(file), "alice", "--password-stdin", text="wonderland\n").exit_code == 0
    assert file.stat().st_mode & 0o077 == 0
    assert "wonderland" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "text", "reason"),
    [
        (("remove", "FILE", "nobody"), "", "has no user nobody"),
        (("add", "FILE", "alice", "--password-stdin"), "\n", "must not be empty"),
        (("add", "WRONG", "alice", "--password-stdin"), "x\n", 'is not an object with "version": 1'),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[str, ...], text: str, reason: str) -> None:
    file, invalid_file = tmp_path / "users.json", tmp_path / "wrong.json"
    invalid_file.write_text("{}")
    assert run("add", str(file), "alice", "--password-stdin", text="x\n").exit_code == 0
    names = {"FILE": str(file), "WRONG": str(invalid_file)}
    result = run(*(names.get(argument, argument) for argument in arguments), text=text)
    assert isinstance(result.exception, ConfigError)
    assert reason in str(result.exception)


@pytest.mark.parametrize("text", ["", "x\nx\n"])
def test_without_a_terminal_no_password_is_asked_for(tmp_path: Path, text: str) -> None:
    command = running_command(
        "users", "add", str(tmp_path / "users.json"), "alice",
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with command as running:
        message = running.communicate(text)[1]
    assert running.returncode == 2
    assert message.endswith(
        "no terminal to ask for the password: add --password-stdin to read it from standard input\n"
    )
    assert "Warning" not in message
    assert not (tmp_path / "users.json").exists()


@pytest.mark.parametrize("change", ['"salt"', '"iterations": 8192', '"SCRAM-SHA-256"'])
def test_a_damaged_credential_is_named(tmp_path: Path, change: str) -> None:
    file = tmp_path / "users.json"
    assert run("add", str(file), "alice", "--password-stdin", text="x\n").exit_code == 0
    changed = {'"salt"': '"pepper"', '"iterations": 8192': '"iterations": 1', '"SCRAM-SHA-256"': '"MD5"'}[change]
    file.write_text(file.read_text().replace(change, changed))
    with pytest.raises(ConfigError, match="user alice"):
        load_users(file)
