"""Helpers for tests of a component without an engine: contexts, layout lookups and topic settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from sim_objects import SimObjectStore
from stratalog.errors import UnknownComponentError, UnknownSettingError
from stratalog.spi import OpenContext, Provider, Section, key
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


class Store(SimObjectStore):
    """Object store that keeps its context."""

    def __init__(self, context: OpenContext) -> None:
        super().__init__()
        self.context = context


def test_a_component_is_opened_with_settings_by_name(open_component: Callable[..., Any]) -> None:
    provider = Provider[Store](name="mine", open=Store, engine_section=Budget)
    store = open_component(provider, {"budget.bytes": 7}, location="mem://b")
    assert (store.context.section, store.context.location) == (Budget(size_bytes=7), "mem://b")
    with pytest.raises(UnknownSettingError, match=r"budget\.byte"):
        open_component(provider, {"budget.byte": 7})
    with pytest.raises(AssertionError, match="mine has no settings"):
        open_component(Provider[Store](name="mine", open=Store), {"budget.bytes": 7})


@pytest.fixture
def opened_stores() -> Iterator[list[Store]]:
    """Yield a list for the stores of a test, and check that they are closed when the test is over."""
    stores = list[Store]()
    yield stores
    assert [store.closed for store in stores] == [True]


def test_a_store_is_closed_after_the_test(opened_stores: list[Store], open_component: Callable[..., Any]) -> None:
    opened_stores.append(open_component(Provider[Store](name="mine", open=Store)))
    assert not opened_stores[0].closed
