"""The context, layouts and topic settings that an engine passes to a component, for tests without an engine."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.config.engine_settings import Limits
from stratalog.config.keys import Section
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.errors import UnknownComponentError
from stratalog.spi.codecs import CodecTable
from stratalog.spi.layouts import NO_LAYOUTS, LayoutLookup, TierLayout
from stratalog.spi.providers import OpenContext


def open_context(
    section: Section | None = None,
    *,
    location: str = "",
    options: Mapping[str, object] | None = None,
    read_only: bool = False,
    codecs: CodecTable | None = None,
    layouts: LayoutLookup | None = None,
    env: Env | None = None,
) -> OpenContext:
    """Return a context for ``Provider.open``, with the default limits of an engine.

    Args:
        section: settings of the component, an instance of the provider's ``engine_section``.
        location: location of a store; "" for other components.
        options: options for the client library of an object store; none by default.
        read_only: True if a store must refuse every write.
        codecs: codecs that a record format or layout can use; none by default.
        layouts: lookup of other layouts, from ``layout_lookup``, for a layout that uses them; none by default.
        env: clock, files and random numbers; by default, an ``Env`` that uses the system.
    """
    env, limits = env or Env(), Limits()
    return OpenContext(
        env=env,
        limits=limits,
        handles=HandlePool(env.files, limits.open_files),
        codecs=codecs or CodecTable(),
        section=section,
        location=location,
        options=dict(options or {}),
        read_only=read_only,
        layouts=layouts or NO_LAYOUTS,
    )


def layout_lookup(**layouts: TierLayout) -> LayoutLookup:
    """Return a lookup of these layouts by name, all of version 1. It raises UnknownComponentError for other layouts."""
    return _Layouts(layouts)


def topic_config(values: Mapping[str, object] | None = None, **sections: type[Section]) -> TopicConfig:
    """Return the settings of a topic, with defaults for the settings that ``values`` does not contain.

    Args:
        values: settings by Kafka's names, and settings of plugins, such as ``{"prefix_budget.bytes": 5}``.
        sections: types of the plugins' topic settings, by provider name.

    Raises:
        ConfigError: a setting is unknown, or its value is wrong. Settings that contradict each other raise no error.
    """
    default_sections = {name: section() for name, section in sections.items()}
    return TopicConfig(sections=default_sections).merged(values or {}, "the test")


class _Layouts:
    """Layouts by name, all of version 1."""

    def __init__(self, layouts: Mapping[str, TierLayout]) -> None:
        self._layouts = layouts

    def label(self, name: str) -> str:
        """Return ``name@1``; raise UnknownComponentError if there is no such layout."""
        self.by_name(name)
        return f"{name}@1"

    def by_name(self, name: str) -> TierLayout:
        """Return the layout with this name; raise UnknownComponentError if there is none."""
        if name not in self._layouts:
            raise UnknownComponentError(f"no tier layout {name!r} is in the lookup of this test")
        return self._layouts[name]

    def by_label(self, label: str) -> TierLayout:
        """Return the layout of ``name@1``; raise UnknownComponentError for another name or version."""
        name, _, version = label.rpartition("@")
        if version != "1":
            raise UnknownComponentError(f"{label} is required, and the lookup of this test has version 1")
        return self.by_name(name)
