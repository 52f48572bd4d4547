"""``stratalog plugins``: what is installed, and what it offers."""

from __future__ import annotations

import os

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.config.files import read_settings
from stratalog.reading.open import load_registry


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="A stratalog.toml: it may allow, block and prefer.")
@json_option
def plugins(output: Output, config: str | None) -> int:
    """List installed plugins: distribution, kinds, names, versions, capabilities, and what failed to load.

    The exit code is 1 if a plugin failed.
    """
    found = load_registry(read_settings(config, os.environ)).plugins()
    rows: list[tuple[object, ...]] = []
    for plugin in found:
        base = (plugin.name, plugin.distribution, plugin.version, str(plugin.status))
        if not plugin.offers:
            rows.append((*base, "", "", None, "", str(plugin.error or "")))
        for kind, offers in plugin.offers.items():
            rows.extend((*base, kind, offer.name, offer.version, ", ".join(offer.capabilities), "") for offer in offers)
    columns = ("plugin", "distribution", "version", "status", "kind", "name", "bytes_version", "capabilities", "error")
    output.table("plugins", columns, rows)
    return 1 if any(plugin.error is not None for plugin in found) else 0
