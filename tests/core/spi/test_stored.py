from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stratalog import TopicId, TopicPartition
from stratalog.errors import CorruptObjectError
from stratalog.spi import (
    EpochEntry,
    FileKind,
    ObjectSlice,
    SegmentInfo,
    StoredSegment,
)
from stratalog.spi.stored import MAX_EXTRA_DEPTH, MAX_EXTRA_VALUES

KEY = "orders-AAAAAAAAAAAAAAAAAAAAAQ/3/segments/00000000000000000010-2-0123456789abcdef0123456789abcdef.seg"


def a_segment() -> StoredSegment:
    info = SegmentInfo(
        log=TopicPartition("orders", 3),
        topic_id=TopicId("AAAAAAAAAAAAAAAAAAAAAQ"),
        base_offset=10,
        end_offset=25,
        size_bytes=4096,
        max_timestamp_ms=-1,
        modified_ms=1_700_000_000_000,
        leader_epochs=(EpochEntry(1, 10), EpochEntry(2, 20)),
    )
    return StoredSegment(
        info=info,
        layout="single@1",
        slices={FileKind.LOG: ObjectSlice(KEY, 0, 4096), FileKind.TIME_INDEX: ObjectSlice(KEY, 4096, 12)},
        sha256="ab" * 32,
        requires=("zstd@1",),
        extra={"note": {"deep": [1, None, True, "x"]}},
    )


def test_stored_fields_come_back_through_json_text() -> None:
    text = json.dumps(a_segment().to_json())
    assert StoredSegment.from_json(json.loads(text), "file") == a_segment()


def test_facts_about_records_are_notes_that_older_releases_keep() -> None:
    known = replace(a_segment(), info=replace(a_segment().info, records=12, min_timestamp_ms=-1))
    written = known.to_json()
    assert written["extra"] == {**a_segment().extra, "records": 12, "min_timestamp_ms": -1}
    assert set(written) == set(a_segment().to_json())  # a release that does not know the new fields refuses them
    assert StoredSegment.from_json(written) == known
    assert StoredSegment.from_json(a_segment().to_json()).info.records is None


def test_files_are_named_by_their_persistent_words() -> None:
    assert set(a_segment().to_json()["slices"]) == {"log", "timeindex"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "topic with a slash": lambda v: v.update(topic="a/b"),
    "topic of dots": lambda v: v.update(topic=".."),
    "negative partition": lambda v: v.update(partition=-1),
    "boolean partition": lambda v: v.update(partition=True),
    "malformed topic id": lambda v: v.update(topic_id="AAAA"),
    "negative offset": lambda v: v.update(base_offset=-1),
    "huge offset": lambda v: v.update(end_offset=1 << 63),
    "float offset": lambda v: v.update(end_offset=25.0),
    "end below base": lambda v: v.update(end_offset=9),
    "negative size": lambda v: v.update(size_bytes=-1),
    "epochs not pairs": lambda v: v.update(leader_epochs=[[1]]),
    "epochs a number": lambda v: v.update(leader_epochs=3),
    "epoch too large": lambda v: v.update(leader_epochs=[[1 << 31, 0]]),
    "no layout": lambda v: v.update(layout=""),
    "layout without version": lambda v: v.update(layout="single"),
    "short hash": lambda v: v.update(sha256="ab"),
    "hash in capitals": lambda v: v.update(sha256="AB" * 32),
    "missing field": lambda v: v.pop("sha256"),
    "negative records": lambda v: v["extra"].update(records=-1),
    "records a text": lambda v: v["extra"].update(records="1"),
    "least timestamp too small": lambda v: v["extra"].update(min_timestamp_ms=-2),
    "unknown field": lambda v: v.update(colour="red"),
    "unknown file": lambda v: v["slices"].update(bloom=v["slices"]["log"]),
    "slices a list": lambda v: v.update(slices=[]),
    "slice without key": lambda v: v["slices"]["log"].pop("key"),
    "slice with more": lambda v: v["slices"]["log"].update(colour="red"),
    "slice past the end of numbers": lambda v: v["slices"]["log"].update(position=(1 << 63) - 1),
    "key that climbs": lambda v: v["slices"]["log"].update(key="a/../../b"),
    "absolute key": lambda v: v["slices"]["log"].update(key="/etc/passwd"),
    "key with a newline": lambda v: v["slices"]["log"].update(key="a\nb"),
    "key of half a character": lambda v: v["slices"]["log"].update(key="a\ud800"),
    "long key": lambda v: v["slices"]["log"].update(key="a" * 1025),
    "empty key": lambda v: v["slices"]["log"].update(key=""),
    "requires a word": lambda v: v.update(requires="zstd@1"),
    "malformed requirement": lambda v: v.update(requires=["zstd"]),
    "many requirements": lambda v: v.update(requires=["zstd@1"] * 65),
    "extra a list": lambda v: v.update(extra=[]),
    "deep extra": lambda v: v.update(extra=nested(MAX_EXTRA_DEPTH)),
    "wide extra": lambda v: v.update(extra={"items": [0] * MAX_EXTRA_VALUES}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_a_typed_error_that_names_the_file(damage: Callable[[dict[str, Any]], object]) -> None:
    value = copy.deepcopy(a_segment().to_json())
    damage(value)
    with pytest.raises(CorruptObjectError) as caught:
        StoredSegment.from_json(value, "bucket/object")
    assert caught.value.file == "bucket/object"


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_json_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(CorruptObjectError):
        StoredSegment.from_json(value, "file")


def test_extra_may_be_as_deep_as_the_bound() -> None:
    value = a_segment().to_json()
    value["extra"] = nested(MAX_EXTRA_DEPTH - 1)
    assert StoredSegment.from_json(value).extra == nested(MAX_EXTRA_DEPTH - 1)
