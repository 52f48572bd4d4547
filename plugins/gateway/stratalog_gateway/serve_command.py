"""``stratalog serve``: run an engine and its gateway until a signal stops them."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from stratalog import open_engine, open_reader
from stratalog.errors import ConfigError
from stratalog.spi import Env, config_option, stop_event, tier_option
from stratalog.spi.commands import plugin_settings
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.read_only import ReadOnlySource
from stratalog_gateway.settings import GatewaySection

_SWITCH_S: Final = 0.0005  # below Python's default, to shorten the wait for the GIL after a system call
_STACK_BYTES: Final = 256 << 10  # stack size of the thread of each connection
_IDS_FILE: Final = "stratalog-served-topics.json"  # in the directory of --state
_EPILOG: Final = "\b\nExample:  stratalog serve data --listen 127.0.0.1:9092"


@click.command("serve", epilog=_EPILOG)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--listen",
    metavar="[NAME://]HOST:PORT",
    multiple=True,
    help="Address to listen on; can be repeated. Port 0 means any free port. NAME is PLAINTEXT (the default), SSL, "
    "SASL_PLAINTEXT or SASL_SSL. Default: 127.0.0.1:9092.",
)
@click.option(
    "--advertised-host",
    metavar="HOST",
    help="Host that the gateway advertises to clients. Default: the host of --listen.",
)
@click.option("--insecure", is_flag=True, help="Allow listeners without authentication that other machines can reach.")
@click.option("--node-id", type=click.IntRange(0, (1 << 31) - 1), help="Node id of the broker. Default: 1.")
@click.option("--tier", metavar="URI", help="URI of the tier: the object store for closed segments.")
@click.option("--read-only", is_flag=True, help="Only read DIR. Another process may write to it.")
@click.option(
    "--state",
    metavar="DIR",
    help="Directory for the offsets of consumer groups of a read-only gateway. Default: a temporary directory.",
)
@tier_option
@config_option
def serve(
    directories: tuple[str, ...],
    listen: tuple[str, ...],
    advertised_host: str | None,
    node_id: int | None,
    tier: str | None,
    tier_options: dict[str, object],
    config: str | None,
    state: str | None,
    *,
    insecure: bool,
    read_only: bool,
) -> None:
    """Serve log directories to Kafka clients, as a cluster of one broker.

    Missing directories are created. The background duties of the engine run, too. The command is ready when it prints
    its address, and runs until Ctrl-C or SIGTERM. --insecure is necessary if other machines can reach a listener that
    does not authenticate its clients. Options override the settings in [plugins.gateway] of the settings file.

    If DIR is the URI of a tier, such as s3://bucket/prefix, clients read the tier, and nothing is written to it.
    Several such gateways can read one tier while a writer commits to it.
    """
    overrides: dict[str, object] = {"listeners": [_listener(text) for text in listen]} if listen else {}
    options = {"advertised.host": advertised_host, "node.id": node_id, "insecure": insecure or None}
    overrides |= {name: value for name, value in options.items() if value is not None}
    settings = _settings(config, overrides)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    sys.setswitchinterval(_SWITCH_S)
    threading.stack_size(_STACK_BYTES)
    with stop_event() as stop, contextlib.ExitStack() as stack:
        if read_only or "://" in directories[0]:
            if len(directories) > 1:
                raise ConfigError("a read-only gateway reads one directory or one tier: start a gateway for each")
            (location,) = directories
            reader = stack.enter_context(open_reader(location, tier=tier, tier_options=tier_options, config=config))
            state = stack.enter_context(tempfile.TemporaryDirectory()) if state is None else state
            engine = stack.enter_context(open_engine(state, tier="", config={}))
            source = ReadOnlySource(reader, settings.refresh_ms, Env().clock, Path(state, _IDS_FILE))
        elif state is not None:
            raise ConfigError("--state is for a read-only gateway: add --read-only")
        else:
            source = None
            for directory in directories:
                _check_directory(directory)
            engine = stack.enter_context(open_engine(directories, tier=tier, tier_options=tier_options, config=config))
        gateway = Gateway(engine, settings, Env().clock, source)
        try:
            engine.start()
            gateway.start()
            gc.freeze()
            for name, address in gateway.addresses.items():
                click.echo(address if len(gateway.addresses) == 1 else f"{name}://{address}")
            stop.wait()
            click.echo("stopping", err=True)
        finally:
            gateway.stop()


def _check_directory(directory: str) -> None:
    """Raise LogDirNotFoundError if a directory contains only files of other programs, such as a home directory."""
    path = Path(directory)
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if names - {"lost+found"} and ".lock" not in names:  # each engine and each broker creates a lock file
        open_reader(directory, config={}).close()  # raises the error


def _settings(config: str | None, overrides: Mapping[str, object]) -> GatewaySection:
    """Return the settings of the gateway, with ``overrides``; raise ConfigError if a value is wrong."""
    settings = plugin_settings(config, "gateway", GatewaySection).merged(overrides, "options")
    contradiction = settings.contradiction()
    if contradiction:
        raise ConfigError(contradiction).advised("add --insecure to allow it")
    settings.check_advertised()
    return settings


def _listener(text: str) -> str:
    """Return the text of ``--listen`` as ``NAME://HOST:PORT``. NAME is PLAINTEXT if the text has no name."""
    uri = text if "://" in text else f"PLAINTEXT://{text}"
    host, _, port = uri.partition("://")[2].rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(f"--listen {text} is not of the form HOST:PORT, such as 127.0.0.1:9092")
    return uri
