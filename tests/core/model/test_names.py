from __future__ import annotations

import base64
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.errors import InvalidTopicError
from stratalog.model import names
from stratalog.model.names import SegmentFileName, SegmentKey, TopicId, TopicPartition

TOPIC_CHARACTERS = "abcXYZ019._-"
LONG_MAX = (1 << 63) - 1

topics = st.text(TOPIC_CHARACTERS, min_size=1, max_size=249).filter(lambda topic: topic not in {".", ".."})
partitions = st.integers(0, (1 << 31) - 1)
offsets = st.integers(0, LONG_MAX)
uuids = st.uuids().filter(lambda value: value.int != 0)
logs = st.builds(TopicPartition, topics, partitions)
topic_ids = st.builds(TopicId.from_uuid, uuids)
hostile = st.text(
    st.sampled_from([*TOPIC_CHARACTERS, "/", "\\", "\0", "\n", " ", "=", "é", "٣", "%", ":"]), max_size=40
)


# --- topics and ids ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["a", "a" * 249, "_", "-", "...", "orders.v1-x_2", "__consumer_offsets"])
def test_topics_that_kafka_takes(topic: str) -> None:
    assert names.check_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a" * 250, "a/b", "../a", "a b", "a\n", "\n", "é", "a\0", "a:b", "٣"])
def test_topics_that_kafka_refuses(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        names.check_topic(topic)


@given(uuids)
def test_a_topic_id_is_kafkas_text_of_a_uuid(value: uuid.UUID) -> None:
    topic_id = TopicId.from_uuid(value)
    assert topic_id.as_uuid == value
    assert len(topic_id.text) == 22
    assert base64.urlsafe_b64decode(str(topic_id) + "==") == value.bytes
    assert TopicId(topic_id.text + "==") == topic_id


@given(topic_ids, st.sampled_from("BCDEFGHIJKLMNOP"))
def test_equal_ids_have_equal_texts(topic_id: TopicId, last: str) -> None:
    """A text of 22 characters has four bits more than an id.

    One id once had several texts, and its folder was not found.
    """
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = alphabet[alphabet.index(topic_id.text[-1]) | alphabet.index(last)]
    assert TopicId(topic_id.text[:-1] + spare) == topic_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A" * 22,
        "abc",
        "AAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAAB",
        "AAAAAAAAAA AAAAAAAAAAAQ",
        "AAAAAAAAAA!AAAAAAAAAAAQ",
        "AAAAAAAAAAAAAAAAAAAA/Q",
        "AAAAAAAAAAAAAAAAAAAA+Q",
        "AAAAAAAAAAAAAAAAAAAAAQ=",
        "AAAAAAAAAAAAAAAAAAAAAQ===",
        "AAAAAAAAAAAAAAAAAAAAAQ\n",
        "AAAAAAAAAAAAAAAAAAAAéQ",
    ],
)
def test_text_that_is_no_topic_id_is_refused(text: str) -> None:
    """The base64 decoder ignores unknown characters, so an invalid text was once accepted."""
    with pytest.raises(InvalidTopicError):
        TopicId(text)


# --- folders and files -------------------------------------------------------------------------------------------


@given(logs)
@example(TopicPartition("a-1", 2))
@example(TopicPartition("-", 0))
@example(TopicPartition("...", (1 << 31) - 1))
def test_a_folder_is_parsed_back(log: TopicPartition) -> None:
    assert names.parse_partition_folder(names.partition_folder(log)) == log


@given(
    st.one_of(hostile, st.builds("{}-{}".format, hostile, hostile), st.builds("{}-{:03}".format, topics, partitions))
)
def test_a_folder_that_parses_builds_the_same_name(name: str) -> None:
    log = names.parse_partition_folder(name)
    assert log is None or names.partition_folder(log) == name


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-01",
        "orders-00",
        "orders-2147483648",
        "orders-99999999999",
        "orders-x",
        "orders-1\n",
        "orders-٣",
        "or ders-0",
        "a/b-0",
        ".-0",
        "..-0",
        "a" * 256 + "-0",
        "orders-0." + "0" * 32 + "-delete",
        "remote-log-index-cache",
    ],
)
def test_other_folders_are_no_logs(name: str) -> None:
    assert names.parse_partition_folder(name) is None


def test_the_longer_topics_of_old_releases_are_read() -> None:
    assert names.parse_partition_folder("a" * 250 + "-7") == TopicPartition("a" * 250, 7)


@pytest.mark.parametrize("fate", ["delete", "future", "stray"])
def test_folders_that_are_set_aside_are_reported_with_their_fate(fate: str) -> None:
    assert names.left_folder_fate(f"orders-3.{uuid.UUID(int=7).hex}-{fate}") == fate


@pytest.mark.parametrize(
    "name", ["orders-3", "orders-3.abc-delete", f"orders-x.{'0' * 32}-delete", f"o-1.{'0' * 32}-gone"]
)
def test_other_folders_have_no_fate(name: str) -> None:
    assert names.left_folder_fate(name) is None


