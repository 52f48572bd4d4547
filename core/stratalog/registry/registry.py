"""The plugins of one engine: their components and listeners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from stratalog.config.keys import Section
from stratalog.config.settings_sources import Settings
from stratalog.env.deadlines import DeadlineCalls
from stratalog.errors import PluginClashError
from stratalog.model.events import Event
from stratalog.registry import component_kinds
from stratalog.registry.component_kinds import ComponentKind
from stratalog.registry.host import Host
from stratalog.registry.plugin_loader import explain_answer, load_plugins
from stratalog.registry.plugins import PluginInfo, PluginStatus
from stratalog.registry.resolve import Catalogue, Offer, OfferTable, check_requires
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.spi.codecs import Codec
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.hooks import PROJECT
from stratalog.spi.indexes import IndexFormat
from stratalog.spi.layouts import TierLayout
from stratalog.spi.objects import ObjectStore
from stratalog.spi.segment_store import SegmentStore
from stratalog.spi.service_contract import Command, Service


class Registry:
    """The plugins of one engine, with catalogues of their components. A lookup opens no component.

    Construct a registry with ``of`` or ``load``. Any thread may use the catalogues; only notifier threads call
    ``notify``.

    Attributes:
        calls: the threads for calls into components with a deadline.
    """

    def __init__(
        self, host: Host, plugins: tuple[PluginInfo, ...], prefer: Mapping[str, str], calls: DeadlineCalls
    ) -> None:
        self._host, self._prefer = host, dict(prefer)
        self.calls, self._plugins = calls, plugins
        self._catalogues: dict[str, Catalogue[Any]] = {}  # by key of the kind

    @classmethod
    def load(
        cls,
        plugins: Sequence[object] = (),
        allow: Sequence[str] = (),
        block: Sequence[str] = (),
        prefer: Mapping[str, str] | None = None,
        wait_s: float = 300.0,
    ) -> Self:
        """Import the installed plugins that ``allow`` and ``block`` permit, and collect the offers of all plugins.

        If an installed plugin cannot be imported or breaks the plugin interface, no error is raised: ``plugins()``
        returns the error of this plugin. If a lookup finds no component, the text of its error lists these plugins.
        ``allow`` and ``block`` filter installed plugins before any import, but not the argument ``plugins``.

        Args:
            plugins: modules, objects with hooks, or names of modules, used in addition to the installed plugins. A
                plugin that is also installed is used once.
            allow: entry points, as ``name`` or ``distribution:name``; if not empty, only these are imported.
            block: entry points, as ``name`` or ``distribution:name``, that are not imported, even if allowed.
            prefer: mapping of URI scheme to provider name, for schemes that several stores serve.
            wait_s: deadline in seconds for the import of a plugin that does not come with stratalog, and for each call
                of its hooks and components.

        Raises:
            PluginError: one of ``plugins`` cannot be imported or breaks the plugin interface.
        """
        calls = DeadlineCalls(wait_s=wait_s)
        host = Host(calls)
        return cls(host, load_plugins(host, plugins, allow, block, calls), prefer or {}, calls)

    @classmethod
    def of(cls, settings: Settings, plugins: Sequence[object] = ()) -> Self:
        """Return a registry of ``plugins``, ``plugins.modules``, and the installed plugins that the settings allow.

        This method calls ``load`` with arguments from the settings. Raises the errors of ``load``.
        """
        engine = settings.engine
        return cls.load(
            [*engine.plugins_modules, *plugins],
            allow=engine.plugins_allow,
            block=engine.plugins_block,
            prefer=engine.preferred_stores,
            wait_s=engine.plugin_deadline_ms / 1000,
        )

    def plugins(self) -> tuple[PluginInfo, ...]:
        """Return the descriptions of all plugins, sorted by name, including blocked and failed plugins."""
        return self._plugins

    @property
    def has_strangers(self) -> bool:
        """True if a plugin that does not come with stratalog offers a component."""
        return any(plugin.distribution != PROJECT and any(plugin.offers.values()) for plugin in self._plugins)

    # --- components ------------------------------------------------------------------------------------------------

    def record_formats(self) -> Catalogue[RecordFormat]:
        """Return the catalogue of all offered record formats."""
        return self._catalogue(component_kinds.RECORD_FORMATS)

    def codecs(self) -> Catalogue[Codec]:
        """Return the catalogue of all offered codecs."""
        return self._catalogue(component_kinds.CODECS)

    def index_formats(self) -> Catalogue[IndexFormat[object]]:
        """Return the catalogue of all offered index formats."""
        return self._catalogue(component_kinds.INDEX_FORMATS)

    def extra_indexes(self) -> Catalogue[ExtraIndex]:
        """Return the catalogue of all offered extra indexes."""
        return self._catalogue(component_kinds.EXTRA_INDEXES)

    def segment_stores(self) -> Catalogue[SegmentStore]:
        """Return the catalogue of all offered stores for log directories."""
        return self._catalogue(component_kinds.SEGMENT_STORES)

    def object_stores(self) -> Catalogue[ObjectStore]:
        """Return the catalogue of all offered object stores for tiers."""
        return self._catalogue(component_kinds.OBJECT_STORES)

    def tier_layouts(self) -> Catalogue[TierLayout]:
        """Return the catalogue of all offered layouts for segments in a tier."""
        return self._catalogue(component_kinds.TIER_LAYOUTS)

    def cleanup_policies(self) -> Catalogue[CleanupPolicy]:
        """Return the catalogue of all offered cleanup policies."""
        return self._catalogue(component_kinds.CLEANUP_POLICIES)

    def topic_sections(self) -> dict[str, Section]:
        """Return the topic settings that providers add, with default values, by provider name.

        Raises:
            PluginClashError: providers with the same name have different topic settings.
        """
        sections: dict[str, Section] = {}
        for kind in component_kinds.KINDS:
            for offer in self._catalogue(kind).offers():
                section, name = offer.provider.topic_section, offer.provider.name
                if section is None:
                    continue
                if type(sections.setdefault(name, section())) is not section:
                    raise PluginClashError(f"the topic settings {name}.* are already claimed by {offer.origin}")
        return sections

    def engine_settings(self) -> dict[str, frozenset[str]]:
        """Return the names of the settings in each section ``[plugins.NAME]``, by ``NAME``, the name of a provider."""
        names_by_section = dict[str, frozenset[str]]()
        for kind in component_kinds.KINDS:
            for offer in self._catalogue(kind).offers():
                section, name = offer.provider.engine_section, offer.provider.name
                if section is not None:
                    names_by_section[name] = names_by_section.get(name, frozenset()).union(section.keys())
        return names_by_section

    def services(self) -> Catalogue[Service]:
        """Return the catalogue of all offered services, such as ``metrics``."""
        return self._catalogue(component_kinds.SERVICES)

    def commands(self) -> OfferTable[Command]:
        """Return the table of all offered commands.

        Each call of this method calls the plugins' hooks. If a hook fails, its error is in ``OfferTable.absent``, and
        no error is raised.
        """
        infos = {info.name: info for info in self._plugins if info.status is PluginStatus.OK}
        offers, absent = list[Offer[Command]](), self._absent()
        for answer in self._host.commands():
            info = infos[answer.plugin]
            if answer.error is not None:
                absent.append(str(explain_answer(answer, f"{PROJECT}_commands", None)))
            offers += [Offer(command, info.name, info.distribution, info.version) for command in answer.offers]
        return OfferTable("command", offers, absent)

    def check_requires(self, labels: Iterable[str]) -> None:
        """Call ``resolve.check_requires`` with the catalogues of all kinds whose components write bytes."""
        check_requires(labels, [self._catalogue(kind) for kind in component_kinds.KINDS if kind.writes_bytes])

    # --- listeners -------------------------------------------------------------------------------------------------

    def listening(self, event: type[Event]) -> tuple[str, ...]:
        """Return the names of the plugins with a listener for this type of event, sorted."""
        return self._host.listening(event)

    def notify(self, event: Event, plugin: str | None = None) -> None:
        """Call all listeners for ``event``, or only the listener of ``plugin``. Log and count errors of listeners."""
        self._host.notify(event, plugin)

    @property
    def listener_failures(self) -> dict[str, int]:
        """The number of failed listener calls of each plugin that has failures."""
        return self._host.listener_failures

    def _catalogue(self, kind: ComponentKind) -> Catalogue[Any]:  # Any: the public methods have the exact types
        catalogue = self._catalogues.get(kind.key)
        if catalogue is None:
            offers = [
                Offer(provider, plugin.name, plugin.distribution, plugin.version)
                for plugin in self._plugins
                for provider in plugin.offers.get(kind.key, ())
            ]
            catalogue = Catalogue(kind, offers, self._absent(), self._prefer, self.calls)
            self._catalogues[kind.key] = catalogue
        return catalogue

    def _absent(self) -> list[str]:
        return [info.absence for info in self._plugins if info.absence]
