"""``stratalog plugins``: what is installed, and what it offers."""

from __future__ import annotations

import os
from typing import Final

import click

import stratalog
from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.config.files import read_settings
from stratalog.model.records import EXTENSIONS
from stratalog.reading.open import load_registry
from stratalog.registry.plugins import OfferInfo, PluginInfo

_COLUMNS: Final = (
    "plugin",
    "distribution",
    "version",
    "status",
    "kind",
    "name",
    "bytes_version",
    "capabilities",
    "compiled",
    "not_compiled",
    "error",
)


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="A stratalog.toml: it may allow, block and prefer.")
@json_option
def plugins(output: Output, config: str | None) -> int:
    """List installed plugins: distribution, kinds, names, versions, capabilities, and what failed to load.

    Where compiled code can do the work, the columns say whether it does and, if not, why. The first row is the core.

    The exit code is 1 if a plugin failed.
    """
    found = load_registry(read_settings(config, os.environ)).plugins()
    rows = [_core_row(), *(row for plugin in found for row in _rows(plugin))]
    output.table("plugins", _COLUMNS, rows)
    return 1 if any(plugin.error is not None for plugin in found) else 0


def _core_row() -> tuple[object, ...]:
    core = OfferInfo("records", 1, extensions=EXTENSIONS)
    return ("stratalog", "stratalog", stratalog.__version__, "ok", "core", core.name, None, "", *_compiled(core), "")


def _rows(plugin: PluginInfo) -> list[tuple[object, ...]]:
    base = (plugin.name, plugin.distribution, plugin.version, str(plugin.status))
    if not plugin.offers:
        return [(*base, "", "", None, "", None, "", str(plugin.error or ""))]
    return [
        (*base, kind, offer.name, offer.version, ", ".join(offer.capabilities), *_compiled(offer), "")
        for kind, offers in plugin.offers.items()
        for offer in offers
    ]


def _compiled(offer: OfferInfo) -> tuple[bool | None, str]:
    """Whether compiled code does the work (None: there is none), and which parts are missing, with the reason."""
    if not offer.extensions:
        return None, ""
    missing = offer.not_compiled()
    by_reason = dict[str, list[str]]()
    for module, reason in missing.items():
        by_reason.setdefault(reason, []).append(module.rpartition(".")[2])
    return not missing, "; ".join(f"{', '.join(modules)}: {reason}" for reason, modules in by_reason.items())
