"""The list of commands: short texts, and no import of what it lists."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from stratalog.cli.own_commands import OWN_COMMANDS

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
