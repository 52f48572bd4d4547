from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from record_columns import changed, columns_of, hostile_columns, outcome, records
from stratalog.errors import ConfigError, InvalidRecordError, WrongTypeError
from stratalog.model import record_py
from stratalog.model.batches import TimestampType
from stratalog.model.column_views import FLAT_COLUMNS, ROW_COLUMNS
from stratalog.model.records import Fields, Record, RecordColumns, int32_column, int64_column

ONE = Record(5, 1_700_000_000_123, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"), ("h", None)), 7, 3)
NULLS = Record(6, -1, TimestampType.NONE, None, None, (), -1, 3)
EMPTIES = Record(7, 0, TimestampType.LOG_APPEND_TIME, b"", b"", (("", b""),), 0, 3)
ALL = [ONE, NULLS, EMPTIES]

# Java 17's String(bytes, UTF_8) for bytes that are not UTF-8.
JAVA_READS = {
    b"\xff": "\ufffd",
    b"a\x80b": "a\ufffdb",
    b"\xc0\xaf": "\ufffd\ufffd",
    b"\xc3": "\ufffd",
    b"\xc3\xc3\xa9": "\ufffdé",
    b"\xe0\x80\x80": "\ufffd\ufffd\ufffd",
    b"\xe2\x82": "\ufffd",
    b"\xe2\x82a": "\ufffda",
    b"\xe2\x82\xed\xa0\x80": "\ufffd\ufffd",
    b"\xed\x9f\xbf": "\ud7ff",
    b"\xed\xa0\x80": "\ufffd",
    b"\xed\xa0\x80\xed\xb0\x80": "\ufffd\ufffd",
    b"\xed\xa0": "\ufffd",
    b"\xed\xa0a": "\ufffda",
    b"\xed": "\ufffd",
    b"\xf0\x90\x8c": "\ufffd",
    b"\xf0\x90\x8c\x80": "\U00010300",
    b"\xf0\x8f\xbf\xbf": "\ufffd\ufffd\ufffd\ufffd",
    b"\xf4\x8f\xbf\xbf": "\U0010ffff",
    b"\xf4\x90\x80\x80": "\ufffd\ufffd\ufffd\ufffd",
    b"\xf8\x88\x80\x80\x80": "\ufffd\ufffd\ufffd\ufffd\ufffd",
}


# --- columns -----------------------------------------------------------------------------------------------------


def test_columns_have_the_formats_that_are_promised() -> None:
    columns = RecordColumns.from_records(ALL)
    for name, code in (ROW_COLUMNS | FLAT_COLUMNS).items():
        assert getattr(columns, name).format == getattr(RecordColumns(b"", 0), name).format == code
    assert (int64_column([1]).format, int32_column([1]).format) == ("q", "i")


@given(st.lists(records, max_size=5))
def test_columns_come_back_as_records(listed: list[Record]) -> None:
    columns = columns_of(listed)
    assert columns.to_records(3) == listed
    assert columns.keys() == [record.key for record in listed]
    assert columns.values() == [record.value for record in listed]
    assert columns.headers() == [record.headers for record in listed]
    assert RecordColumns.from_records(iter(listed)).to_records(3) == listed


@given(st.lists(records, max_size=5), st.integers(0, 6), st.integers(0, 6))
def test_taking_records_is_slicing(listed: list[Record], start: int, end: int) -> None:
    """A range past the end once counted records that do not exist."""
    part = columns_of(listed).take(start, end)
    assert part.to_records(3) == listed[start:end]
    assert part.count == len(listed[start:end])


def test_fields_that_were_not_requested_are_empty() -> None:
    columns = RecordColumns(b"", 2, offset=int64_column([1, 2]))
    assert (columns.keys(), columns.values(), columns.headers()) == ([], [], [(), ()])
    assert columns.take(1, 2).offset.tolist() == [2]


def test_fields_all_has_every_field() -> None:
    assert set(Fields.ALL) == set(Fields)


# --- Python and compiled records ---------------------------------------------------------------------------------


def in_order(columns: RecordColumns) -> list[memoryview]:
    return [getattr(columns, name) for name in ROW_COLUMNS | FLAT_COLUMNS]


def same(twin: ModuleType, originals: list[Record]) -> list[Record]:
    """Return the records as objects of this module."""
    return [twin.Record(*record) for record in originals]


@given(st.lists(records, max_size=5))
@pytest.mark.long
def test_a_twin_makes_records_of_columns_and_columns_of_records(twin: ModuleType, listed: list[Record]) -> None:
    twin_records = twin.records_of(columns_of(listed), 3)
    assert twin_records == listed
    assert all(type(record) is twin.Record for record in twin_records)
    arena, count, columns = twin.columns_of(twin_records)
    rebuilt = RecordColumns(arena, count, *columns)
    assert twin.records_of(rebuilt, 3) == listed
    assert len(arena) == sum(
        len(item or b"")
        for record in listed
        for item in (record.key, record.value, *(x for n, v in record.headers for x in (n.encode(), v)))
    )


@given(st.lists(records, max_size=5))
def test_twins_make_the_same_columns(record_c: ModuleType, listed: list[Record]) -> None:
    results = [
        (bytes(arena), count, [(column.format, column.tolist()) for column in columns])
        for twin in (record_py, record_c)
        for arena, count, columns in (twin.columns_of(same(twin, listed)),)
    ]
    assert results[0] == results[1]


@given(hostile_columns())
@example(
    RecordColumns(
        b"abc", 1, *map(int64_column, [[0], [0]]), *map(int32_column, [[0], [0], [3], [0], [4], [0], [0], [0]])
    )
)
def test_twins_agree_on_inconsistent_columns(record_c: ModuleType, columns: RecordColumns) -> None:
    for pure, compiled in (
        (outcome(lambda: record_py.records_of(columns, 3)), outcome(lambda: record_c.records_of(columns, 3))),
        (outcome(lambda: record_py.headers_of(columns)), outcome(lambda: record_c.headers_of(columns))),
    ):
        assert pure == compiled
        assert pure is IndexError or isinstance(pure, list)
    for positions, sizes in (
        (columns.key_position, columns.key_size),
        (columns.header_key_position, columns.header_key_size),
    ):
        assert items(record_py, columns, positions, sizes) == items(record_c, columns, positions, sizes)


def items(twin: ModuleType, columns: RecordColumns, positions: memoryview, sizes: memoryview) -> object:
    """Return one column of fields as this module decodes it, or the type of the error."""
    return outcome(lambda: twin.items_of(columns.arena, positions, sizes))


FAR = (1 << 31) - 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("key_position", [-1, 0, 0]),
        ("key_position", [FAR, 0, 0]),
        ("key_size", [FAR, -1, 0]),
        ("value_position", [0, 0, -(1 << 31)]),
        ("value_size", [1, -1, 1000]),
        ("header_first", [2, 0, 2]),
        ("header_first", [-1, 0, 2]),
        ("header_first", [FAR, 0, 2]),
        ("header_count", [4, 0, 1]),
        ("header_count", [-1, 0, 1]),
        ("header_count", [FAR, 0, 1]),
        ("header_key_position", [0, 0, 1000]),
        ("header_key_size", [-1, 1, 0]),
        ("header_key_size", [1000, 1, 0]),
        ("header_value_position", [-5, 0, 0]),
        ("header_value_size", [1000, -1, 0]),
    ],
)
def test_a_position_is_checked_before_it_is_followed(twin: ModuleType, name: str, values: list[int]) -> None:
    columns = changed(columns_of(ALL), name, int32_column(values))
    with pytest.raises(IndexError, match=r"not inside|name is null"):
        twin.records_of(columns, 0)


