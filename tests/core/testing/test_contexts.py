"""Contexts, layout lookups and topic settings for tests of a component without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from stratalog.errors import UnknownComponentError, UnknownSettingError
from stratalog.spi import Section, key
from stratalog.testing import layout_lookup, open_context, topic_config
from tier_bed import PairLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Section):
    title: ClassVar[str] = "Budget"

    size_bytes: int = key("budget.bytes", 10, at_least=1, doc="Bytes to keep.")


def test_a_context_has_what_a_component_asks_for() -> None:
    context = open_context(Budget(size_bytes=3), location="mem://a", options={"key": "k"}, read_only=True)
    assert (context.section, context.location, context.read_only) == (Budget(size_bytes=3), "mem://a", True)
    assert context.options == {"key": "k"}
    assert context.env.clock.now_ms() > 0


def test_a_topic_has_the_settings_of_a_plugin() -> None:
    config = topic_config({"budget.bytes": 5, "retention.ms": 7}, budget=Budget)
    assert (config.sections["budget"], config.retention_ms) == (Budget(size_bytes=5), 7)
    with pytest.raises(UnknownSettingError, match=r"budget\.bytes"):
        topic_config({"budget.byte": 5}, budget=Budget)


def test_a_lookup_finds_layouts_by_name_and_label() -> None:
    layout = PairLayout()
    lookup = layout_lookup(pair=layout)
    assert (lookup.by_name("pair"), lookup.by_label("pair@1"), lookup.label("pair")) == (layout, layout, "pair@1")
    for label in ("pair@2", "other@1"):
        with pytest.raises(UnknownComponentError):
            lookup.by_label(label)
