from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_names import hostile, logs, offsets, topic_ids, uuids
from stratalog.errors import InvalidTopicError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.tier.store import object_keys
from stratalog.tier.store.object_keys import SegmentKey


@given(logs, topic_ids, hostile)
def test_a_prefix_is_parsed_back_from_any_key_under_it(log: TopicPartition, topic_id: TopicId, rest: str) -> None:
    assert object_keys.parse_log_prefix(object_keys.log_prefix(log, topic_id) + rest) == (log, topic_id)


@given(st.one_of(hostile, st.builds("{}-{}/{}/{}".format, hostile, topic_ids, hostile, hostile)))
def test_a_prefix_that_parses_is_where_the_key_starts(key: str) -> None:
    parsed = object_keys.parse_log_prefix(key)
    assert parsed is None or key.startswith(object_keys.log_prefix(*parsed))


GOOD_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "key",
    [
        "",
        f"orders-{GOOD_ID}",
        f"orders-{GOOD_ID}/0",
        f"orders-{GOOD_ID}/00/x",
        f"orders-{GOOD_ID}/2147483648/x",
        f"orders-{GOOD_ID}/-1/x",
        f"/orders-{GOOD_ID}/0/x",
        f"..-{GOOD_ID}/0/x",
        f"{'a' * 250}-{GOOD_ID}/0/x",
        f"or ders-{GOOD_ID}/0/x",
        f"orders-{'A' * 22}/0/x",
        f"orders-{GOOD_ID[:-1]}R/0/x",
        f"orders{GOOD_ID}/0/x",
    ],
)
def test_other_keys_have_no_prefix(key: str) -> None:
    assert object_keys.parse_log_prefix(key) is None


def test_a_prefix_is_never_built_from_a_bad_topic() -> None:
    with pytest.raises(InvalidTopicError):
        object_keys.log_prefix(TopicPartition("../secrets", 0), TopicId(GOOD_ID))


@given(logs, topic_ids, offsets, st.integers(0, (1 << 31) - 1), uuids)
def test_a_segment_key_is_parsed_back(
    log: TopicPartition, topic_id: TopicId, base_offset: int, epoch: int, unique: uuid.UUID
) -> None:
    prefix = object_keys.log_prefix(log, topic_id)
    key = object_keys.segment_key(prefix, base_offset, epoch, unique)
    assert object_keys.parse_segment_key(prefix, key) == SegmentKey(base_offset, epoch)
    assert object_keys.is_segment_key(prefix, key)
    assert key.startswith(object_keys.segments_prefix(prefix))
    assert not object_keys.is_segment_key(prefix + "x", key)


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1))
def test_a_segment_key_contains_the_time_of_its_upload(now_ms: int, random_bits: int) -> None:
    unique = object_keys.upload_id(now_ms, random_bits)
    assert object_keys.upload_time_ms(object_keys.segment_key("t-id/0/", 5, 2, unique, "log")) == now_ms
    assert unique > object_keys.upload_id(max(now_ms - 1, 0), random_bits) or now_ms == 0


def test_a_segment_key_of_an_earlier_release_has_no_upload_time() -> None:
    assert object_keys.upload_time_ms(object_keys.segment_key("t-id/0/", 5, 2, uuid.uuid4())) is None
    assert object_keys.upload_time_ms("t-id/0/manifest/00000000000000000001") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"99999999999999999999-0-{'a' * 32}.seg",
        f"00000000000000000000-2147483648-{'a' * 32}.seg",
        f"00000000000000000000-01-{'a' * 32}.seg",
        f"00000000000000000000--1-{'a' * 32}.seg",
        f"00000000000000000000-0-{'A' * 32}.seg",
        f"00000000000000000000-0-{'a' * 32}",
        f"00000000000000000000-0-{'a' * 32}.seg\n",
        f"00000000000000000000-0-{'a' * 32}.seg/x",
    ],
)
def test_other_keys_are_no_segments(name: str) -> None:
    assert not object_keys.is_segment_key("p/", f"p/segments/{name}")


@given(logs, topic_ids, offsets)
def test_a_manifest_key_is_parsed_back(log: TopicPartition, topic_id: TopicId, version: int) -> None:
    prefix = object_keys.log_prefix(log, topic_id)
    key = object_keys.manifest_key(prefix, version)
    assert object_keys.parse_manifest_key(prefix, key) == version
    assert key.startswith(object_keys.manifest_prefix(prefix))


@given(offsets, offsets)
def test_manifest_keys_sort_like_their_versions(one: int, other: int) -> None:
    assert (object_keys.manifest_key("p/", one) < object_keys.manifest_key("p/", other)) == (one < other)


@pytest.mark.parametrize("name", ["", "1", "0" * 19, "0" * 21, "9" * 20, "0" * 20 + ".tmp", "0" * 20 + "\n", "٣" * 20])
def test_other_keys_are_no_manifests(name: str) -> None:
    assert object_keys.parse_manifest_key("p/", f"p/manifest/{name}") is None


@given(logs, topic_ids, st.text(max_size=20), logs, topic_ids)
def test_a_listing_continues_behind_a_log_and_misses_no_other(
    log: TopicPartition, topic_id: TopicId, rest: str, other: TopicPartition, other_id: TopicId
) -> None:
    prefix = object_keys.log_prefix(log, topic_id)
    after = object_keys.after_log_prefix(prefix).encode()
    assert (prefix + rest).encode() < after
    for next_log in (other, TopicPartition(log.topic, other.partition)):
        for further_id in (topic_id, other_id):
            key = (object_keys.log_prefix(next_log, further_id) + rest).encode()
            assert key.startswith(prefix.encode()) or not prefix.encode() <= key < after
