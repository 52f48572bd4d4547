"""What commands that plugins add to the command line are made of, and print with."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from stratalog.config.settings_sources import CONFIG_VARIABLE, load_settings
from stratalog.errors import ConfigError

CONFIG_FILE: Final = "stratalog.toml"
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


def config_option(function: CommandFunction) -> CommandFunction:
    """Add ``--config``: handed to the command as ``config``, the path of the settings file, None if there is none."""
    import click  # noqa: PLC0415 - an extra, which commands have

    return click.option(
        "--config",
        type=click.Path(dir_okay=False),
        callback=lambda _context, _parameter, given: settings_file(given),
        help="A file with settings; else the one that STRATALOG_CONFIG names, else ./stratalog.toml.",
    )(function)


def tier_option(function: CommandFunction) -> CommandFunction:
    """Add ``--tier-option``: handed to the command as ``tier_options``, a mapping for the store of the tier."""
    import click  # noqa: PLC0415 - the same

    return click.option(
        "--tier-option",
        "tier_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _parameter, given: tier_options(given),
        help="An option for the store of the tier: endpoint_url=URL, region=NAME, addressing=path, allow_http=true. Can be "
        "repeated. Other users of the machine see it: leave secrets to the environment.",
    )(function)


def settings_file(given: str | None) -> str | None:
    """Return the settings file of a command.

    That is ``given``; else the file that ``STRATALOG_CONFIG`` names; else ``stratalog.toml`` in the working directory, if
    there is one. If the variable is set and empty, no file is used. The library by itself never reads a file because it is
    in the working directory.
    """
    if given is not None:
        return given
    named = os.environ.get(CONFIG_VARIABLE)
    if named is not None:
        return named or None
    return CONFIG_FILE if Path(CONFIG_FILE).is_file() else None


def settings_contents(file: str | None) -> dict[str, object] | None:
    """Return what is in a settings file, for tasks on machines that do not have the file; None if there is none."""
    return None if file is None else load_settings(file)


def tier_options(texts: Iterable[str]) -> dict[str, object]:
    """Return options of a store from texts of the form ``NAME=VALUE``; the last of a name wins.

    Raises:
        ConfigError: a text has another form. The error does not show a value, which may be a secret.
    """
    found = dict[str, object]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError("an option of the store has the form NAME=VALUE: --tier-option region=eu-north-1")
        found[name.strip()] = option_value(value)
    return found


def option_value(text: str) -> object:
    """Return a JSON table, list or switch as that value, and other text as it is: the store's plugin converts it."""
    try:
        found: object = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict | list | bool) else text


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
