"""Encoding of records of magic 2, in pure Python.

Records are encoded column by column, mostly with ``map`` and slices, and all parts are joined once. A table contains
the varints of numbers below 4,096.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import add
from typing import Final, NamedTuple, TypeAlias, cast

from stratalog import Record, RecordColumns
from stratalog.errors import InvalidRecordError
from stratalog.spi import NO_TIMESTAMP, Headers
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES, MAX_ARENA_BYTES
from stratalog_formats.kernels.varint import SMALL, varint

NULL: Final = b"\x01"
_ATTRIBUTES: Final = b"\0"
_NO_HEADERS: Final = b"\0"
_LAST_MS: Final = (1 << 63) - 1
_ROOM: Final = bytes(BATCH_HEADER_BYTES)
_LARGEST_VARINT_BYTES: Final = 5  # size of the largest varint of 32 bits


Column: TypeAlias = Sequence[bytes] | bytes
"""One value for each record. If all records have the same value, only this value, as ``bytes``."""
Sizes: TypeAlias = Iterable[int] | int
"""Sizes (bytes) of the values. If all sizes are equal, only one number."""


class Body(NamedTuple):
    """Encoded records of one batch.

    ``buffer`` starts with 61 bytes for the header. ``seal_batch`` writes the header.
    """

    buffer: bytearray
    record_count: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_records(records: Sequence[Record]) -> Body:
    """Return the body of a batch with these records. The offset deltas are 0, 1, 2, ...

    Raises:
        InvalidRecordError: there are no records, a timestamp is invalid, UTF-8 cannot encode a header's name, or the
            records need more than 2 GiB.
    """
    if not records:
        raise no_records()
    _, stamps, _, keys, values, headers, _, _ = zip(*records, strict=True)
    encoded = None
    if any(headers):
        encoded = [_encode_headers(row, index) if row else _NO_HEADERS for index, row in enumerate(headers)]
    return _build_body(range(len(stamps)), stamps, keys, values, encoded)


def encode_columns(columns: RecordColumns, keep_offsets: bool) -> Body:  # noqa: FBT001 - as in the compiled module
    """Return the body of a batch with the records of these columns.

    With ``keep_offsets``, the offset deltas are computed from the offset column. Otherwise they are 0, 1, 2, ...

    Raises:
        InvalidRecordError: one of the reasons of ``encode_records``; or offsets do not ascend, or are more than 2^31 -
            1 above the first offset.
        IndexError: a field is not inside the arena, headers are not inside their columns, or a header's name is null.
    """
    if not columns.count:
        raise no_records()
    deltas: Sequence[int] = range(columns.count)
    if keep_offsets:
        first = columns.offset[0]
        check_offsets(columns.offset)
        deltas = [offset - first for offset in columns.offset]
    _check_places(columns)
    encoded = list(_headers(columns)) if any(columns.header_count) else None
    return _build_body(deltas, columns.timestamp_ms.tolist(), columns.keys(), columns.values(), encoded)


def _build_body(
    deltas: Sequence[int],
    stamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[bytes] | None,
) -> Body:
    """Return the body of records, from their columns.

    ``headers`` contains encoded headers; None if no record has headers.
    """
    count, base_ms, min_ms, max_ms = len(stamps), stamps[0], min(stamps), max(stamps)
    if max_ms > _LAST_MS or min_ms < NO_TIMESTAMP:
        for index, ms in enumerate(stamps):
            check_timestamp(ms, index)
    encoded_times = _varints([ms - base_ms for ms in stamps], min_ms - base_ms, max_ms - base_ms)
    encoded_deltas = _varints(deltas, 0, deltas[-1])
    key_heads, key_bytes, key_sizes = _fields(keys)
    value_heads, value_bytes, value_sizes = _fields(values)
    encoded_headers = headers or _NO_HEADERS
    sizes = (
        _sizes(encoded_times),
        _sizes(encoded_deltas),
        _sizes(key_heads),
        key_sizes,
        _sizes(value_heads),
        value_sizes,
    )
    heads, total = _heads((*sizes, _sizes(encoded_headers)), count)
    if total > MAX_ARENA_BYTES - BATCH_HEADER_BYTES - _LARGEST_VARINT_BYTES * count:
        raise too_large(count - 1)
    columns = (heads, encoded_times, encoded_deltas, key_heads, key_bytes, value_heads, value_bytes, encoded_headers)
    return Body(_interleave(columns, count), count, deltas[-1], base_ms, max_ms)


def _interleave(columns: Sequence[Column], count: int) -> bytearray:
    """Return 61 bytes for the header, followed by the values of all columns, record by record."""
    merged: list[Column] = []
    for column in columns:
        if merged and isinstance(column, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += column
        else:
            merged.append(column)
    parts = [b""] * (len(merged) * count)
    for index, column in enumerate(merged):
        parts[index :: len(merged)] = (column,) * count if isinstance(column, bytes) else column
    parts.insert(0, _ROOM)
    return bytearray().join(parts)


def _varints(numbers: Sequence[int], low: int, high: int) -> Column:
    """Return the encoded numbers. ``low`` and ``high`` are the smallest and the largest number."""
    if low == high:
        return varint(low)
    if low < 0 or high >= len(SMALL):
        return list(map(_varint, numbers))
    if isinstance(numbers, range):
        return SMALL[low : high + 1]
    return list(map(SMALL.__getitem__, numbers))


def _varint(number: int) -> bytes:
    return SMALL[number] if 0 <= number < len(SMALL) else varint(number)


def _bounds(sizes: Iterable[int]) -> tuple[int, int]:
    """Return the smallest and the largest size."""
    different = set(sizes)
    return min(different), max(different)


def _fields(items: Sequence[bytes | None]) -> tuple[Column, Column, Sizes]:
    """Return the encoded lengths of nullable fields, the fields' bytes, and the sizes of these bytes."""
    with suppress(TypeError):  # len(None) raises it; a search for nulls beforehand would double the cost
        present = cast(Sequence[bytes], items)
        sizes = list(map(len, present))
        low, high = _bounds(sizes)
        return _varints(sizes, low, high), present, low if low == high else sizes
    if items.count(None) == len(items):
        return NULL, b"", 0
    present = [item or b"" for item in items]
    sizes = [-1 if item is None else len(item) for item in items]
    return _varints(sizes, *_bounds(sizes)), present, map(len, present)