def test_the_position_of_a_null_does_not_matter(twin: ModuleType) -> None:
    columns = replace(columns_of([NULLS]), key_position=int32_column([-7]), key_size=int32_column([-9]))
    assert twin.records_of(columns, 3) == [NULLS]


@pytest.mark.parametrize("name", ROW_COLUMNS)
def test_an_absent_column_is_named(twin: ModuleType, name: str) -> None:
    empty = getattr(RecordColumns(b"", 0), name)
    columns = changed(columns_of(ALL), name, empty)
    with pytest.raises(ConfigError, match=name):
        twin.records_of(columns, 0)


@pytest.mark.parametrize("name", [*ROW_COLUMNS, *FLAT_COLUMNS])
def test_a_column_of_another_format_or_length_is_named(twin: ModuleType, name: str) -> None:
    columns = columns_of(ALL)
    column = getattr(columns, name)
    other_column = (int32_column if column.format == "q" else int64_column)([0] * len(column))
    for replacement, reason in (
        (other_column, f"format {column.format}, not {other_column.format}"),
        (column[::2], "not a contiguous"),
    ):
        with pytest.raises(TypeError, match=f"{name} is .*{reason}"):
            twin.records_of(changed(columns, name, replacement), 0)
    with pytest.raises(ValueError, match=r"has [23] rows instead of [23]"):
        twin.records_of(changed(columns, name, column[:-1]), 0)


def test_positions_and_sizes_are_pairs(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="2 positions and 1 sizes"):
        twin.items_of(b"abc", int32_column([0, 1]), int32_column([1]))


@pytest.mark.parametrize("number", [-2, 2, 7, FAR])
def test_a_timestamp_type_that_does_not_exist_is_refused(twin: ModuleType, number: int) -> None:
    columns = replace(columns_of([ONE]), timestamp_type=int32_column([number]))
    with pytest.raises(ValueError, match=str(number)):
        twin.records_of(columns, 0)