@given(logs, uuids)
def test_a_deleted_folder_fits_a_file_system_and_is_known_again(log: TopicPartition, unique: uuid.UUID) -> None:
    name = names.deleted_folder(log, unique)
    assert len(name) <= 255
    assert names.left_folder_fate(name) == "delete"
    assert names.parse_partition_folder(name) is None
    assert log.topic.startswith(name.partition(".")[0].rpartition("-")[0]) or "." in log.topic


@given(offsets, st.sampled_from(names.SEGMENT_SUFFIXES), st.sampled_from(["", ".deleted", ".cleaned", ".swap"]))
def test_a_segment_file_is_parsed_back(base_offset: int, suffix: str, state: str) -> None:
    name = names.segment_file(base_offset, suffix + state)
    assert names.parse_segment_file(name) == SegmentFileName(base_offset, suffix, state)


@given(offsets, offsets)
def test_segment_files_sort_like_their_offsets(one: int, other: int) -> None:
    assert (names.segment_file(one, ".log") < names.segment_file(other, ".log")) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "-0000000000000000001.log",
        "00000000000000000000",
        "00000000000000000000.",
        "00000000000000000000.LOG",
        "00000000000000000000.log\n",
        "00000000000000000000.log.tmp",
        "0000000000000000000٣.log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_other_files_are_no_segment_files(name: str) -> None:
    assert names.parse_segment_file(name) is None


# --- object keys -------------------------------------------------------------------------------------------------


@given(logs, topic_ids, hostile)
def test_a_prefix_is_parsed_back_from_any_key_under_it(log: TopicPartition, topic_id: TopicId, rest: str) -> None:
    assert names.parse_log_prefix(names.log_prefix(log, topic_id) + rest) == (log, topic_id)


@given(st.one_of(hostile, st.builds("{}-{}/{}/{}".format, hostile, topic_ids, hostile, hostile)))
def test_a_prefix_that_parses_is_where_the_key_starts(key: str) -> None:
    parsed = names.parse_log_prefix(key)
    assert parsed is None or key.startswith(names.log_prefix(*parsed))


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
    assert names.parse_log_prefix(key) is None


def test_a_prefix_is_never_built_from_a_bad_topic() -> None:
    with pytest.raises(InvalidTopicError):
        names.log_prefix(TopicPartition("../secrets", 0), TopicId(GOOD_ID))


@given(logs, topic_ids, offsets, st.integers(0, (1 << 31) - 1), uuids)
def test_a_segment_key_is_parsed_back(
    log: TopicPartition, topic_id: TopicId, base_offset: int, epoch: int, unique: uuid.UUID
) -> None:
    prefix = names.log_prefix(log, topic_id)
    key = names.segment_key(prefix, base_offset, epoch, unique)
    assert names.parse_segment_key(prefix, key) == SegmentKey(base_offset, epoch)
    assert names.is_segment_key(prefix, key)
    assert key.startswith(names.segments_prefix(prefix))
    assert not names.is_segment_key(prefix + "x", key)


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1))
def test_a_segment_key_contains_the_time_of_its_upload(now_ms: int, random_bits: int) -> None:
    unique = names.upload_id(now_ms, random_bits)
    assert names.upload_time_ms(names.segment_key("t-id/0/", 5, 2, unique, "log")) == now_ms
    assert unique > names.upload_id(max(now_ms - 1, 0), random_bits) or now_ms == 0


def test_a_segment_key_of_an_earlier_release_has_no_upload_time() -> None:
    assert names.upload_time_ms(names.segment_key("t-id/0/", 5, 2, uuid.uuid4())) is None
    assert names.upload_time_ms("t-id/0/manifest/00000000000000000001") is None


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
    assert not names.is_segment_key("p/", f"p/segments/{name}")


@given(logs, topic_ids, offsets)
def test_a_manifest_key_is_parsed_back(log: TopicPartition, topic_id: TopicId, version: int) -> None:
    prefix = names.log_prefix(log, topic_id)
    key = names.manifest_key(prefix, version)
    assert names.parse_manifest_key(prefix, key) == version
    assert key.startswith(names.manifest_prefix(prefix))


@given(offsets, offsets)
def test_manifest_keys_sort_like_their_versions(one: int, other: int) -> None:
    assert (names.manifest_key("p/", one) < names.manifest_key("p/", other)) == (one < other)


@pytest.mark.parametrize("name", ["", "1", "0" * 19, "0" * 21, "9" * 20, "0" * 20 + ".tmp", "0" * 20 + "\n", "٣" * 20])
def test_other_keys_are_no_manifests(name: str) -> None:
    assert names.parse_manifest_key("p/", f"p/manifest/{name}") is None


@given(logs, topic_ids, st.text(max_size=20), logs, topic_ids)
def test_a_listing_continues_behind_a_log_and_misses_no_other(
    log: TopicPartition, topic_id: TopicId, rest: str, other: TopicPartition, other_id: TopicId
) -> None:
    prefix = names.log_prefix(log, topic_id)
    after = names.after_log_prefix(prefix).encode()
    assert (prefix + rest).encode() < after
    for next_log in (other, TopicPartition(log.topic, other.partition)):
        for further_id in (topic_id, other_id):
            key = (names.log_prefix(next_log, further_id) + rest).encode()
            assert key.startswith(prefix.encode()) or not prefix.encode() <= key < after
