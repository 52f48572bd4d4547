"""Fast decoding of runs in pure Python. A run consists of consecutive records whose fields have equal encoded sizes.

Such records are common (sensors, counters, fixed schemas). In a run, a slice whose step is the size of a record selects
the same byte of each record.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Iterator
from typing import Final

from stratalog import TimestampType
from stratalog.spi import RecordBatch
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.varint import Bytes, read_varint

_LEAST: Final = 8  # minimum number of records in a run; the caller reads the records of shorter runs one by one
_MOST_VARINT_BYTES: Final = 3
_LAST: Final = 1 << 7 * _MOST_VARINT_BYTES  # no varint of 3 bytes has a larger absolute value
_ONE_BYTE_NUMBERS: Final = tuple(number >> 1 ^ -(number & 1) for number in range(128))
_LOW, _HIGH = bytes(range(128)), bytes(range(128, 256))


def append_run(
    raw: Bytes, position: int, limit: int, batch: RecordBatch, remaining: int, builder: ColumnBuilder
) -> tuple[int, int]:
    """Append the run that begins at ``position`` to ``builder``. The records of a run have equal encoded field sizes.

    Returns:
        The number of appended records, and the position after these records. The number is 0 if the run has fewer than
        8 records, if it has headers or deltas longer than 3 bytes, or if timestamps could overflow 64 bits.

    Raises:
        IndexError, ValueError: the first record is cut off or malformed.
    """
    length, body_at = read_varint(raw, position)
    size = body_at + length - position
    count = min(remaining, (limit - position) // size) if length > 0 else 0
    if count < _LEAST or raw[position + size] != raw[position]:
        return 0, position
    time_at = body_at + 1
    _, offset_at = read_varint(raw, time_at, 64)
    _, key_length_at = read_varint(raw, offset_at)
    key_size, key_at = read_varint(raw, key_length_at)
    value_length_at = key_at + max(key_size, 0)
    value_size, value_at = read_varint(raw, value_length_at)
    headers_at = value_at + max(value_size, 0)
    if raw[headers_at] or headers_at + 1 != position + size or headers_at >= limit:
        return 0, position
    for start, end in (
        (position, body_at),
        (key_length_at, key_at),
        (value_length_at, value_at),
        (headers_at, position + size),
    ):
        for byte_position in range(start, end):
            count = _count_alike(raw, byte_position, size, count, raw[byte_position : byte_position + 1])
    times, count = _read_numbers(raw, time_at, offset_at, size, count)
    deltas, count = _read_numbers(raw, offset_at, key_length_at, size, count)
    base_ms, base_offset = batch.base_timestamp_ms, batch.base_offset
    if count < _LEAST or base_ms + _LAST >= 1 << 63 or base_ms - _LAST < -(1 << 63):
        return 0, position
    builder.offsets.extend(array("q", [base_offset + delta for delta in deltas[:count]]))
    if batch.timestamp_type is not TimestampType.LOG_APPEND_TIME:
        builder.timestamps.extend(array("q", [base_ms + delta for delta in times[:count]]))
    positions = array("i", bytes(24 * count))
    positions[0::6] = array("i", range(key_at, key_at + size * count, size))
    positions[1::6] = array("i", (max(key_size, -1),)) * count
    positions[2::6] = array("i", range(value_at, value_at + size * count, size))
    positions[3::6] = array("i", (max(value_size, -1),)) * count
    builder.positions.extend(positions)
    return count, position + size * count


def _count_alike(raw: Bytes, position: int, step: int, count: int, allowed: Bytes) -> int:
    """Return the number of bytes before the first byte that is not in ``allowed``.

    The bytes are at ``position``, ``position + step`` and so on, at most ``count`` bytes.
    """
    column = raw[position : position + step * count : step]
    return len(column) - len(column.lstrip(allowed))


def _read_numbers(raw: Bytes, start: int, end: int, step: int, count: int) -> tuple[list[int], int]:
    """Decode the varints at ``start``, ``start + step``, ... Return their values, and the number of valid values.

    The values before the first varint whose size is not ``end - start`` bytes are valid. If ``end - start`` is above 3,
    no value is valid.
    """
    if end - start > _MOST_VARINT_BYTES:
        return [], 0
    for position in range(start, end - 1):
        count = _count_alike(raw, position, step, count, _HIGH)
    count = _count_alike(raw, end - 1, step, count, _LOW)
    columns: list[Bytes] = [raw[position : position + step * count : step] for position in range(start, end)]
    if len(columns) == 3:
        numbers = [low & 127 | (middle & 127) << 7 | high << 14 for low, middle, high in zip(*columns, strict=True)]
        return [number >> 1 ^ -(number & 1) for number in numbers], count
    if len(columns) == 1:
        return list(map(_ONE_BYTE_NUMBERS.__getitem__, columns[0])), count
    return list(_read_pairs(columns, count)), count


def _read_pairs(columns: list[Bytes], count: int) -> Iterator[int]:
    """Return the values of two-byte varints.

    ``columns`` contains all first bytes and all second bytes of the varints.
    """
    pairs = bytearray(2 * count)
    pairs[0::2], pairs[1::2] = columns
    return map(_two_byte_numbers().__getitem__, memoryview(pairs).cast("H"))


@functools.cache
def _two_byte_numbers() -> list[int]:
    """Return the value of each two-byte varint, indexed by its bytes as a native integer; 0 for other bytes."""
    numbers = [0] * (1 << 16)
    for low in range(128):
        for high in range(128):
            number = low | high << 7
            numbers[int.from_bytes((low | 128, high), sys.byteorder)] = number >> 1 ^ -(number & 1)
    return numbers
