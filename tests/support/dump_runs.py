"""Runs of ``stratalog dump`` over files that a test wrote, for machines and for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dump_items import Item
from stratalog.cli.app import run


class DumpRunner:
    """Dumps files twice, with ``--json`` and without; exit code, items, and what people are shown."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, list[Item], str]:
        code = run(["dump", *map(str, arguments), "--json"])
        items = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        assert run(["dump", *map(str, arguments)]) == code
        people = self._capsys.readouterr()
        return code, items, people.out + people.err


def written(folder: Path, name: str, data: bytes) -> Path:
    """A file with these bytes."""
    (folder / name).write_bytes(data)
    return folder / name


def rows(items: list[Item], *names: str) -> list[tuple[object, ...]]:
    """Return these values of each item."""
    return [tuple(item[name] for name in names) for item in items]
