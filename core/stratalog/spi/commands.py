"""What commands that plugins add to the command line print with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class CommandSteps(Protocol):
    """How far a command's work is."""

    def add(self, steps: float) -> None:
        """There are so many more than was known."""

    def advance(self, steps: float = 1) -> None:
        """So much more is done."""


class CommandOutput(Protocol):
    """What a command prints: tables and progress for people, one JSON object a line for machines.

    ``click.get_current_context().obj`` of a command that a plugin adds makes one: ``obj(as_json=True)``.
    """

    as_json: bool

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows with named columns; as JSON one object a row, with the column names as keys."""

    def item(self, values: Mapping[str, object]) -> None:
        """One JSON object on a line of its own."""

    def line(self, text: str) -> None:
        """A line of text; left out as JSON."""

    def note(self, text: str) -> None:
        """A line for people only, on stderr."""

    def progress(self, what: str, total: float) -> AbstractContextManager[CommandSteps]:
        """A progress bar while stderr is a terminal, else nothing."""
