"""``stratalog plugins``: list the installed plugins and their components."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import click

import stratalog
from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.config.settings_sources import read_settings
from stratalog.errors import StorageError
from stratalog.extensions import absence
from stratalog.model import records
from stratalog.reading.open_reader import open_host
from stratalog.registry.plugins import PluginInfo
from stratalog.spi.commands import config_option
from stratalog.tier.manifest import page_codec

_COLUMNS: Final = (
    "plugin", "distribution", "version", "status", "kind", "name", "bytes_version", "capabilities", "compiled",
    "not_compiled", "error",
)  # fmt: skip


@click.command()
@config_option
@json_option
def plugins(output: Output, config: str | None) -> int:
    """List installed plugins: distribution, kinds, names, versions, capabilities, and load errors.

    The columns compiled and not_compiled show if compiled code is used, and the reason if it is not used. The first row
    is the core.

    The command opens codecs, record formats and index formats. A component that cannot be opened is quarantined. Other
    components work.

    The exit code is 1 if a plugin failed, or if a component is quarantined.
    """
    with open_host(read_settings(config, os.environ)) as host:
        infos, quarantined = host.registry.plugins(), host.opener.find_quarantined()
    rows = [_core_row(), *(row for plugin in infos for row in _rows(plugin, quarantined))]
    output.table("plugins", _COLUMNS, rows)
    return 1 if quarantined or any(plugin.error is not None for plugin in infos) else 0


def _core_row() -> tuple[object, ...]:
    name = ("stratalog", "stratalog", stratalog.__version__)
    compiled_state = _compiled_state((*records.EXTENSIONS, *page_codec.EXTENSIONS))
    return (*name, "ok", "core", "records", None, "", *compiled_state, "")


def _rows(plugin: PluginInfo, quarantined: Mapping[tuple[str, str], StorageError]) -> list[tuple[object, ...]]:
    base = (plugin.name, plugin.distribution, plugin.version)
    if not plugin.offers:
        return [(*base, str(plugin.status), "", "", None, "", None, "", str(plugin.error or ""))]
    rows = list[tuple[object, ...]]()
    for kind, offers in plugin.offers.items():
        for offer in offers:
            error = quarantined.get((kind, offer.name))
            status = str(plugin.status) if error is None else "quarantined"
            words = (kind, offer.name, offer.version, ", ".join(offer.capabilities))
            rows.append(
                (*base, status, *words, *_compiled_state(offer.extensions), "" if error is None else str(error))
            )
    return rows


def _compiled_state(extensions: Sequence[str]) -> tuple[bool | None, str]:
    """Return the state of a component's compiled code, and a text with the missing compiled modules and the reasons.

    The state is True if all compiled modules are used, False if some are missing, and None if the component has no
    compiled modules.
    """
    if not extensions:
        return None, ""
    by_reason = dict[str, list[str]]()
    for module in extensions:
        if reason := absence(module):
            by_reason.setdefault(reason, []).append(module.rpartition(".")[2])
    return not by_reason, "; ".join(f"{', '.join(modules)}: {reason}" for reason, modules in by_reason.items())
