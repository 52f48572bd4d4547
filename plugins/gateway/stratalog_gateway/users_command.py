"""``stratalog users``: manage the users of SASL PLAIN and SCRAM."""

from __future__ import annotations

import sys
import warnings
from getpass import GetPassWarning
from pathlib import Path
from typing import Final

import click

from stratalog.errors import ConfigError
from stratalog_gateway.security.users import (
    ALGORITHMS,
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    load_users,
    make_credential,
    normalize,
    save_users,
)

_EPILOG: Final = "\b\nExample:  stratalog users add users.json alice"


@click.group("users")
def users() -> None:
    """Manage the users of the gateway's SASL listeners (PLAIN and SCRAM).

    FILE contains salted keys of the users, and no passwords. The setting `users.file` of [plugins.gateway] is the path
    of FILE. A running gateway uses changes within a second.
    """


@users.command("add", epilog=_EPILOG)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password from the first line of standard input.")
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Number of iterations of the key derivation.",
)
def add(file: Path, name: str, iterations: int, *, password_stdin: bool) -> None:
    """Add the user NAME to FILE, or change the user's password. A missing file is created."""
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else _prompt_password()
    if not password or not name:
        raise ConfigError("name and password must not be empty")
    credentials = dict(load_users(file)) if file.exists() else {}
    credentials[normalize(name)] = {
        mechanism: make_credential(mechanism, password, iterations=iterations) for mechanism in ALGORITHMS
    }
    save_users(file, credentials)


def _prompt_password() -> str:
    """Ask twice for a password. Raise a UsageError that names ``--password-stdin`` if there is no terminal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", GetPassWarning)  # without a terminal, a typed password could be visible
            return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    except GetPassWarning:
        raise click.UsageError(
            "no terminal to ask for the password: add --password-stdin to read it from standard input"
        ) from None


@users.command("remove")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove the user NAME from FILE. Connections of the user stay open."""
    credentials = dict(load_users(file))
    if credentials.pop(normalize(name), None) is None:
        raise ConfigError(f"{file} has no user {name}")
    save_users(file, credentials)


@users.command("list")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
def list_(file: Path) -> None:
    """List the users of FILE."""
    for name in load_users(file):
        click.echo(name)
