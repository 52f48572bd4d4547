"""The ``stratalog`` command group: its subcommands, and the exit code and message of each error."""

from __future__ import annotations

import json
import os
import sys

import click
from click.shell_completion import shell_complete

import stratalog
from stratalog.cli.archive import archive
from stratalog.cli.attach import attach
from stratalog.cli.bench import bench
from stratalog.cli.check_plugin import check
from stratalog.cli.cleaner import cleaner
from stratalog.cli.consume import consume
from stratalog.cli.demo import demo
from stratalog.cli.dump import dump
from stratalog.cli.erase import erase
from stratalog.cli.explain import explain
from stratalog.cli.offload import offload
from stratalog.cli.output import Output
from stratalog.cli.plugins import plugins
from stratalog.cli.produce import produce
from stratalog.cli.rebuild import rebuild
from stratalog.cli.recover import recover
from stratalog.cli.restore import restore_command
from stratalog.cli.retention import retention
from stratalog.cli.running import run_engine
from stratalog.cli.tier import tier
from stratalog.cli.topics import topics
from stratalog.cli.verify import verify
from stratalog.cli.why_kept import why_kept
from stratalog.config.settings_sources import read_settings
from stratalog.errors import PluginError, StorageError
from stratalog.reading.open_reader import load_registry
from stratalog.registry.resolve import Shelf
from stratalog.spi.commands import settings_file
from stratalog.spi.service_contract import Command

INTERRUPTED = 130
COMPLETE_VARIABLE = "_STRATALOG_COMPLETE"


class PluginGroup(click.Group):
    """Commands of this package and of plugins; plugins are loaded only when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted; a shell completion leaves out plugins' commands if plugins cannot be loaded."""
        try:
            others = _plugin_commands().names()
        except StorageError:
            if not ctx.resilient_parsing:
                raise
            others = ()
        return sorted({*super().list_commands(ctx), *others})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return this package's command of this name, or else a plugin's command."""
        own = super().get_command(ctx, cmd_name)
        commands = None if own is not None else _plugin_commands()
        if commands is None or cmd_name not in commands:
            return own
        return _load(commands, cmd_name)


def _load(commands: Shelf[Command], name: str) -> click.Command:
    command = commands.by_name(name)
    try:
        loaded = command.load()
    except Exception as error:  # a plugin may raise anything
        raise PluginError(f"command {name!r} of a plugin cannot be loaded: {error!r}") from error
    if not isinstance(loaded, click.Command):
        raise PluginError(f"command {name!r} of a plugin is no click command but {loaded!r}")
    return loaded


def _plugin_commands() -> Shelf[Command]:
    return load_registry(read_settings(settings_file(None), os.environ)).commands()


_EPILOG = """\b
Settings:    --config FILE, else the file that STRATALOG_CONFIG names, else
             ./stratalog.toml; STRATALOG_* variables win over a file.
Completion:  eval "$(_STRATALOG_COMPLETE=bash_source stratalog)", once a
             shell; zsh_source and fish_source for those.
"""


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(stratalog.__version__, prog_name="stratalog")
def app() -> None:
    """Kafka's storage layer as a library: look into logs, move them to object stores, read them back."""


for command in (
    attach,
    archive,
    bench,
    check,
    cleaner,
    consume,
    demo,
    dump,
    erase,
    explain,
    offload,
    plugins,
    produce,
    rebuild,
    recover,
    restore_command,
    retention,
    run_engine,
    tier,
    topics,
    verify,
    why_kept,
):
    app.add_command(command)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None and os.environ.get(COMPLETE_VARIABLE):
        return _complete(os.environ[COMPLETE_VARIABLE])
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    try:
        with app.make_context("stratalog", list(given), obj=Output) as context:  # for plugins' commands
            result = app.invoke(context)
        sys.stdout.flush()  # a failed write is an error of this run
    except click.exceptions.Exit as stop:  # raised after --help and --version
        return stop.exit_code
    except click.ClickException as error:
        if as_json:
            _report(error, error.format_message(), as_json=True)
        else:
            error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except StorageError as error:
        _report(error, str(error), as_json=as_json)
        return 2
    except BrokenPipeError:  # the reader of the output has exited, as `head` does; this is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit fails too
        return 0
    except OSError as error:
        _report(error, str(error), as_json=as_json)
        return 2
    return result if isinstance(result, int) else 0


def _complete(instruction: str) -> int:
    """Print a shell's completion script, or the completions; hide errors, which the command reports when it runs."""
    try:
        return shell_complete(app, {"obj": Output}, "stratalog", COMPLETE_VARIABLE, instruction)
    except StorageError:
        return 2


def _report(error: Exception, message: str, *, as_json: bool) -> None:
    notes = list(getattr(error, "__notes__", ()))
    if as_json:
        told: dict[str, object] = {"error": type(error).__name__, "message": message}
        sys.stderr.write(json.dumps({**told, "notes": notes} if notes else told) + "\n")
    else:
        sys.stderr.write("\n  ".join([f"error: {message}", *notes]) + "\n")
