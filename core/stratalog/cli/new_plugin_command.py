"""``stratalog new-plugin``: write the skeleton of a plugin."""

from __future__ import annotations

import os
import shlex
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
    """Write an installable plugin with one component NAME of the kind KIND.

    KIND is record-format, codec, index-format, extra-index, segment-store, object-store, tier-layout, cleanup-policy or
    service.

    The methods of the component raise errors that describe the missing code. Its tests are the contract tests of KIND.
    """
    from stratalog.testing.new_plugin import new_plugin  # noqa: PLC0415 - imports pytest, which only this command needs

    paths = new_plugin(kind, name, into)
    output.table(f"new plugin {name}", ("file",), [(str(path),) for path in paths])
    folder = shlex.quote(os.path.join(os.curdir, paths[0].parent))  # noqa: PTH118 - pip needs ./, which Path removes
    output.note(f"write the methods, run pip install {folder}, then stratalog check-plugin {name} --contracts")
    return 0