def _sizes(column: Column) -> Sizes:
    return len(column) if isinstance(column, bytes) else map(len, column)


def _heads(columns: Iterable[Sizes], count: int) -> tuple[Column, int]:
    """Return each record's first fields (length and attributes), and the size of all records without the lengths."""
    constant, varying = len(_ATTRIBUTES), list[Iterable[int]]()
    for sizes in columns:
        if isinstance(sizes, int):
            constant += sizes
        else:
            varying.append(sizes)
    if not varying:
        return varint(constant) + _ATTRIBUTES, constant * count
    sums = varying[0]
    for sizes in varying[1:]:
        sums = map(add, sums, sizes)
    varying_sizes = list(sums)
    heads = {size: _varint(constant + size) + _ATTRIBUTES for size in set(varying_sizes)}
    return list(map(heads.__getitem__, varying_sizes)), constant * count + sum(varying_sizes)


def _encode_headers(headers: Headers, index: int) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise bad_header_name(name, index) from error
        parts += (varint(len(raw)), raw)
        parts += (NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


# --- columns -----------------------------------------------------------------------------------------------------


def _headers(columns: RecordColumns) -> Iterator[bytes]:
    """Yield the encoded headers of each record. Names are copied without a check of UTF-8."""
    arena = columns.arena if isinstance(columns.arena, bytes) else bytes(columns.arena)
    for first, count in zip(columns.header_first, columns.header_count, strict=True):
        if not count:
            yield _NO_HEADERS
            continue
        parts = [varint(count)]
        for index in range(first, first + count):
            for position, size in (
                (columns.header_key_position[index], columns.header_key_size[index]),
                (columns.header_value_position[index], columns.header_value_size[index]),
            ):
                parts += (NULL,) if size < 0 else (varint(size), arena[position : position + size])
        yield b"".join(parts)


def _check_places(columns: RecordColumns) -> None:
    """Raise IndexError if a field or header is outside its arena or columns, or a header's name is null."""
    arena_bytes, total = memoryview(columns.arena).nbytes, len(columns.header_key_position)
    for positions, sizes in (
        (columns.key_position, columns.key_size),
        (columns.value_position, columns.value_size),
        (columns.header_key_position, columns.header_key_size),
        (columns.header_value_position, columns.header_value_size),
    ):
        for position, size in zip(positions, sizes, strict=True):
            if size >= 0 and (position < 0 or position + size > arena_bytes):
                raise IndexError(f"a field of {size} bytes at {position} is not inside the arena")
    for first, count in zip(columns.header_first, columns.header_count, strict=True):
        if count and (first < 0 or count < 0 or first + count > total):
            raise IndexError(f"headers [{first}, {first + count}) are not inside the {total} headers of the columns")
    if total and min(columns.header_key_size) < 0:
        raise IndexError("a header's name is null")


# --- errors ------------------------------------------------------------------------------------------------------


def check_timestamp(ms: int, index: int) -> None:
    """Raise InvalidRecordError if the timestamp of record ``index`` is below -1 or does not fit 64 bits."""
    if not NO_TIMESTAMP <= ms <= _LAST_MS:
        raise bad_timestamp(ms, index)


def check_offsets(offsets: memoryview) -> None:
    """Raise InvalidRecordError if offsets do not ascend, or are more than 2^31 - 1 above the first offset."""
    before = offsets[0] - 1
    for index, offset in enumerate(offsets):
        if not before < offset <= offsets[0] + MAX_ARENA_BYTES:
            raise bad_offset(offset, index)
        before = offset


def bad_timestamp(ms: int, index: int) -> InvalidRecordError:
    """Return the error for timestamp ``ms`` of record ``index``, which is negative or above 64 bits."""
    return _invalid_record(f"timestamp {ms} is {'negative' if ms < 0 else 'above 64 bits'}", index)


def bad_header_name(name: str, index: int) -> InvalidRecordError:
    """Return the error for a header's name in record ``index`` that UTF-8 cannot encode."""
    return _invalid_record(f"header name {name!r} is not Unicode text", index)


def bad_offset(offset: int, index: int) -> InvalidRecordError:
    """Return the error for an offset that does not ascend, or is more than 2^31 - 1 above the first offset."""
    return _invalid_record(f"offset {offset} must be above the previous one and within 32 bits of the first", index)


def too_large(index: int) -> InvalidRecordError:
    """Return the error for records that need more than 2 GiB.

    ``index`` is the record at which the limit is exceeded.
    """
    return _invalid_record("the records of a batch need more than 2 GiB", index)


def no_records() -> InvalidRecordError:
    """Return the error for a batch without records. Only compaction writes such batches."""
    return InvalidRecordError("a batch has at least one record")


def _invalid_record(text: str, index: int) -> InvalidRecordError:
    return InvalidRecordError(text, ((index, text),))
