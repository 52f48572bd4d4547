"""Options and output for the commands that plugins add to the command line."""

from __future__ import annotations

import _thread
import contextlib
import functools
import inspect
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from stratalog.config.keys import Section
from stratalog.config.settings_sources import CONFIG_VARIABLE, load_settings, read_settings, variable_values
from stratalog.env.progress import Progress
from stratalog.errors import ConfigError

CONFIG_FILE: Final = "stratalog.toml"
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])
PluginSection = TypeVar("PluginSection", bound=Section)


def option_group(
    name: str, make: Callable[..., object], *options: Callable[[Any], Any]
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds several options to a click command and passes them as one argument.

    Args:
        name: name of the command's argument that gets the result of ``make``.
        make: function that builds the value. Its parameters have the names of the options, and get their values. The
            command itself does not get these options.
        options: click's option decorators. The help text shows the last one first.
    """
    parts = tuple(inspect.signature(make).parameters)

    def decorated(function: CommandFunction) -> CommandFunction:
        @functools.wraps(function)
        def wrapped(*args: object, **arguments: object) -> object:
            value = make(**{part: arguments.pop(part) for part in parts})
            return function(*args, **{name: value}, **arguments)

        command: Any = wrapped
        for option in options:
            command = option(command)
        decorated_command: CommandFunction = command
        return decorated_command

    return decorated


def config_option(function: CommandFunction) -> CommandFunction:
    """Add the option ``--config`` to a click command.

    The command gets the argument ``config``, a path or None: the result of ``settings_file``.
    """
    import click  # noqa: PLC0415 - an optional dependency, installed with the command line

    return click.option(
        "--config",
        type=click.Path(dir_okay=False),
        callback=lambda _context, _parameter, path: settings_file(path),
        help="Settings file. Default: the file that STRATALOG_CONFIG names, then ./stratalog.toml.",
    )(function)


def tier_option(function: CommandFunction) -> CommandFunction:
    """Add the option ``--tier-option``, which can be repeated, to a click command.

    The command gets the argument ``tier_options``, a dictionary: the result of the function ``tier_options``.
    """
    import click  # noqa: PLC0415 - an optional dependency, installed with the command line

    return click.option(
        "--tier-option",
        "tier_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _parameter, texts: tier_options(texts),
        help="Option for the object store, such as endpoint_url=URL, region=NAME, addressing=path or allow_http=true; "
        "can be repeated. Other users of the machine can see it: put secrets into the environment.",
    )(function)


def settings_file(option_path: str | None) -> str | None:
    """Return the path of a command's settings file; None if the command uses no file.

    The path is ``option_path`` if it is not None. Otherwise it is the value of ``STRATALOG_CONFIG``; an empty value
    means no file. If the variable is not set, the path is ``stratalog.toml`` in the working directory, if that file
    exists. A path from ``option_path`` or the variable is returned even if no such file exists. Only commands look for
    a file in the working directory; the library never does.
    """
    if option_path is not None:
        return option_path
    variable = os.environ.get(CONFIG_VARIABLE)
    if variable is not None:
        return variable or None
    return CONFIG_FILE if Path(CONFIG_FILE).is_file() else None


def settings_contents(file: str | None) -> dict[str, object] | None:
    """Return the contents of a settings file, to send them to machines without the file; None if ``file`` is None.

    Raises:
        ConfigError: the file does not exist, cannot be read, or is not valid TOML.
    """
    return None if file is None else load_settings(file)


def plugin_settings(file: str | None, name: str, section: type[PluginSection]) -> PluginSection:
    """Return the settings in ``[plugins.NAME]`` of a settings file, overridden by the variables of the environment.

    Contradictions between settings are not checked, because options of the command can override settings.

    Raises:
        ConfigError: the file does not exist, cannot be read, or is not valid TOML; or a value is wrong.
        UnknownSettingError: a name in the file is not the name of a setting.
    """
    settings = read_settings(file, os.environ)
    from_file = section().merged(settings.plugins.get(name, {}), f"[plugins.{name}] of {file}")
    return from_file.merged(variable_values(settings, name, section.keys()), "environment")


def tier_options(texts: Iterable[str]) -> dict[str, object]:
    """Return an object store's options by name, from texts of the form ``NAME=VALUE``.

    ``option_value`` parses the values. If a name occurs several times, its last value is used.

    Raises:
        ConfigError: a text has another form. The error does not show a value, which may be a secret.
    """
    options = dict[str, object]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError("--tier-option must have the form NAME=VALUE, such as --tier-option region=eu-north-1")
        options[name.strip()] = option_value(value)
    return options


def option_value(text: str) -> object:
    """Return the parsed value of ``text`` if it is a JSON object, array or boolean; otherwise return ``text`` itself.

    Numbers stay text: the plugin of the store converts them.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict | list | bool) else text


class _Steps(Protocol):
    """Progress of a command, counted in steps."""

    def add(self, steps: float) -> None:
        """Increase the total number of steps by ``steps``."""

    def advance(self, steps: float = 1) -> None:
        """Increase the number of completed steps by ``steps``."""


class CommandOutput(Protocol):
    """The output of a command: tables and progress for people, or one JSON object per line for programs.

    In a plugin's command, ``click.get_current_context().obj`` is a function that returns a CommandOutput. Call it as
    ``obj(as_json=True)`` or ``obj(as_json=False)``.
    """

    as_json: bool

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a title and a table; in JSON output, print one object for each row, with the column names as keys."""

    def item(self, values: Mapping[str, object]) -> None:
        """Print one JSON object as a line, even if ``as_json`` is False."""

    def line(self, text: str) -> None:
        """Print a line of text to stdout; in JSON output, print nothing."""

    def note(self, text: str) -> None:
        """Print a line for people to stderr; in JSON output, print nothing."""

    def progress(self, what: str, total: float) -> AbstractContextManager[_Steps]:
        """Return a context that shows a progress bar if stderr is a terminal; in JSON output, it shows nothing.

        The ``with`` statement's value counts steps: ``add(n)`` increases the total, ``advance(n)`` the completed steps.
        ``total`` is the initial total, and ``what`` the label of the bar.
        """

    def bytes_progress(self, what: str) -> AbstractContextManager[Progress]:
        """Return a context that shows bytes, rate and time left if stderr is a terminal; not in JSON output.

        The ``with`` statement's value is a ``Progress`` to pass to a long operation. After Ctrl-C, the next call of
        that ``Progress`` on any thread raises KeyboardInterrupt, if the context was entered on the main thread.
        ``what`` is the label of the bar.
        """


@contextlib.contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets. Raise ValueError if this is not the main thread.

    A clean shutdown may take long. If the same signal arrives a second time, the handler from before the context runs.
    The default handler ends the process without a clean shutdown. At the end of the context, both handlers are
    restored.
    """
    stop = threading.Event()
    before: dict[int, Callable[[int, FrameType | None], object] | int] = {}

    def obey(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, before[number])
        # On a new thread: this thread may already hold the lock of the event, or a lock that a ``Thread`` needs.
        _thread.start_new_thread(stop.set, ())

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        # None: a handler that Python did not set, and cannot restore
        before[signal_number] = signal.signal(signal_number, obey) or signal.SIG_DFL
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
