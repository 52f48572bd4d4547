"""The context, layouts and topic settings that an engine passes to a component, for tests without an engine."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.config.engine_settings import Limits
from stratalog.config.keys import Section
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.spi.codecs import CodecTable
from stratalog.spi.layouts import LayoutLookup, TierLayout
from stratalog.spi.providers import NO_LAYOUTS, OpenContext, layouts_by_name


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
    return layouts_by_name(layouts)


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