def test_types_of_timestamps_are_shared(twin: ModuleType) -> None:
    result = twin.records_of(columns_of(ALL), 0)
    assert [record.timestamp_type for record in result] == [record.timestamp_type for record in ALL]
    assert all(record.timestamp_type is TimestampType(record.timestamp_type) for record in result)


def test_a_partition_has_32_bits(twin: ModuleType) -> None:
    for partition, error in ((1 << 31, InvalidRecordError), ("0", TypeError)):
        with pytest.raises(error, match="partition"):
            twin.records_of(columns_of([ONE]), partition)


@pytest.mark.parametrize("raw", JAVA_READS, ids=bytes.hex)
def test_header_names_that_are_no_utf8_read_as_in_kafka(twin: ModuleType, raw: bytes) -> None:
    columns = replace(
        columns_of([ONE._replace(headers=(("", b"x"),))]),
        arena=raw + b"kvx",
        header_key_position=int32_column([0]),
        header_key_size=int32_column([len(raw)]),
        header_value_position=int32_column([len(raw) + 2]),
    )
    columns = replace(columns, key_size=int32_column([-1]), value_size=int32_column([-1]))
    expected = ((JAVA_READS[raw], b"x"),)
    assert twin.records_of(columns, 0)[0].headers == twin.headers_of(columns)[0] == expected


@pytest.mark.parametrize("arena", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_any_buffer_is_an_arena(twin: ModuleType, arena: Callable[[bytes], bytes]) -> None:
    columns = columns_of(ALL)
    columns = replace(columns, arena=arena(bytes(columns.arena)))
    assert twin.records_of(columns, 3) == ALL


def test_only_records_become_columns(twin: ModuleType) -> None:
    for value in (None, tuple(ONE), b"v"):
        with pytest.raises(TypeError, match="a Record is needed"):
            twin.columns_of([twin.Record(), value])


def test_a_header_name_without_bytes_is_refused_with_its_record(twin: ModuleType) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        twin.columns_of([twin.Record(), twin.Record(headers=(("\ud800", None),))])
    assert caught.value.record_errors[0][0] == 1


def test_records_that_no_arena_holds_are_refused_before_they_are_copied(twin: ModuleType) -> None:
    big = bytes(1 << 20)
    with pytest.raises(InvalidRecordError, match="2 GiB") as caught:
        twin.columns_of([twin.Record(key=big)] * 2049)
    assert caught.value.record_errors[0][0] == 2047


def test_nothing_leaks_when_it_fails_half_way(record_c: ModuleType) -> None:
    """The test compares reference counts of the objects from which records are made and which records share."""
    columns = columns_of(ALL * 300)
    arena = bytes(columns.arena)
    sound = replace(columns, arena=arena)
    damaged = changed(sound, "value_position", int32_column([*sound.value_position[:-1], FAR]))
    name = "a name of its own"
    named_record = record_c.Record(headers=((name, arena),))
    gc.collect()
    before = sys.getrefcount(arena), sys.getrefcount(sound.key_size), sys.getrefcount(name)
    shared = sys.getrefcount(TimestampType.LOG_APPEND_TIME)
    for _ in range(50):
        record_c.records_of(sound, 0)
        list(record_c.iterator_of(sound, 0))
        record_c.headers_of(sound)
        record_c.columns_of([named_record])
        for attempt in (lambda: record_c.records_of(damaged, 0), lambda: list(record_c.iterator_of(damaged, 0))):
            assert outcome(attempt) is IndexError
        assert outcome(lambda: record_c.columns_of([named_record, None])) is WrongTypeError
    gc.collect()
    assert before == (sys.getrefcount(arena), sys.getrefcount(sound.key_size), sys.getrefcount(name))
    assert abs(sys.getrefcount(TimestampType.LOG_APPEND_TIME) - shared) < 50


def test_records_are_made_when_they_are_asked_for(twin: ModuleType) -> None:
    """A reader gets the records before an invalid one, and may stop at any record.

    The Python implementation makes several records at a time.
    """
    originals = ALL * 1000
    columns = columns_of(originals)
    assert list(twin.iterator_of(columns, 3)) == originals == list(columns.iter_records(3))
    assert list(twin.iterator_of(columns.take(0, 0), 3)) == []
    damaged = changed(columns, "value_position", int32_column([*columns.value_position[:-1], FAR]))
    iterator = twin.iterator_of(damaged, 3)
    assert [next(iterator) for _ in range(5)] == originals[:5]
    with pytest.raises(IndexError):
        list(iterator)
    with pytest.raises(ConfigError):
        twin.iterator_of(RecordColumns(b"", 1), 3)
    with pytest.raises(InvalidRecordError):
        twin.iterator_of(columns, 1 << 31)


def test_many_threads_read_the_same_columns(twin: ModuleType) -> None:
    columns = columns_of(ALL * 200)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: twin.records_of(columns, 3), range(40)):
            assert result == ALL * 200
