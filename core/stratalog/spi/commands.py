"""What commands that plugins add to the command line are made of, and print with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


def taken_together(
    name: str, make: Callable[..., object], *options: Callable[[Any], Any]
) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator for options that several commands share, and that a command takes as one value.

    Args:
        name: the command's argument: it is called with ``name=make(...)``.
        make: its parameters are named as the options are; they are not handed on.
        options: click's decorators, the one that help shows last first.
    """
    parts = tuple(inspect.signature(make).parameters)

    def decorated(function: CommandFunction) -> CommandFunction:
        @functools.wraps(function)
        def wrapped(*args: object, **given: object) -> object:
            made = make(**{part: given.pop(part) for part in parts})
            return function(*args, **{name: made}, **given)

        command: Any = wrapped
        for option in options:
            command = option(command)
        found: CommandFunction = command
        return found

    return decorated


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
