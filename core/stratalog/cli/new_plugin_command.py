"""``stratalog new-plugin``: write the skeleton of a plugin."""

from __future__ import annotations

from pathlib import Path

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output


@click.command("new-plugin")
@click.argument("kind")
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=".", help="Parent of the new folder stratalog-NAME.")
@json_option
def new(output: Output, kind: str, name: str, into: Path) -> int:
    """Write an installable plugin with one component NAME of the kind KIND, for example cleanup-policy or codec.

    The methods of the component raise errors that describe the missing code. Its tests are the contract tests of KIND.
    """
    from stratalog.testing.new_plugin import new_plugin  # noqa: PLC0415 - imports pytest, which only this command needs

    rows = [(str(path),) for path in new_plugin(kind, name, into)]
    output.table(f"new plugin {name}", ("file",), rows)
    return 0
