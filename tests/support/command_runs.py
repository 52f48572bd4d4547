"""Runs of ``stratalog`` in the process of the test, and the JSON objects that they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from stratalog.cli.app import run


class CommandRun(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of the output."""
        return self.out.splitlines()

    @property
    def items(self) -> list[dict[str, Any]]:
        """Return the JSON object of each line of the output."""
        return [json.loads(line) for line in self.lines]


RunCommand = Callable[..., CommandRun]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandRun:
    """Run a command, and return its exit code and its output."""
    code = run([*map(str, arguments)])
    return CommandRun(code, *capsys.readouterr())


def items_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    """Run a command with ``--json``, which must succeed, and return the JSON objects that it prints."""
    ended = run_command(capsys, *arguments, "--json")
    assert ended.code == 0, ended
    return ended.items


def printed_items(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed since the output was read the last time, one for each line."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
