from __future__ import annotations

import base64
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drawn_names import hostile, logs, offsets, partitions, topic_ids, topics, uuids
from stratalog.errors import InvalidTopicError
from stratalog.model import names
from stratalog.model.names import SegmentFileName, TopicId, TopicPartition

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
