"""The list of commands: its texts are short, and listing imports no module of a command."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest

from stratalog.cli.app import run
from stratalog.cli.own_commands import OWN_COMMANDS, SECTIONS
from stratalog.registry import Registry

LISTED = """
import sys
from stratalog.cli.app import run
assert run(["--help"]) == 0
print(*(name for name in ("rich", "stratalog.engine", "stratalog.tier", "stratalog.log") if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_each_command_of_the_list_has_that_name(name: str) -> None:
    command = OWN_COMMANDS[name].load()
    assert isinstance(command, click.Command)
    assert command.name == name


def test_the_list_shows_whole_texts_and_imports_no_command() -> None:
    ended = subprocess.run([sys.executable, "-c", LISTED], check=True, capture_output=True, text=True)  # noqa: S603 - our own interpreter
    assert ended.stderr == "\n"
    assert ended.stdout.count("...") == 1  # in the line of the usage
    for command in OWN_COMMANDS.values():
        assert command.help in ended.stdout


def test_the_list_has_each_command_once_below_its_heading() -> None:
    ended = subprocess.run([sys.executable, "-c", LISTED], check=True, capture_output=True, text=True)  # noqa: S603 - our own interpreter
    heading = ""
    headings: dict[str, list[str]] = {}
    for line in ended.stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line.removesuffix(":")
        elif (word := line[2:].partition(" ")[0]) in OWN_COMMANDS:
            headings.setdefault(word, []).append(heading)
    assert headings == {name: [command.section] for name, command in OWN_COMMANDS.items()}
    assert {command.section for command in OWN_COMMANDS.values()} == set(SECTIONS)


def test_the_plugins_are_loaded_once_to_find_a_command_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    load = Registry.load

    def count_load(*arguments: Any, **named: Any) -> Registry:
        loads.append(arguments)
        return load(*arguments, **named)

    monkeypatch.setattr(Registry, "load", count_load)
    assert run(["serve", "--help"]) == 0
    assert len(loads) == 1
