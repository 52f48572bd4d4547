"""The settings file of a command: of the option, of the environment variable, or in the working directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stratalog import Record, open_engine
from stratalog.cli.app import app, run
from stratalog_spark.commands.commands import spark


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the working directory and return it. Its parent has three log directories, each with one topic."""
    for name in ("named", "variable", "working"):
        with open_engine(tmp_path / name) as engine:
            engine.create_topic(name)
            engine.log(name, 0).append([Record(value=b"v")])
        (tmp_path / f"{name}.toml").write_text(f'log.dirs = ["{tmp_path / name}"]\n', encoding="utf-8")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STRATALOG_CONFIG", raising=False)
    return folder


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["topics", "list", "--json", *arguments]) == 0
    return capsys.readouterr().out


def test_the_order_is_the_option_the_variable_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stratalog.toml").write_bytes((here.parent / "working.toml").read_bytes())
    assert '"working"' in listed(capsys)
    monkeypatch.setenv("STRATALOG_CONFIG", str(here.parent / "variable.toml"))
    assert '"variable"' in listed(capsys)
    assert '"named"' in listed(capsys, "--config", str(here.parent / "named.toml"))


def test_an_empty_variable_is_no_file_at_all(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stratalog.toml").write_bytes((here.parent / "working.toml").read_bytes())
    monkeypatch.setenv("STRATALOG_CONFIG", "")
    assert run(["topics", "list"]) == 2
    assert "no logs are named" in capsys.readouterr().err


def test_an_unknown_setting_in_a_file_is_an_error_that_names_the_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stratalog.toml").write_text("durabilty = 'durable'\n", encoding="utf-8")
    assert run(["topics", "list"]) == 2
    error = capsys.readouterr().err
    assert "unknown setting 'durabilty' source=stratalog.toml; did you mean 'durability'" in error


def test_a_variable_that_names_no_file_is_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_CONFIG", str(here / "missing.toml"))
    assert run(["topics", "list"]) == 2
    assert "missing.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no settings file"),
        ("a = [", "is not valid TOML"),
        ("durabilty = 'durable'", "unknown setting 'durabilty'"),
        ("[plugins]\nmodules = ['missing_module']", "there is no module 'missing_module'"),
    ],
)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["verify", "--help"], ["serve", "--help"], ["spark", "verify", "-h"]]
)
def test_help_works_with_a_wrong_settings_file(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    reason: str,
    arguments: list[str],
) -> None:
    if text is not None:
        (here / "wrong.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("STRATALOG_CONFIG", str(here / "wrong.toml"))
    assert run(arguments) == 0
    printed_help = capsys.readouterr().out
    assert "Usage: stratalog" in printed_help
    is_list = len(arguments) == 1
    assert ("They are not listed, because of an error" in printed_help) is is_list
    assert (reason in " ".join(printed_help.split())) is is_list


@pytest.mark.usefixtures("here")
def test_help_of_a_plugins_command_works_with_a_wrong_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_DURABILTY", "durable")
    assert run(["serve", "--help"]) == 0
    assert "Usage: stratalog serve" in capsys.readouterr().out
    for arguments in (["serve", "data"], ["unknown-command", "--help"]):
        assert run(arguments) == 2
        assert "unknown setting 'STRATALOG_DURABILTY'" in capsys.readouterr().err


def test_an_engine_of_a_program_reads_no_file_of_the_working_directory(here: Path, tmp_path: Path) -> None:
    (here / "stratalog.toml").write_text("durabilty = 'durable'\n", encoding="utf-8")
    with open_engine(tmp_path / "working") as engine:
        assert list(engine.topics()) == ["working"]


def test_a_directory_is_verified_beside_a_file_of_settings(here: Path, tmp_path: Path) -> None:
    """``verify DIR`` has no ``--config``, and ignores a settings file in the working directory."""
    (here / "stratalog.toml").write_bytes((here.parent / "working.toml").read_bytes())
    assert run(["verify", str(tmp_path / "named")]) == 0


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict([*commands(app), *commands(spark, "spark ")])
TAKES_A_TIER = frozenset({"uri", "tier", "place", "location", "target"})


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_takes_a_tier_takes_options_for_its_store(name: str) -> None:
    parameters = {parameter.name for parameter in ALL[name].params}
    assert bool(TAKES_A_TIER & parameters) == ("tier_options" in parameters)


def test_commands_show_where_settings_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "STRATALOG_CONFIG" in help_text
    assert "./stratalog.toml" in help_text
