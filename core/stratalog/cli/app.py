"""The ``stratalog`` command group: its subcommands, and the exit code and message of each error."""

from __future__ import annotations

import json
import os
import sys
from typing import Final

import click
from click.shell_completion import CompletionItem, shell_complete

import stratalog
from stratalog.cli.own_commands import OWN_COMMANDS, SECTIONS
from stratalog.cli.signal_handlers import interrupt_on_sigterm
from stratalog.config.settings_sources import read_settings
from stratalog.errors import PluginError, PluginImportError, StorageError
from stratalog.registry import Registry
from stratalog.registry.resolve import OfferTable
from stratalog.spi.commands import CommandOutput, settings_file
from stratalog.spi.service_contract import Command

INTERRUPTED, TERMINATED = 130, 143
COMPLETE_VARIABLE = "_STRATALOG_COMPLETE"
_DIRECTORY_ARGUMENTS: Final = ("directories", "location", "files", "uri")
_ARGUMENT_NAMES: Final = {"--dir": _DIRECTORY_ARGUMENTS, "-d": _DIRECTORY_ARGUMENTS, "--tier": ("uri",)}
"""Options of some commands, and the arguments that other commands have instead of them."""


class LazyGroup(click.Group):
    """Commands of this package and of plugins. A command is imported when it runs, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted. A shell completion ignores plugins that cannot be loaded."""
        return sorted(_texts(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command ``cmd_name`` of this package, or of a plugin if this package has none; None if unknown."""
        del ctx
        if cmd_name in OWN_COMMANDS:
            return OWN_COMMANDS[cmd_name].load()
        commands = _plugin_commands()
        return _load(commands, cmd_name) if cmd_name in commands else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` name. The error for an unknown name suggests a similar one.

        If the settings are wrong, the help of a plugin's command is still available: all installed plugins are loaded.
        """
        name = args[0]  # click empties the list before it raises an error for an unknown option
        try:
            return super().resolve_command(ctx, args)
        except StorageError:
            commands = None if set(args).isdisjoint(ctx.help_option_names) else Registry.load().commands()
            if commands is None or name not in commands:
                raise
            return name, _load(commands, name), args[1:]
        except click.UsageError:
            import difflib  # noqa: PLC0415 - only errors need it

            similar = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            if similar:
                ctx.fail(f"No such command {name!r}. Did you mean {similar[0]!r}?")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, in sections. If the settings or a plugin are wrong, write the error instead."""
        error_text, texts = "", dict[str, str]()
        try:
            texts = {name: text for name, text in _plugin_texts(ctx).items() if name not in OWN_COMMANDS}
        except StorageError as error:
            error_text = f"They are not listed, because of an error: {error}"
        sections = {
            section: [(name, command.help) for name, command in OWN_COMMANDS.items() if command.section == section]
            for section in SECTIONS
        }
        for section, rows in {**sections, "Commands of plugins": sorted(texts.items())}.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(sorted(rows))
        if error_text:
            with formatter.section("Commands of plugins"):
                formatter.write_text(error_text)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with ``incomplete``."""
        matching = [
            CompletionItem(name, help=text) for name, text in sorted(_texts(ctx).items()) if name.startswith(incomplete)
        ]
        return [*matching, *click.Command.shell_complete(self, ctx, incomplete)]


def _texts(ctx: click.Context) -> dict[str, str]:
    """Return the names and help texts of all commands, without importing the commands."""
    return {**_plugin_texts(ctx), **{name: command.help for name, command in OWN_COMMANDS.items()}}


def _plugin_texts(ctx: click.Context) -> dict[str, str]:
    try:
        commands = _plugin_commands()
    except StorageError:
        if not ctx.resilient_parsing:
            raise
        return {}
    return {name: commands.by_name(name).help for name in commands.names()}


def _load(commands: OfferTable[Command], name: str) -> click.Command:
    command = commands.by_name(name)
    try:
        click_command = command.load()
    except PluginImportError:  # its text names the extra to install
        raise
    except Exception as error:  # a plugin may raise anything
        raise PluginError(f"command {name!r} of a plugin cannot be loaded: {error!r}") from error
    if not isinstance(click_command, click.Command):
        raise PluginError(f"command {name!r} of a plugin is not a click command but {click_command!r}")
    return click_command


def _plugin_commands() -> OfferTable[Command]:
    return Registry.of(read_settings(settings_file(None), os.environ)).commands()


_EPILOG = """\b
After a loss or a crash:
  recover DIR            an engine or a broker crashed: check the ends of logs, and
                         rebuild indexes; an engine does this when it starts
  verify DIR --repair    files are damaged: truncate torn ends, rebuild indexes
  verify URI --repair    objects of a tier are damaged: upload them again from the
                         log directory --dir
  rebuild URI            the manifests of a tier are lost, but not its segments
  attach URI             the disk is lost: continue with empty directories
  restore URI DIR        copy logs out of a tier, optionally only up to a time or
                         an offset

\b
Settings:    Commands read the file of --config, or the file that
             STRATALOG_CONFIG names, or ./stratalog.toml. STRATALOG_*
             variables override the file.
Completion:  Run eval "$(_STRATALOG_COMPLETE=bash_source stratalog)" in
             ~/.bashrc. Use zsh_source or fish_source for these shells.
"""


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, epilog=_EPILOG
)
@click.version_option(stratalog.__version__, prog_name="stratalog")
def app() -> None:
    """Kafka's storage layer as a library: show logs, move them to object stores, and read them back."""


def make_output(*, as_json: bool) -> CommandOutput:
    """Return the output object for a plugin's command. This call imports rich."""
    from stratalog.cli.output import Output  # noqa: PLC0415 - listing the commands needs no rich

    return Output(as_json=as_json)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line with ``arguments`` (None: ``sys.argv``). Return its exit code: 0, 1, 2, 130 or 143.

    An error is printed to stderr, as JSON if the arguments contain ``--json`` or ``-J``. SIGTERM stops a command like
    Ctrl-C: it closes the logs cleanly, and removes temporary files.
    """
    if arguments is None and os.environ.get(COMPLETE_VARIABLE):
        return _complete(os.environ[COMPLETE_VARIABLE])
    with interrupt_on_sigterm() as is_terminated:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        return TERMINATED if code == INTERRUPTED and is_terminated() else code


def _run(argv: list[str]) -> int:
    as_json = not {"--json", "-J"}.isdisjoint(argv)
    try:
        with app.make_context("stratalog", list(argv), obj=make_output) as context:  # for plugins' commands
            result = app.invoke(context)
        sys.stdout.flush()  # a failed write is an error of this run
    except click.exceptions.Exit as stop:  # raised after --help and --version
        return stop.exit_code
    except click.ClickException as error:
        advised_error = _advised(error)
        if as_json:
            _report(advised_error, advised_error.format_message(), as_json=True)
        else:
            advised_error.show()
        return 2
    except (click.Abort, KeyboardInterrupt) as stop:
        text = "; ".join(["interrupted", *getattr(stop, "__notes__", ())])
        failure = {"error": "Interrupted", "message": text}
        sys.stderr.write((json.dumps(failure) if as_json else text) + "\n")
        return INTERRUPTED
    except StorageError as error:
        _report(error, str(error), as_json=as_json)
        return 2
    except BrokenPipeError:  # the reader of the output has exited, as `head` does; this is not an error
        _drop_output()
        return 0
    except OSError as error:
        _report(error, _os_text(error), as_json=as_json)
        _drop_output()
        return 2
    return result if isinstance(result, int) else 0


def _advised(error: click.ClickException) -> click.ClickException:
    """Return ``error``, or an error with advice if an option should be an argument, or an argument an option."""
    from stratalog.cli.parameters import NamedPath  # noqa: PLC0415 - only errors need it

    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        arguments = {item.name: item for item in error.ctx.command.params if isinstance(item, click.Argument)}
        for name in _ARGUMENT_NAMES.get(error.option_name, ()):
            if name in arguments:
                metavar = arguments[name].make_metavar(error.ctx).strip("[].")
                return click.UsageError(f"{error.message.rstrip('.')}. Use the argument {metavar}", error.ctx)
    if not (isinstance(error, click.UsageError) and error.message.startswith("Got unexpected extra argument")):
        return error
    extra = error.message.partition("(")[2].removesuffix(")")
    paths = [] if error.ctx is None else [item for item in error.ctx.command.params if isinstance(item.type, NamedPath)]
    has_option = any("--dir" in item.opts for item in paths)
    if (
        not has_option
        or any(isinstance(item, click.Argument) for item in paths)
        or not any(map(os.path.isdir, [extra, *extra.split()]))
    ):
        return error
    return click.UsageError(f"{error.message}. Name a log directory by --dir DIRECTORY", error.ctx)


def _os_text(error: OSError) -> str:
    """Return the reason and the path of an error, in the form of the text of a LogDirError."""
    if error.errno is None or error.strerror is None:
        return str(error)
    return error.strerror.lower() + ("" if error.filename is None else f" path={error.filename}")


def _drop_output() -> None:
    """Discard output that cannot be written. Python would flush it at exit, fail, and exit with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(instruction: str) -> int:
    """Print a shell's completion script, or completions. Hide errors, because the command reports them when it runs."""
    try:
        return shell_complete(app, {"obj": make_output}, "stratalog", COMPLETE_VARIABLE, instruction)
    except StorageError:
        return 2


def _report(error: Exception, message: str, *, as_json: bool) -> None:
    notes = list(getattr(error, "__notes__", ()))
    if as_json:
        failure: dict[str, object] = {"error": type(error).__name__, "message": message}
        sys.stderr.write(json.dumps({**failure, "notes": notes} if notes else failure) + "\n")
    else:
        sys.stderr.write("\n  ".join([f"error: {message}", *notes]) + "\n")
