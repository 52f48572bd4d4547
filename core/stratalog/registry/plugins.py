"""What is known of each plugin: the rows of ``stratalog plugins``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stratalog.errors import PluginError
from stratalog.extensions import absence
from stratalog.registry.resolve import origin
from stratalog.spi.providers import Provider


class PluginStatus(StrEnum):
    """How a plugin fared."""

    OK = "ok"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OfferInfo:
    """One provider, in words.

    Attributes:
        name: the provider's.
        version: of the bytes it writes.
        schemes: URI schemes, stores only.
        capabilities: words for people.
        extensions: the compiled modules that do its work where they could be built.
    """

    name: str
    version: int
    schemes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    @classmethod
    def of(cls, provider: Provider[Any]) -> OfferInfo:  # Any: providers of every kind
        """The words for a provider."""
        schemes = tuple(sorted(provider.schemes))
        return cls(provider.name, provider.version, schemes, provider.capabilities, provider.extensions)

    def not_compiled(self) -> dict[str, str]:
        """Which of its compiled modules are not in use, and why; asking imports the others."""
        return {module: reason for module in self.extensions if (reason := absence(module))}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin.

    Attributes:
        name: its entry point, or the module that the caller passed.
        distribution: the installed distribution, "" if the caller passed the plugin.
        version: of the distribution.
        status: ok, blocked by the settings, or failed; only an ok one has offers.
        error: why it failed.
        offers: what it offers, by kind (``codecs``, ``object_stores``, ...); kinds without offers are left out.
    """

    name: str
    distribution: str
    version: str
    status: PluginStatus
    error: PluginError | None = None
    offers: Mapping[str, tuple[OfferInfo, ...]] = field(default_factory=dict)

    @property
    def absence(self) -> str:
        """A sentence on why what it offers is not there, "" if it is."""
        who = origin(self.name, self.distribution, self.version)
        if self.status is PluginStatus.BLOCKED:
            return f"{who} is blocked by plugins.allow or plugins.block"
        return f"{who} failed: {self.error}" if self.status is PluginStatus.FAILED else ""
