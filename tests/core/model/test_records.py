from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import PluginImportError
from stratalog.model.arrow import arrow_schema, to_arrow
from stratalog.model.batches import TimestampType
from stratalog.model.records import Fields, Record, RecordColumns, int32_column, int64_column

LONG_MAX = (1 << 63) - 1
LONG_MIN = -(1 << 63)

longs = st.integers(LONG_MIN, LONG_MAX)
blobs = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)
records = st.builds(
    Record,
    offset=longs,
    timestamp_ms=longs,
    timestamp_type=st.sampled_from(TimestampType),
    key=blobs,
    value=blobs,
    headers=headers,
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    partition=st.just(3),
)


def columns_of(listed: Sequence[Record]) -> RecordColumns:
    """The records as columns over one arena with some bytes of nobody before each field."""
    arena = bytearray()

    def place(items: Sequence[bytes | None]) -> tuple[memoryview, memoryview]:
        positions, sizes = list[int](), list[int]()
        for item in items:
            arena.extend(b"--")
            positions.append(len(arena) if item is not None else 0)
            sizes.append(len(item) if item is not None else -1)
            arena.extend(item or b"")
        return int32_column(positions), int32_column(sizes)

    key_position, key_size = place([record.key for record in listed])
    value_position, value_size = place([record.value for record in listed])
    flat = [header for record in listed for header in record.headers]
    name_position, name_size = place([name.encode() for name, _ in flat])
    header_position, header_size = place([value for _, value in flat])
    firsts, first = list[int](), 0
    for record in listed:
        firsts.append(first)
        first += len(record.headers)
    return RecordColumns(
        memoryview(bytes(arena)),
        len(listed),
        offset=int64_column(record.offset for record in listed),
        timestamp_ms=int64_column(record.timestamp_ms for record in listed),
        timestamp_type=int32_column(record.timestamp_type for record in listed),
        leader_epoch=int32_column(record.leader_epoch for record in listed),
        key_position=key_position,
        key_size=key_size,
        value_position=value_position,
        value_size=value_size,
        header_first=int32_column(firsts),
        header_count=int32_column(len(record.headers) for record in listed),
        header_key_position=name_position,
        header_key_size=name_size,
        header_value_position=header_position,
        header_value_size=header_size,
    )


