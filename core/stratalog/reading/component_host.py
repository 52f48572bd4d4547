"""Components (codecs, formats, indexes, layouts, policies, stores) of one engine or reader, opened at first use."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import NO_CODEC, TopicConfig
from stratalog.env import Env
from stratalog.env.cache import Cache
from stratalog.env.closing import Closeable
from stratalog.env.deadlines import OverdueError
from stratalog.env.handles import HandlePool
from stratalog.errors import ConfigError, PluginClashError, PluginError, UnknownComponentError
from stratalog.reading.component_opener import ComponentOpener
from stratalog.registry.guarded_parts import guarded_part
from stratalog.registry.registry import Registry
from stratalog.registry.resolve import Catalogue
from stratalog.segment.components import Components, ExtraTable
from stratalog.segment.missing_index import MISSING_INDEXES
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.indexes import IndexFormat, IndexRole
from stratalog.spi.layouts import TierLayout
from stratalog.spi.providers import Provider
from stratalog.spi.segment_store import SegmentStore
from stratalog.spi.service_contract import Service
from stratalog.tier.store.layout_table import LayoutTable

T = TypeVar("T")
_LOGGER: Final = logging.getLogger(__name__)


class ComponentHost(Closeable):
    """The components of one engine or reader, each opened once. Nothing is shared with another host. Thread-safe.

    Args:
        registry: the installed plugins and their offers.
        settings: settings of the engine.
        env: clock, files and random numbers.

    Attributes:
        handles: the pool of file descriptors that the components share; ``close`` closes the pool.
        opener: opens one component.
    """

    def __init__(self, registry: Registry, settings: Settings, env: Env) -> None:
        self.registry, self.settings, self.env = registry, settings, env
        self.handles = HandlePool(env.files, settings.limits.open_files)
        self.opener = ComponentOpener(registry, settings, env, self.handles)
        self._frozen: dict[tuple[tuple[str, ...], tuple[str, ...]], Components] = {}
        self._with_replacements: dict[tuple[tuple[str, ...], tuple[str, ...]], Components] = {}
        self._reported = set[str]()  # missing extra indexes that were reported
        self._layout_lock = threading.Lock()
        self._layouts: LayoutTable | None = None  # made at first use, under _layout_lock
        self._index_cache = Cache[bytes](settings.limits.index_cache_bytes)

    def components(self, config: TopicConfig) -> Components:
        """Return the components for logs with these settings.

        Raises:
            UnknownComponentError: an index is not installed, or a role has no format or two formats.
            PluginError: an index format or extra index cannot be opened.
        """
        names = config.index_formats, config.index_extra
        components = self._frozen.get(names)
        if components is None:
            new_components = self._components(self._indexes(config.index_formats), self._extras(names[1]))
            components = self._frozen.setdefault(names, new_components)  # another thread may have been first
        return components

    def available_components(self, config: TopicConfig) -> tuple[Components, PluginError | None]:
        """Return components to read logs with these settings, and the error that prevents writes with them, or None.

        The error is None if the components can also write. Extra indexes that cannot be opened are left out without an
        error. Other index formats that cannot be opened are replaced by ``MISSING_INDEXES``, which read the log itself.

        Raises:
            PluginError: ``index.formats`` does not give exactly one format for each role, even with the replacements.
        """
        extras = tuple(name for name in config.index_extra if self._has_extra(name))
        try:
            return self.components(dataclasses.replace(config, index_extra=extras)), None
        except PluginError as error:
            key = config.index_formats, extras
            components = self._with_replacements.get(key)
            if components is None:
                new_components = self._components(
                    self._replace_missing(config.index_formats, error), self._extras(extras)
                )
                components = self._with_replacements.setdefault(key, new_components)
            return components, error

    def _components(self, indexes: Mapping[IndexRole, IndexFormat[Any]], extras: ExtraTable) -> Components:
        limits, cache = self.settings.limits, self._index_cache
        return Components(self.env, limits, self.opener.formats, self.opener.codecs, indexes, cache, extras)

    def _has_extra(self, name: str) -> bool:
        try:
            self._extras((name,))
        except PluginError as error:
            if name not in self._reported:
                self._reported.add(name)
                _LOGGER.warning("logs are opened without extra index %s, and can be read: %s", name, error)
            return False
        return True

    def _replace_missing(self, names: tuple[str, ...], error: PluginError) -> dict[IndexRole, IndexFormat[Any]]:
        """Return the formats with these names by role, with replacements for those that cannot be opened.

        Raise ``error`` unless the result has exactly one format for each role.
        """
        indexes, catalogue = dict[IndexRole, IndexFormat[Any]](), self.registry.index_formats()
        missing = 0
        for name in names:
            try:
                index = self.opener.open(catalogue, catalogue.by_name(name))
            except PluginError:
                missing += 1
                continue
            if index.role in indexes or index.role not in MISSING_INDEXES:
                raise error
            indexes[index.role] = index
        if missing != len(MISSING_INDEXES) - len(indexes):
            raise error
        return {**MISSING_INDEXES, **indexes}

    def reading_components(self, config: TopicConfig | None = None) -> Components:
        """Return the components of a reader: the topic's index formats, and all installed extra indexes.

        ``config`` has the settings of the topic, which name its index formats; None means the default index formats.
        Raises the errors of ``available_components``.
        """
        catalogue, providers = self.registry.extra_indexes(), list[Provider[ExtraIndex]]()
        for name in catalogue.names():
            with contextlib.suppress(PluginClashError):  # without the index, readers read the records
                providers.append(catalogue.by_name(name))
        return dataclasses.replace(
            self.available_components(config or TopicConfig())[0], extras=self._extra_table(catalogue, providers)
        )

    def segment_store(self, location: str, *, read_only: bool) -> SegmentStore:
        """Return a store for a log directory, selected by the scheme of ``location``; the caller closes the store.

        A path without a scheme is a folder on local disk.

        Raises:
            ConfigError: ``location`` has the form ``scheme:/rest``.
            UnknownComponentError: no installed plugin supports the scheme.
            PluginError, LogDirError: the store cannot be opened.
        """
        scheme, path = split_scheme(location)
        catalogue = self.registry.segment_stores()
        provider = catalogue.by_scheme(scheme or "file")
        place = path if scheme in {"", "file"} else location
        store = catalogue.open(provider, self.opener.context(provider, location=place, read_only=read_only))
        return guarded_part(store, SegmentStore, catalogue.guard(provider))

    @property
    def layouts(self) -> LayoutTable:
        """The installed tier layouts, by name and by the labels of manifest entries; each is opened at first use."""
        with self._layout_lock:
            if self._layouts is None:
                self._layouts = LayoutTable(self.registry.tier_layouts(), self._open_layout)
            return self._layouts

    def policy(self, name: str) -> CleanupPolicy:
        """Return the cleanup policy with this name, opened at the first call.

        Raises:
            UnknownComponentError: no such policy is installed.
            PluginError: the policy cannot be opened.
        """
        catalogue = self.registry.cleanup_policies()
        return self.opener.open(catalogue, catalogue.by_name(name))

    def policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        """Return the cleanup policies that the settings of a topic name, by name.

        Raises:
            ConfigError: a plugin refuses the settings.
            The errors of ``policy``.
        """
        if config.refusal:
            raise ConfigError(config.refusal)
        return {name: self.policy(name) for name in config.cleanup_policy}

    def service(self, name: str) -> Service:
        """Return the service with this name, opened at the first call.

        Raises:
            UnknownComponentError: no such service is installed.
            PluginError: the service cannot be opened.
        """
        catalogue = self.registry.services()
        return self.opener.open(catalogue, catalogue.by_name(name))

    def check_topic_config(self, config: TopicConfig, changed: Collection[str] | None = None) -> None:
        """Raise an error if the settings of a topic name a component that cannot be used.

        Args:
            config: the settings of the topic.
            changed: check only the settings with these names; None checks all.

        Raises:
            UnknownComponentError: a component is not installed, or ``index.formats`` lacks or repeats a role.
            PluginError: an index cannot be opened.
        """
        if changed is None or not {"index.formats", "index.extra"}.isdisjoint(changed):
            self.components(config)
        for policy in config.cleanup_policy if changed is None or "cleanup.policy" in changed else ():
            self.registry.cleanup_policies().by_name(policy)
        if (changed is None or "compression.type" in changed) and config.compression_type not in NO_CODEC:
            self.registry.codecs().by_name(config.compression_type)
        if (changed is None or "record.version" in changed) and isinstance(config.record_version, str):
            self.registry.record_formats().by_name(config.record_version)
        if changed is None or "tier.layout" in changed:
            self.registry.tier_layouts().by_name(config.tier_layout)

    def open_in_time(self, work: Callable[[], T], close: Callable[[T], object], advice: str = "") -> T:
        """Return the result of ``work``, which opens components; raise an error if a call into a plugin never returns.

        After that error, ``work`` continues on its own thread. If it returns a result later, ``close`` is called with
        the result.

        Raises:
            PluginError: a call into a plugin did not return within ``plugin.deadline.ms``; the text ends with
                ``advice``.
            The errors of ``work``.
        """
        if not self.registry.has_strangers:
            return work()
        try:
            return self.registry.calls.open_unless_stuck(work, close, self.registry.calls.wait_s)
        except OverdueError as error:
            raise PluginError(f"{error}{advice}") from error

    def close(self) -> None:
        """Close the file descriptors of ``handles``; components are not closed. A second call does nothing."""
        self.handles.close()

    def _open_layout(self, provider: Provider[TierLayout]) -> TierLayout:
        """Open a layout with a context that contains the table of all layouts, because it may use another layout."""
        catalogue = self.registry.tier_layouts()
        return catalogue.open(provider, dataclasses.replace(self.opener.context(provider), layouts=self.layouts))

    def _indexes(self, names: tuple[str, ...]) -> dict[IndexRole, IndexFormat[Any]]:
        indexes: dict[IndexRole, IndexFormat[Any]] = {}
        catalogue = self.registry.index_formats()
        for name in names:
            index = self.opener.open(catalogue, catalogue.by_name(name))
            if index.role is IndexRole.EXTRA:
                raise UnknownComponentError(f"index.formats names {name!r}, an extra index: move it to index.extra")
            if index.role in indexes:
                raise UnknownComponentError(f"index.formats names two formats of role {index.role}")
            indexes[index.role] = index
        for role in (IndexRole.OFFSET, IndexRole.TIME, IndexRole.TRANSACTION):
            if role not in indexes:
                raise UnknownComponentError(f"index.formats={','.join(names)} names no format of role {role}")
        return indexes

    def _extras(self, names: tuple[str, ...]) -> ExtraTable:
        catalogue = self.registry.extra_indexes()
        table = self._extra_table(catalogue, [catalogue.by_name(name) for name in dict.fromkeys(names)])
        for label in table.labels:  # report an error now instead of from a background thread
            table.of(label)
        return table

    def _extra_table(self, catalogue: Catalogue[ExtraIndex], providers: Sequence[Provider[ExtraIndex]]) -> ExtraTable:
        openers = {provider.label: partial(self.opener.open, catalogue, provider) for provider in providers}
        return ExtraTable(openers, {provider.label: catalogue.guard(provider) for provider in providers})


_NEARLY_URI: Final = re.compile("([a-z][a-z0-9]+):/(?!/)(.*)")


def split_scheme(location: str) -> tuple[str, str]:
    """Split ``scheme://rest`` into (scheme in lower case, rest); return ("", location) for a plain path.

    Raises:
        ConfigError: the location has the form ``scheme:/rest``, with one slash, or begins with ``~/``, and no such path
            exists.
    """
    if location.startswith("~/") and not os.path.lexists(location):
        raise ConfigError(
            f"only a shell replaces ~ in {location!r}: write the whole path, or ./{location} for a folder ~"
        )
    scheme, mark, rest = location.partition("://")
    nearly = None if mark else _NEARLY_URI.fullmatch(location)
    if nearly is not None and not os.path.lexists(location):
        raise ConfigError(f"{location!r} is not a URI: use {nearly[1]}://{nearly[2]}")
    return (scheme.lower(), rest) if mark else ("", location)
