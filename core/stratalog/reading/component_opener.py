"""Opening of components of plugins, each once.

A codec or record format that failed to open is not opened again: each use raises its error.
"""

from __future__ import annotations

import dataclasses
import difflib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from stratalog.config.keys import Section
from stratalog.config.settings_sources import Settings, plugin_values
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.errors import PluginClashError, StorageError, UnknownSettingError
from stratalog.model.numbered_components import NumberedComponents
from stratalog.registry.component_kinds import CODECS
from stratalog.registry.guarded_parts import GUARDED_PARTS, guarded_part, guarded_policy
from stratalog.registry.registry import Registry
from stratalog.registry.resolve import Catalogue
from stratalog.segment.components import MAGICS, FormatTable
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.spi.codecs import CODEC_IDS, CodecTable
from stratalog.spi.providers import OpenContext, Provider

C = TypeVar("C")


class ComponentOpener:
    """Opens the components of one engine or reader, each once. Thread-safe.

    Args:
        registry: the installed plugins and their offers.
        settings: settings of the engine.
        env: clock, files and random numbers.
        handles: the pool of file descriptors that the components share.

    Attributes:
        codecs: all installed codecs, each opened at first use.
        formats: all installed record formats, each opened at first use.

    Raises:
        ConfigError: a setting of a codec or record format is wrong.
        UnknownSettingError: the name of a ``[plugins.NAME]`` section is misspelt.
    """

    def __init__(self, registry: Registry, settings: Settings, env: Env, handles: HandlePool) -> None:
        self._registry, self._settings, self._env, self._handles = registry, settings, env, handles
        # A lock is held while its component is opened, because background threads open components, too.
        self._locks: dict[tuple[str, str], threading.RLock] = {}
        self._check_sections()
        self._variables = plugin_values(settings, registry.engine_settings()) if settings.plugin_variables else {}
        self._opened: dict[tuple[str, str], object] = {}
        self._failed: dict[tuple[str, str], StorageError] = {}  # components in quarantine
        self._offered_codecs = NumberedComponents("codec", "id", CODEC_IDS, self._openers(registry.codecs()))
        self._offered_formats = NumberedComponents(
            "record format", "magic", MAGICS, self._openers(registry.record_formats())
        )
        self.codecs = CodecTable(offers=self._offered_codecs)
        self.formats = FormatTable(offers=self._offered_formats)
        providers: list[Provider[Any]] = [offer.provider for offer in registry.codecs().offers()]  # Any: of both kinds
        providers += [offer.provider for offer in registry.record_formats().offers()]
        for provider in providers:
            # Report a wrong setting now instead of at first use.
            if provider.name in settings.plugins or provider.name in self._variables:
                self.context(provider)

    def open(self, catalogue: Catalogue[C], provider: Provider[C]) -> C:
        """Return the component of ``provider``, which ``catalogue`` contains; open it unless an earlier call did.

        Raises:
            The errors of ``Catalogue.open``.
        """
        key = (catalogue.title, provider.name)
        with self._lock(key):
            if key not in self._opened:
                context = self.context(provider)
                if catalogue.title == CODECS.title:  # a codec must not depend on codecs that are still being opened
                    context = dataclasses.replace(context, codecs=CodecTable())
                component: Any = catalogue.open(provider, context)
                if catalogue.component in GUARDED_PARTS:
                    component = guarded_part(component, catalogue.component, catalogue.guard(provider))
                elif isinstance(component, CleanupPolicy):
                    component = guarded_policy(component, catalogue.guard(provider))
                self._opened[key] = component
            return cast(C, self._opened[key])

    def context(
        self,
        provider: Provider[Any],
        *,
        location: str = "",
        options: Mapping[str, object] | None = None,
        read_only: bool = False,
    ) -> OpenContext:
        """Return the context for opening a component, with its settings from ``[plugins.NAME]`` and the environment.

        The environment overrides ``[plugins.NAME]``. An entry of ``options`` with the name of a setting overrides both,
        and is not in ``OpenContext.options``. An entry with the value None is ignored.

        Raises:
            ConfigError: a setting is unknown or wrong.
        """
        given_options = {name: value for name, value in (options or {}).items() if value is not None}
        kind = provider.engine_section
        section = None if kind is None else self._section(kind, provider.name, given_options)
        return OpenContext(
            env=self._env,
            limits=self._settings.limits,
            handles=self._handles,
            codecs=self.codecs,
            section=section,
            location=location,
            options=given_options,
            read_only=read_only,
        )

    def find_quarantined(self) -> dict[tuple[str, str], StorageError]:
        """Open all codecs, record formats and index formats; return the errors of those that cannot be opened.

        A key of the result is, for example, ``("codecs", "zstd")``. The result is empty if all can be opened.
        """
        indexes = self._registry.index_formats()
        errors = {("index_formats", name): self._refusal(indexes, name) for name in indexes.names()}
        errors |= {("codecs", name): error for name, error in self._offered_codecs.open_all().failures.items()}
        errors |= {("record_formats", name): error for name, error in self._offered_formats.open_all().failures.items()}
        return {key: error for key, error in errors.items() if error is not None}

    def _check_sections(self) -> None:
        """Raise UnknownSettingError for a ``[plugins.NAME]`` section if NAME is similar to a known NAME.

        Another unknown section is ignored: it may belong to a plugin that only another program passes. Nothing is
        checked if a plugin is blocked or failed.
        """
        if not self._settings.plugins:
            return
        sections = self._registry.engine_settings()
        for name in sorted(self._settings.plugins.keys() - sections.keys()):
            nearest = difflib.get_close_matches(name, sections, n=1)
            if nearest and not any(info.absence for info in self._registry.plugins()):
                raise UnknownSettingError(f"plugins.{name}", "config", f"plugins.{nearest[0]}")

    def _section(self, kind: type[Section], name: str, options: dict[str, object]) -> Section:
        """Return the settings of a provider; remove the entries with the names of its settings from ``options``."""
        section = kind.from_mapping(self._settings.plugins.get(name, {}), f"[plugins.{name}]")
        section = section.replaced(self._variables.get(name, {}), "environment")
        overrides = {setting: options.pop(setting) for setting in kind.keys() if setting in options}  # noqa: SIM118 - a classmethod
        return section.replaced(overrides, "tier options")

    def _lock(self, key: tuple[str, str]) -> threading.RLock:
        """Return the lock of one component: other components can be opened while this one opens."""
        return self._locks.setdefault(key, threading.RLock())

    def _openers(self, catalogue: Catalogue[C]) -> dict[str, Callable[[], C]]:
        return {name: partial(self._open_once, catalogue, name) for name in catalogue.names()}

    def _open_once(self, catalogue: Catalogue[C], name: str) -> C:
        """Return a component, opened once. After a failure, each call raises the same error, which names the plugin."""
        key = (catalogue.title, name)
        with self._lock(key):
            if key in self._failed:
                raise self._failed[key].with_traceback(None)
            try:
                return self.open(catalogue, catalogue.by_name(name))
            except PluginClashError as error:
                failure: StorageError = error
            except (StorageError, SystemExit) as error:
                guard = catalogue.guard(catalogue.by_name(name))
                is_named = isinstance(error, StorageError) and str(guard) in str(error)
                failure = error if is_named and isinstance(error, StorageError) else guard.failure("open", error)
            self._failed[key] = failure
            raise failure

    def _refusal(self, catalogue: Catalogue[Any], name: str) -> StorageError | None:  # Any: of any kind
        try:
            self._open_once(catalogue, name)
        except StorageError as error:
            return error
        return None