ONE = Record(5, 1_700_000_000_123, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"), ("h", None)), 7, 3)
NULLS = Record(6, -1, TimestampType.NONE, None, None, (), -1, 3)
EMPTIES = Record(7, 0, TimestampType.LOG_APPEND_TIME, b"", b"", (("", b""),), 0, 3)
ALL = [ONE, NULLS, EMPTIES]


@given(st.lists(records, max_size=5))
def test_columns_come_back_as_records(listed: list[Record]) -> None:
    columns = columns_of(listed)
    assert columns.to_records(3) == listed
    assert columns.keys() == [record.key for record in listed]
    assert columns.values() == [record.value for record in listed]


@given(st.lists(records, max_size=5), st.integers(0, 6), st.integers(0, 6))
def test_taking_records_is_slicing(listed: list[Record], start: int, end: int) -> None:
    """A range past the end counted records that were not there."""
    taken = columns_of(listed).take(start, end)
    assert taken.to_records(3) == listed[start:end]
    assert taken.count == len(listed[start:end])


def test_a_new_record_has_what_a_producer_leaves_out() -> None:
    record = Record(value=b"v")
    assert (record.offset, record.timestamp_ms, record.key, record.headers, record.leader_epoch, record.partition) == (
        -1,
        -1,
        None,
        (),
        -1,
        -1,
    )


def test_header_names_that_are_no_utf8_are_replaced() -> None:
    columns = columns_of([ONE])
    raw = bytearray(columns.arena)
    raw[columns.header_key_position[0]] = 0xFF
    broken = RecordColumns(bytes(raw), *(getattr(columns, name) for name in columns.__slots__ if name != "arena"))
    assert broken.headers()[0][0] == ("\N{REPLACEMENT CHARACTER}", b"x")


def test_fields_that_nobody_asked_for_are_empty() -> None:
    columns = RecordColumns(b"", 2, offset=int64_column([1, 2]))
    assert (columns.keys(), columns.values(), columns.headers()) == ([], [], [(), ()])
    assert columns.take(1, 2).offset.tolist() == [2]


def test_all_fields_are_all_fields() -> None:
    assert set(Fields.ALL) == set(Fields)


# --- Arrow ---------------------------------------------------------------------------------------------------------


def test_the_schema_has_the_columns_of_sparks_kafka_source_without_its_topic() -> None:
    schema = arrow_schema()
    assert [(field.name, str(field.type), field.nullable) for field in schema] == [
        ("partition", "int32", False),
        ("offset", "int64", False),
        ("timestamp", "timestamp[us, tz=UTC]", True),
        ("timestamp_type", "int32", False),
        ("key", "binary", True),
        ("value", "binary", True),
        ("headers", "list<item: struct<key: string not null, value: binary> not null>", False),
        ("leader_epoch", "int32", False),
    ]


def test_a_table_has_a_row_a_record_and_a_chunk_for_each_part() -> None:
    table = to_arrow([columns_of([ONE]), columns_of([]), columns_of([NULLS, EMPTIES])], 3)
    assert table.schema == arrow_schema()
    assert table.column("offset").num_chunks == 2
    table.validate(full=True)
    utc = dt.UTC
    assert table.to_pylist() == [
        {
            "partition": 3,
            "offset": 5,
            "timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=utc),
            "timestamp_type": 0,
            "key": b"k",
            "value": b"v",
            "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
            "leader_epoch": 7,
        },
        {
            "partition": 3,
            "offset": 6,
            "timestamp": None,
            "timestamp_type": -1,
            "key": None,
            "value": None,
            "headers": [],
            "leader_epoch": -1,
        },
        {
            "partition": 3,
            "offset": 7,
            "timestamp": dt.datetime(1970, 1, 1, tzinfo=utc),
            "timestamp_type": 1,
            "key": b"",
            "value": b"",
            "headers": [{"key": "", "value": b""}],
            "leader_epoch": 0,
        },
    ]


def test_a_table_of_nothing_has_the_schema() -> None:
    table = to_arrow([], 0)
    assert table.num_rows == 0
    assert table.schema == arrow_schema()


@pytest.mark.parametrize("timestamp_ms", [LONG_MAX, LONG_MIN, LONG_MAX // 1000 + 1, 1_700_000_000_000_000_000])
def test_a_timestamp_beyond_microseconds_is_null_and_spoils_nothing(timestamp_ms: int) -> None:
    """One record of a producer that took nanoseconds for milliseconds made a whole log impossible to export."""
    table = to_arrow([columns_of([ONE._replace(timestamp_ms=timestamp_ms), ONE])], 3)
    assert table.column("timestamp").is_null().to_pylist() == [True, False]
    assert table.column("offset").to_pylist() == [5, 5]


@pytest.mark.parametrize("timestamp_ms", [LONG_MAX // 1000, -(LONG_MAX // 1000), 0, -2])
def test_the_last_timestamps_that_fit_are_exact(timestamp_ms: int) -> None:
    stamps = to_arrow([columns_of([ONE._replace(timestamp_ms=timestamp_ms)])], 3).column("timestamp")
    assert stamps.cast(pa.int64()).to_pylist() == [timestamp_ms * 1000]


@given(st.lists(records, max_size=4))
def test_any_records_make_a_valid_table(listed: list[Record]) -> None:
    table = to_arrow([columns_of(listed)], 3)
    table.validate(full=True)
    assert table.column("key").to_pylist() == [record.key for record in listed]
    assert table.column("value").to_pylist() == [record.value for record in listed]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for attempt in (arrow_schema, lambda: to_arrow([], 0)):
        with pytest.raises(PluginImportError) as caught:
            attempt()
        assert "pip install 'stratalog[arrow]'" in str(caught.value)
