from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog.model.matching import python_rows_of_key, rows_of_key
from stratalog.model.records import EXTENSIONS, Record, RecordColumns

Finder = Callable[[RecordColumns, bytes], bytes]

keys = st.none() | st.binary(max_size=3)


@pytest.fixture(params=["python", "compiled"])
def finder(request: pytest.FixtureRequest) -> Finder:
    if request.param == "python":
        return python_rows_of_key
    twin = compiled_twin(EXTENSIONS[2])
    made: Finder = twin.rows_of_key
    return made


def columns(listed: list[bytes | None]) -> RecordColumns:
    return RecordColumns.from_records(Record(key=key, value=b"value") for key in listed)


def test_a_key_is_the_whole_key(finder: Finder) -> None:
    records = columns([b"ab", b"abc", b"a", None, b"", b"ab"])
    assert finder(records, b"ab") == b"\1\0\0\0\0\1"
    assert finder(records, b"") == b"\0\0\0\0\1\0"
    assert finder(columns([]), b"ab") == b""


@given(st.lists(keys, max_size=40), st.binary(max_size=3))
def test_it_is_equality(listed: list[bytes | None], key: bytes) -> None:
    wanted = [found == key for found in listed]
    assert [list(find(columns(listed), key)) for find in (rows_of_key, python_rows_of_key)] == [wanted, wanted]


def test_columns_that_are_wrong_are_refused(finder: Finder) -> None:
    records = columns([b"ab", b"cd"])
    outside = RecordColumns(records.arena[:3], 2, key_position=records.key_position, key_size=records.key_size)
    with pytest.raises(IndexError):
        finder(outside, b"zzz")
    with pytest.raises(ValueError, match="of 2 records"):
        finder(RecordColumns(records.arena, 2), b"ab")
    with pytest.raises(TypeError, match="format i"):
        finder(RecordColumns(records.arena, 2, key_position=records.offset, key_size=records.key_size), b"ab")
