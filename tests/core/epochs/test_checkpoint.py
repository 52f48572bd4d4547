from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.epochs.checkpoint import check_offsets, format_epochs, format_offsets, parse_epochs, parse_offsets
from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry
from vectors import VECTORS

OFFSET_FILES = [case for case in VECTORS["text_files"] if case["file"] == "offset-checkpoint"]
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1

logs = st.builds(TopicPartition, st.text("abc._-09", min_size=1, max_size=20), st.integers(0, INT_MAX))


def test_there_are_vectors() -> None:
    assert {case["expect"] for case in OFFSET_FILES} == {"accept", "reject"}


@pytest.mark.parametrize("case", OFFSET_FILES, ids=lambda case: repr(case["text"]))
def test_offsets_are_read_as_kafka_reads_them(case: dict[str, Any]) -> None:
    data = case["text"].encode()
    if case["expect"] == "reject":
        with pytest.raises(CorruptCheckpointError) as caught:
            parse_offsets(data, "there")
        assert caught.value.file == "there"
        return
    expected = {TopicPartition(topic, partition): offset for topic, partition, offset in case["entries"]}
    assert parse_offsets(data, "there") == expected


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"x\n0\n", 0),
        (b"0\nx\n", 2),
        (b"0\r\nx\r\n", 3),
        (b"0\n1\nt 0\n", 4),
        (b"0\n2\nt 0 5\nu 0\n", 10),
        (b"0\r\n2\r\nt 0 5\r\nu x 5\r\n", 13),
        (b"0\n1\n\xff 0 5\n", 4),
        (b"0\n1\nt 0 9223372036854775808\n", 4),
        (b"0\n1\nt 2147483648 5\n", 4),
        (b"0\n1\nt 0 " + b"9" * 5000 + b"\n", 4),
        ("0\n1\nt 0 ٣\n".encode(), 4),
        (b"0\n3\nt 0 5\n", 2),
        (b"0\n99999999999\n", 2),
    ],
)
def test_an_error_names_file_and_position(data: bytes, position: int) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        parse_offsets(data, "dir/recovery-point-offset-checkpoint")
    assert (caught.value.file, caught.value.position) == ("dir/recovery-point-offset-checkpoint", position)


@given(st.dictionaries(logs, st.integers(-1, LONG_MAX), max_size=5))
def test_offsets_come_back_as_written(offsets: dict[TopicPartition, int]) -> None:
    data = format_offsets(offsets)
    assert parse_offsets(data, "f") == offsets
    assert data.splitlines()[:2] == [b"0", str(len(offsets)).encode()]
    assert data.endswith(b"\n")


def test_an_offset_file_is_kafkas_text() -> None:
    offsets = {TopicPartition("u", 1): 0, TopicPartition("t-x", 10): 7}
    assert format_offsets(offsets) == b"0\n2\nt-x 10 7\nu 1 0\n"


@pytest.mark.parametrize("cut", range(len(b"0\n2\nt 0 5\nu 1 61\n")))
def test_a_truncated_file_is_never_accepted_as_complete(cut: int) -> None:
    data = b"0\n2\nt 0 5\nu 1 61\n"
    try:
        offsets = parse_offsets(data[:cut], "f")
    except CorruptCheckpointError:
        return
    # Kafka accepts an empty file, a file with the version alone, and a last number without its last digits
    all_offsets = parse_offsets(data, "f")
    assert offsets == {} or (cut >= len(data) - 2 and offsets.keys() == all_offsets.keys())


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused_or_read(data: bytes) -> None:
    for parse in (parse_offsets, parse_epochs):
        position = 0
        try:
            parse(data, "f")
        except CorruptCheckpointError as error:
            position = error.position
        assert 0 <= position <= len(data)


# --- leader epochs -----------------------------------------------------------------------------------------------


def test_an_epoch_file_is_kafkas_text() -> None:
    entries = [EpochEntry(0, 0), EpochEntry(3, 18)]
    assert format_epochs(entries) == b"0\n2\n0 0\n3 18\n"
    assert parse_epochs(b"0\n2\n0 0\n3 18\n", "f") == entries


def test_an_epoch_file_may_be_empty() -> None:
    assert parse_epochs(b"", "f") == []
    assert parse_epochs(format_epochs([]), "f") == []


@pytest.mark.parametrize("line", [b"0", b"0 0 0", b"a 0", b"0 a", b"-1 0", b"0 -1", b"2147483648 0", b" 0 0"])
def test_bad_epoch_lines_are_refused(line: bytes) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        parse_epochs(b"0\n2\n0 0\n" + line + b"\n", "leader-epoch-checkpoint")
    assert caught.value.position == len(b"0\n2\n0 0\n")


def test_a_checkpoint_is_not_stored_with_an_offset_that_is_no_number() -> None:
    """The offset 15.0 is equal to 15, but its line in the file differs."""
    log, other_log = TopicPartition("t", 0), TopicPartition("u", 1)
    before = format_offsets({log: 15, other_log: 3})
    check_offsets(before, b"", "file")
    check_offsets(format_offsets({log: 16, other_log: 3}), before, "file")
    for invalid_offset in (15.0, True, "x y", 1 << 63):
        with pytest.raises(StorageError, match="a note was not stored"):
            check_offsets(format_offsets({log: invalid_offset, other_log: 3}), before, "file")  # type: ignore[dict-item]  # the test passes what a type checker refuses


def test_lines_that_were_stored_before_are_not_parsed_once_more() -> None:
    before = b"0\n2\nt 0 wrong\nu 1 3\n"
    check_offsets(before.replace(b"u 1 3", b"u 1 4"), before, "file")
