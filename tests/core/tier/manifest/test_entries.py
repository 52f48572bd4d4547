"""Entries of a manifest: the compiled parser and the Python parser accept the same ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from compiled_twin import compiled_twin
from stratalog import TopicPartition
from stratalog.errors import StorageError
from stratalog.model.names import TopicId
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest import page_codec
from stratalog.tier.manifest.page_codec import EXTENSIONS, entry_from_json, entry_to_json, entry_to_text
from stratalog.tier.store.object_keys import log_prefix

LOG, TOPIC_ID = TopicPartition("orders", 3), TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
PREFIX = log_prefix(LOG, TOPIC_ID)
ENTRY: dict[str, Any] = {
    "base_offset": 5,
    "end_offset": 9,
    "size_bytes": 1 << 40,
    "max_timestamp_ms": -1,
    "modified_ms": -7,
    "leader_epochs": [[0, 0], [7, 6]],
    "layout": "single@1",
    "objects": ["segments/a.seg", "segments/b.seg"],
    "slices": {"log": [0, 0, 10], "timeindex": [1, 3, 12]},
    "sha256": "0f" * 32,
    "requires": [],
    "extra": {"records": 4, "min_timestamp_ms": -1, "original_bytes": 9, "chunks": {"log": 3}, "note": "x"},
}
VALUES: list[Any] = [
    None, True, -1, 0, 1.0, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), "", "log", "a/../b", "a//b", ".", "a/", "é", "\0", "a b",
    "single@1", "single@0", "Single@1", "single@1234567890", "0f" * 31, "0F" * 32, "x" * 1025, [], [0], [0, 0], [0, 0, 0],
    [[1, 2]], [0, 1 << 62, 1 << 62], {}, {"log": [0, 0, 1]}, {"log": [2, 0, 1]}, {"what": [0, 0, 1]}, {"a": {"b": {"c": []}}},
    {"records": None}, {"records": -1}, {"objects": ["../x"]}, ["single@1"],
]  # fmt: skip


@pytest.fixture
def twin() -> ModuleType:
    return compiled_twin(EXTENSIONS[0])


def changed(value: Any, place: tuple[object, ...] = ()) -> Iterator[Any]:
    """Yield changes of ``value`` at one place: another value, a missing field, or an unknown field."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        for other_value in VALUES:
            yield with_change(partial(put, name=name, other=other_value), place)
        yield with_change(partial(delete, name=name), place)
        if isinstance(item, dict | list):
            yield from changed(item, (*place, name))
    if isinstance(value, dict):
        yield with_change(partial(put, name="unknown", other=1), place)


def put(parent: Any, name: object, other: object) -> None:
    parent[name] = other


def delete(parent: Any, name: object) -> None:
    del parent[name]


def with_change(change: Callable[[Any], None], place: tuple[object, ...]) -> Any:
    entry: Any = copy.deepcopy(ENTRY)
    parent = entry
    for name in place:
        parent = parent[name]
    change(parent)
    return entry


def outcome(value: object) -> object:
    try:
        return entry_from_json(value, LOG, TOPIC_ID)
    except (StorageError, TypeError, ValueError, KeyError) as error:
        return type(error), str(error)


def test_an_entry_is_parsed_by_compiled_code_and_encoded_again(twin: ModuleType) -> None:
    entry = twin.entry_of(ENTRY, PREFIX, LOG, TOPIC_ID)
    assert entry_to_json(entry) == ENTRY
    assert (entry.info.log, entry.info.records, entry.info.min_timestamp_ms) == (LOG, 4, -1)
    assert entry.extra == {"chunks": {"log": 3}, "note": "x"}
    assert [place.key for place in entry.slices.values()] == [f"{PREFIX}segments/a.seg", f"{PREFIX}segments/b.seg"]


def test_both_parsers_return_the_same_for_entries_with_one_change(
    twin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = list(changed(ENTRY))
    compiled = [outcome(value) for value in values]
    monkeypatch.setattr(page_codec, "_twin", None)
    assert [outcome(value) for value in values] == compiled
    by_twin = [twin.entry_of(value, PREFIX, LOG, TOPIC_ID) is not None for value in values]
    assert sum(by_twin) > 100
    assert sum(isinstance(result, tuple) for result in compiled) > 500


@pytest.mark.parametrize("value", [None, [], "entry", {}])
def test_values_that_are_no_entries_are_refused_by_both_parsers(twin: ModuleType, value: object) -> None:
    assert twin.entry_of(value, PREFIX, LOG, TOPIC_ID) is None
    assert isinstance(outcome(value), tuple)


def test_the_text_of_an_entry_is_its_json_by_either_encoder(twin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry for entry in map(outcome, changed(ENTRY)) if isinstance(entry, StoredSegment)]
    texts = [entry_to_text(entry) for entry in entries]
    assert [json.loads(text) for text in texts] == [entry_to_json(entry) for entry in entries]
    assert not any("\n" in text for text in texts)
    by_twin = sum(twin.text_of(entry, PREFIX) is not None for entry in entries)
    assert len(entries) // 2 < by_twin < len(entries)
    monkeypatch.setattr(page_codec, "_twin", None)
    assert [json.loads(entry_to_text(entry)) for entry in entries] == [json.loads(text) for text in texts]
