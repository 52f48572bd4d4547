"""Runs of ``stratalog dump`` over files that a test wrote, as JSON and as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_runs import run_command
from dump_items import Item


class DumpRunner:
    """Dumps files with ``--json`` and then as text. Returns the exit code, the JSON items, and the text."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, list[Item], str]:
        for_programs = run_command(self._capsys, "dump", *arguments, "--json")
        for_people = run_command(self._capsys, "dump", *arguments)
        assert for_people.code == for_programs.code
        return for_people.code, for_programs.items, for_people.out + for_people.err


def written(folder: Path, name: str, data: bytes) -> Path:
    """Write a file with these bytes, and return its path."""
    (folder / name).write_bytes(data)
    return folder / name


def rows(items: list[Item], *names: str) -> list[tuple[object, ...]]:
    """Return the values of these fields, for each item."""
    return [tuple(item[name] for name in names) for item in items]
