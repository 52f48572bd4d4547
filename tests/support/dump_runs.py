"""Runs of ``stratalog dump`` over files that a test wrote, as JSON and as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dump_items import Item
from stratalog.cli.app import run


class DumpRunner:
    """Dumps files with ``--json`` and then as text. Returns the exit code, the JSON items, and the text."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, list[Item], str]:
        code = run(["dump", *map(str, arguments), "--json"])
        items = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        assert run(["dump", *map(str, arguments)]) == code
        people = self._capsys.readouterr()
        return code, items, people.out + people.err


def written(folder: Path, name: str, data: bytes) -> Path:
    """Write a file with these bytes, and return its path."""
    (folder / name).write_bytes(data)
    return folder / name


def rows(items: list[Item], *names: str) -> list[tuple[object, ...]]:
    """Return the values of these fields, for each item."""
    return [tuple(item[name] for name in names) for item in items]
