from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog.model.matching import first_late_row, python_first_late_row, python_rows_of_key, rows_of_key
from stratalog.model.records import EXTENSIONS, Record, RecordColumns, int64_column

Finder = Callable[[RecordColumns, bytes], bytes]

keys = st.none() | st.binary(max_size=3)


@pytest.fixture(params=["python", "compiled"])
def finder(request: pytest.FixtureRequest) -> Finder:
    if request.param == "python":
        return python_rows_of_key
    twin = compiled_twin(EXTENSIONS[2])
    compiled: Finder = twin.rows_of_key
    return compiled


def columns(record_keys: list[bytes | None]) -> RecordColumns:
    return RecordColumns.from_records(Record(key=key, value=b"value") for key in record_keys)


def test_a_key_is_the_whole_key(finder: Finder) -> None:
    records = columns([b"ab", b"abc", b"a", None, b"", b"ab"])
    assert finder(records, b"ab") == b"\1\0\0\0\0\1"
    assert finder(records, b"") == b"\0\0\0\0\1\0"
    assert finder(columns([]), b"ab") == b""


@given(st.lists(keys, max_size=40), st.binary(max_size=3))
def test_the_rows_of_a_key_are_those_with_an_equal_key(listed: list[bytes | None], key: bytes) -> None:
    expected = [record_key == key for record_key in listed]
    assert [list(find(columns(listed), key)) for find in (rows_of_key, python_rows_of_key)] == [expected, expected]


def test_columns_that_are_wrong_are_refused(finder: Finder) -> None:
    records = columns([b"ab", b"cd"])
    outside = RecordColumns(records.arena[:3], 2, key_position=records.key_position, key_size=records.key_size)
    with pytest.raises(IndexError, match="a field of 2 bytes at 7 is not inside the arena"):
        finder(outside, b"zzz")
    with pytest.raises(ValueError, match="0 positions and 0 sizes of the keys of 2 records"):
        finder(RecordColumns(records.arena, 2), b"ab")
    with pytest.raises(TypeError, match="column key_position is a memoryview of format i"):
        finder(RecordColumns(records.arena, 2, key_position=records.offset, key_size=records.key_size), b"ab")


@pytest.fixture(params=["python", "compiled"])
def first_late(request: pytest.FixtureRequest) -> Callable[[RecordColumns, int, int], int | None]:
    if request.param == "python":
        return python_first_late_row
    compiled: Callable[[RecordColumns, int, int], int | None] = compiled_twin(EXTENSIONS[2]).first_late_row
    return compiled


def test_the_first_late_record_need_not_have_the_least_timestamp(
    first_late: Callable[[RecordColumns, int, int], int | None],
) -> None:
    records = RecordColumns(b"", 4, int64_column([10, 11, 13, 14]), int64_column([5, 9, -1, 7]))
    huge = 1 << 70
    assert first_late(records, 6, 0) == 1
    assert first_late(records, 5, 0) == 0
    assert first_late(records, 6, 12) == 3
    assert first_late(records, -huge, 12) == 2
    assert first_late(records, 9, -huge) == 1
    assert [first_late(records, *arguments) for arguments in [(10, 0), (5, 15), (huge, 0), (0, huge)]] == [None] * 4
    assert first_late(RecordColumns(b"", 0), 0, 0) is None
    with pytest.raises(ValueError, match="0 timestamps and 1 offsets"):
        first_late(RecordColumns(b"", 1, int64_column([1]), int64_column()), 0, 0)


@given(st.lists(st.integers(-2, 5), max_size=20), st.integers(-3, 6), st.integers(0, 21))
def test_both_twins_find_the_same_late_record(stamps: list[int], timestamp_ms: int, min_offset: int) -> None:
    records = RecordColumns(b"", len(stamps), int64_column(range(len(stamps))), int64_column(stamps))
    late = [row for row, ms in enumerate(stamps) if ms >= timestamp_ms and row >= min_offset]
    expected = late[0] if late else None
    assert [find(records, timestamp_ms, min_offset) for find in (first_late_row, python_first_late_row)] == [
        expected
    ] * 2
