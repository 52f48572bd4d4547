from __future__ import annotations

import datetime as dt
import gc
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from record_columns import changed, columns_of, hostile_columns, outcome, records
from stratalog.errors import ConfigError, InvalidRecordError, PluginImportError
from stratalog.extensions import extension
from stratalog.model import arrow
from stratalog.model.arrow import arrow_schema, to_arrow
from stratalog.model.batches import TimestampType
from stratalog.model.column_views import ROW_COLUMNS
from stratalog.model.record_py import text_of
from stratalog.model.records import Record, RecordColumns, int32_column

LONG_MAX = (1 << 63) - 1
LONG_MIN = -(1 << 63)
LIMIT = (1 << 31) - 1

ONE = Record(5, 1_700_000_000_123, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"), ("h", None)), 7, 3)
NULLS = Record(6, -1, TimestampType.NONE, None, None, (), -1, 3)
EMPTIES = Record(7, 0, TimestampType.LOG_APPEND_TIME, b"", b"", (("", b""),), 0, 3)


def table_of(way: arrow.Batches, columns: RecordColumns, limit: int = LIMIT) -> pa.Table:
    """Return the batches as one table, after pyarrow has validated it."""
    schema = arrow_schema()
    table = pa.Table.from_batches(list(way(columns, 3, limit, schema)), schema=schema)
    table.validate(full=True)
    return table


def rows_of(source: list[Record]) -> list[dict[str, Any]]:
    """Return the expected rows of the table of these records. Timestamps are in microseconds."""
    return [
        {
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1000
            if record.timestamp_ms != -1 and abs(record.timestamp_ms) <= LONG_MAX // 1000
            else None,
            "timestamp_type": int(record.timestamp_type),
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
            "leader_epoch": record.leader_epoch,
        }
        for record in source
    ]


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table. Timestamps are integers (microseconds): a datetime ends with the year 9999."""
    index = table.schema.get_field_index("timestamp")
    return table.set_column(index, "timestamp", table.column("timestamp").cast(pa.int64())).to_pylist()


def rows_or_error(way: arrow.Batches, columns: RecordColumns, limit: int = LIMIT) -> object:
    """Return the rows of the table, or the type of the error."""
    return outcome(lambda: plain(table_of(way, columns, limit)))


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


def test_the_chosen_way_is_the_compiled_one_where_it_can_be() -> None:
    compiled = extension("stratalog.model.arrow_c")
    assert (arrow.record_batches is arrow.convert_batches) is (compiled is None)


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


def test_chunks_are_read_one_by_one_and_released() -> None:
    """A whole log must not be in memory twice, so the table must not refer to the arenas of the records."""
    arenas = list[bytes]()
    counts = list[int]()

    def chunks() -> Iterator[RecordColumns]:
        for _ in range(3):
            columns = columns_of([ONE] * 50)
            arenas.append(bytes(columns.arena))
            yield replace(columns, arena=arenas[-1])
            del columns
            counts.append(sys.getrefcount(arenas[-1]))

    table = to_arrow(chunks(), 3)
    gc.collect()
    assert table.num_rows == 150
    [unshared] = [sys.getrefcount(arena) for arena in [bytes(bytearray(9))]]  # the number depends on Python's version
    assert [sys.getrefcount(arena) for arena in arenas] == [unshared] * 3
    assert max(counts) <= min(counts) + 1


def test_a_partition_has_32_bits() -> None:
    for partition, error in ((1 << 31, InvalidRecordError), ("0", TypeError)):
        with pytest.raises(error, match="partition"):
            to_arrow([columns_of([ONE])], partition)  # type: ignore[arg-type]  # a str, as who does not check types may give


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for attempt in (arrow_schema, lambda: to_arrow([], 0)):
        with pytest.raises(PluginImportError) as caught:
            attempt()
        assert "pip install 'stratalog[arrow]'" in str(caught.value)


# --- Python and compiled conversion ------------------------------------------------------------------------------


@given(st.lists(records, max_size=12))
def test_any_records_make_a_valid_table(record_batches: arrow.Batches, listed: list[Record]) -> None:
    assert plain(table_of(record_batches, columns_of(listed))) == rows_of(listed)


@given(st.lists(records, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_columns_makes_its_part_of_the_table(
    record_batches: arrow.Batches, listed: list[Record], start: int, end: int
) -> None:
    assert plain(table_of(record_batches, columns_of(listed).take(start, end))) == rows_of(listed[start:end])


@pytest.mark.parametrize("timestamp_ms", [LONG_MAX, LONG_MIN, LONG_MAX // 1000 + 1, 1_700_000_000_000_000_000])
def test_a_timestamp_beyond_microseconds_is_null_and_spoils_nothing(
    record_batches: arrow.Batches, timestamp_ms: int
) -> None:
    """Some producers write nanoseconds as milliseconds. One such record once prevented the export of a whole log."""
    table = table_of(record_batches, columns_of([ONE._replace(timestamp_ms=timestamp_ms), ONE]))
    assert table.column("timestamp").is_null().to_pylist() == [True, False]
    assert table.column("offset").to_pylist() == [5, 5]


@pytest.mark.parametrize("timestamp_ms", [LONG_MAX // 1000, -(LONG_MAX // 1000), 0, -2])
def test_the_last_timestamps_that_fit_are_exact(record_batches: arrow.Batches, timestamp_ms: int) -> None:
    stamps = table_of(record_batches, columns_of([ONE._replace(timestamp_ms=timestamp_ms)])).column("timestamp")
    assert stamps.cast(pa.int64()).to_pylist() == [timestamp_ms * 1000]


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"\xed\xa0\x80", b"\xf0\x90\x80", b"ok"]), max_size=6))
def test_header_names_are_replaced_as_objects_have_them(record_batches: arrow.Batches, names: list[bytes]) -> None:
    """A byte that is not UTF-8 is replaced by three bytes, so the name becomes longer."""
    columns = columns_of([ONE._replace(headers=(("", None),)) for _ in names])
    positions = [sum(map(len, names[:n])) for n in range(len(names))]
    columns = replace(
        columns,
        arena=b"".join(names) + bytes(columns.arena),
        header_key_position=int32_column(positions),
        header_key_size=int32_column(map(len, names)),
    )
    actual = [row["headers"][0]["key"] for row in plain(table_of(record_batches, columns))]
    assert actual == [text_of(name) for name in names] == [header[0][0] for header in columns.headers()]


@given(hostile_columns(), st.integers(0, 40))
def test_inconsistent_columns_are_refused_or_both_encoders_agree(
    packed: arrow.Batches, columns: RecordColumns, limit: int
) -> None:
    compiled, pure = rows_or_error(packed, columns), rows_or_error(arrow.convert_batches, columns)
    assert compiled == pure
    assert compiled is IndexError or isinstance(compiled, list)
    for way in (packed, arrow.convert_batches):
        limited = rows_or_error(way, columns, limit)
        assert limited in (compiled, OverflowError) or compiled is limited is IndexError


@pytest.mark.parametrize("name", ROW_COLUMNS)
def test_an_absent_column_is_named(record_batches: arrow.Batches, name: str) -> None:
    columns = changed(columns_of([ONE]), name, getattr(RecordColumns(b"", 0), name))
    with pytest.raises(ConfigError, match=name):
        table_of(record_batches, columns)


@given(st.lists(records, min_size=1, max_size=12), st.integers(60, 200))
def test_columns_above_the_range_of_32_bit_offsets_become_several_batches(
    record_batches: arrow.Batches, listed: list[Record], limit: int
) -> None:
    """The test lowers the limit, because two gigabytes are too much for a test."""
    listed = [record._replace(headers=record.headers[:1]) for record in listed]
    batches = list(record_batches(columns_of(listed), 3, limit, arrow_schema()))
    assert [row for batch in batches for row in plain(pa.Table.from_batches([batch]))] == rows_of(listed)
    for batch in batches:
        for name in ("key", "value"):
            assert sum(len(item or b"") for item in batch.column(name).to_pylist()) <= limit
    value_bytes = sum(len(record.value or b"") for record in listed)
    assert len(batches) > 1 or value_bytes <= limit


def test_one_record_above_the_limit_is_refused(record_batches: arrow.Batches) -> None:
    big = ONE._replace(value=bytes(50))
    assert table_of(record_batches, columns_of([big] * 3), 50).num_rows == 3
    with pytest.raises(OverflowError, match="record 1 "):
        table_of(record_batches, columns_of([ONE, big, ONE]), 49)


def test_a_column_of_nulls_and_one_without_any(record_batches: arrow.Batches) -> None:
    (batch,) = record_batches(columns_of([ONE._replace(key=None)] * 17), 3, LIMIT, arrow_schema())
    batch.validate(full=True)
    assert (batch.column("key").null_count, batch.column("value").null_count) == (17, 0)
    assert batch.column("value").buffers()[0] is None


def test_a_buffer_that_changes_while_it_is_packed_is_safe(packed: arrow.Batches) -> None:
    """Another thread changes sizes and arena. Wrong rows and errors are allowed, invalid memory accesses are not."""
    columns = columns_of([ONE, EMPTIES] * 500)
    sizes, arena = memoryview(bytearray(4 * 1000)).cast("i"), bytearray(columns.arena)
    columns = replace(columns, value_size=sizes, arena=arena)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for index in range(0, 1000, 7):
                sizes[index] = (sizes[index] + 1) % 3 - 1
            arena[:10] = bytes(10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            try:
                assert sum(batch.num_rows for batch in packed(columns, 3, LIMIT, arrow_schema())) == 1000
            except RuntimeError as error:
                assert "were written" in str(error)  # noqa: PT017 - either way is right
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("rows", [1, 4095, 4096, 4097, 1 << 17, (1 << 17) + 1])
def test_a_repeated_number_fills_all_rows_of_an_immutable_buffer(rows: int) -> None:
    buffer = arrow.ArrowBuffers.repeated(-7, rows)
    assert memoryview(buffer).cast("i").tolist() == [-7] * rows
    assert not buffer.is_mutable


def test_a_number_above_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        arrow.ArrowBuffers.repeated(1 << 31, 5)
