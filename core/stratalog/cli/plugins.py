"""``stratalog plugins``: what is installed, and what it offers."""

from __future__ import annotations

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.registry.registry import Registry


@click.command()
@json_option
def plugins(output: Output) -> int:
    """List installed plugins: distribution, kinds, names, versions, capabilities, and what failed to load.

    The exit code is 1 if a plugin failed.
    """
    found = Registry.load().plugins()
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
