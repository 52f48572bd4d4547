"""Descriptions of plugins and their offers, which ``stratalog plugins`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from stratalog.errors import PluginError
from stratalog.registry.resolve import origin
from stratalog.spi.providers import Provider

Providers: TypeAlias = Mapping[str, tuple[Provider[Any], ...]]
"""Providers of every kind, by the kind's key. They are typed as Any, because each kind has its own class."""


class PluginStatus(StrEnum):
    """The status of a plugin after loading."""

    OK = "ok"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The description of one plugin.

    Attributes:
        name: name of its entry point, or of the module or class that the caller passed. If no installed plugin matches
            an entry of ``plugins.allow``, a PluginInfo with this entry as its name reports it.
        distribution: the installed distribution, "" if the caller passed the plugin.
        status: ok, blocked by the settings, or failed; only a plugin with status ok has offers.
        offers: its providers by kind (``codecs``, ``object_stores``, ...), without kinds that have no providers.
    """

    name: str
    distribution: str
    version: str
    status: PluginStatus
    error: PluginError | None = None
    offers: Providers = field(default_factory=dict)

    @property
    def absence(self) -> str:
        """A sentence with the reason why a blocked or failed plugin offers nothing; "" for other plugins."""
        if self.status is PluginStatus.OK:
            return ""
        description = origin(self.name, self.distribution, self.version)
        if self.status is PluginStatus.BLOCKED:
            return f"{description} is blocked by plugins.allow or plugins.block"
        return f"{description} failed: {self.error}"
