"""Columns of records for tests: valid ones whose arena has gaps, and invalid ones that no decoder returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from stratalog.errors import StorageError
from stratalog.model.batches import TimestampType
from stratalog.model.records import Record, RecordColumns, int32_column, int64_column

longs = st.integers(-(1 << 63), (1 << 63) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
blobs = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)
fields = st.fixed_dictionaries(
    {},
    optional={
        "offset": longs,
        "timestamp_ms": longs,
        "timestamp_type": st.sampled_from(TimestampType),
        "key": blobs,
        "value": blobs,
        "headers": headers,
        "leader_epoch": ints,
        "partition": ints,
    },
)
records = fields.map(lambda chosen: Record(**{**chosen, "partition": 3}))


def columns_of(listed: Sequence[Record]) -> RecordColumns:
    """Return the records as columns over one arena, with unused bytes before each field."""
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


@st.composite
def hostile_columns(draw: st.DrawFn) -> RecordColumns:
    """Draw columns with invalid numbers in every field: negative, beyond the arena, or beyond the header columns."""
    count, total = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    arena = draw(st.binary(max_size=12))
    small = st.integers(-2, 13)
    number = st.one_of(small, small, small, small, small, ints)

    def column(length: int) -> memoryview:
        return int32_column(draw(st.lists(number, min_size=length, max_size=length)))

    counts = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, -1]), min_size=count, max_size=count))
    firsts = draw(st.lists(st.one_of(st.integers(-1, 3), ints), min_size=count, max_size=count))
    return RecordColumns(
        arena,
        count,
        offset=int64_column(draw(st.lists(longs, min_size=count, max_size=count))),
        timestamp_ms=int64_column(draw(st.lists(longs, min_size=count, max_size=count))),
        timestamp_type=int32_column(draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))),
        leader_epoch=column(count),
        key_position=column(count),
        key_size=column(count),
        value_position=column(count),
        value_size=column(count),
        header_first=int32_column(firsts),
        header_count=int32_column(counts),
        header_key_position=column(total),
        header_key_size=column(total),
        header_value_position=column(total),
        header_value_size=column(total),
    )


def changed(columns: RecordColumns, name: str, column: memoryview) -> RecordColumns:
    """Return the columns with one column replaced."""
    fields: dict[str, Any] = {name: column}  # Any: one type for all fields
    return replace(columns, **fields)


def outcome(call: Callable[[], Any]) -> Any:  # Any: the result of the call
    """Return the result of a call, or the type of its error."""
    try:
        return call()
    except (IndexError, TypeError, ValueError, OverflowError, StorageError) as error:
        return type(error)
