"""Decoding of the records of batches of magic 2 to columns, in pure Python.

The loop reads one-byte and two-byte varints inline, because a call takes as long as the rest of a field. At the end of
each record, the loop compares the actual position with the expected end. Consecutive records whose fields have equal
sizes are read column by column (see ``runs``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from stratalog import RecordColumns, TimestampType
from stratalog.errors import CorruptBatchError
from stratalog.spi import BatchTable, Buffer, Fields, RecordBatch
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES, MAX_ARENA_BYTES, MIN_RECORD_BYTES
from stratalog_formats.kernels.runs import append_run
from stratalog_formats.kernels.varint import Bytes, read_varint

_LAST_MS: Final = (1 << 63) - 1
_LEAST_HEADER_BYTES: Final = 2
_LONGEST_PAUSE: Final = 256  # largest number of records between two searches for a run
_SHORT_DELTA: Final = (1 << 13) - 1  # the largest delta in two bytes


def decode_batches(data: Buffer, batches: BatchTable, bounds: memoryview | None, fields: Fields) -> RecordColumns:
    """Return the records of uncompressed batches as columns.

    Args:
        data: the arena: bytes that contain the records of all batches.
        batches: headers of the batches.
        bounds: start and end of each batch's records in ``data``, alternating, as int64. None if the records of each
            batch follow its header at ``batches.position``.
        fields: fields to fill.

    Raises:
        CorruptBatchError: the records do not fit their batch. The error contains the position of the batch.
        IndexError: bounds are not inside ``data``, or the arena is too large for positions of 32 bits.
    """
    builder = ColumnBuilder()
    raw = _bytes_of(data)
    rows = list(batches)
    places = [
        (batch.position + BATCH_HEADER_BYTES, batch.position + batch.size_bytes)
        if bounds is None
        else (bounds[2 * index], bounds[2 * index + 1])
        for index, batch in enumerate(rows)
    ]
    for batch, (start, end) in zip(rows, places, strict=True):
        if not 0 <= start <= end <= len(raw) <= MAX_ARENA_BYTES:
            raise IndexError(f"records in [{start}, {end}) are not inside an arena of {len(raw)} bytes")
        if not 0 <= batch.record_count <= (end - start) // MIN_RECORD_BYTES:
            raise CorruptBatchError(f"{batch.record_count} records do not fit {end - start} bytes", "", batch.position)
    for batch, (start, end) in zip(rows, places, strict=True):
        if batch.record_count:  # the bytes after the header of an empty batch are ignored
            _decode_batch(raw, start, end, batch, builder)
    return builder.build(raw, fields)


def _bytes_of(data: Buffer) -> Bytes:
    """Return ``data`` as bytes or a bytearray, because a view is slower to index. Copy only if necessary."""
    if isinstance(data, memoryview):
        owner = data.obj
        if isinstance(owner, bytes | bytearray) and data.c_contiguous and data.nbytes == len(owner):
            return owner
        return bytes(data)
    return data


def _decode_batch(raw: Bytes, start: int, end: int, batch: RecordBatch, builder: ColumnBuilder) -> None:
    count = batch.record_count
    try:
        stop = _decode(raw, start, end, batch, builder)
    except (IndexError, ValueError, OverflowError) as error:
        raise CorruptBatchError("the records do not fit their batch", "", batch.position) from error
    if stop != end:
        raise CorruptBatchError("the records do not fit their batch", "", batch.position)
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    builder.types.extend(array("i", (int(is_append_time),)) * count)
    builder.epochs.extend(array("i", (batch.leader_epoch,)) * count)
    if is_append_time:
        builder.timestamps.extend(array("q", (batch.max_timestamp_ms,)) * count)


def _decode(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call a field would cost more than the field
    raw: Bytes, position: int, limit: int, batch: RecordBatch, builder: ColumnBuilder
) -> int:
    base_ms, base_offset = batch.base_timestamp_ms, batch.base_offset
    has_create_time = batch.timestamp_type is not TimestampType.LOG_APPEND_TIME
    add_offset, add_time = builder.offsets.append, _time_adder(builder, base_ms)
    add_positions = builder.positions.extend
    headers, remaining, wait, pause = builder.headers, batch.record_count, 1, 1
    while remaining:
        wait -= 1
        if wait == 0:  # try to find a run; the time between attempts grows while there are no runs
            run_length, position = append_run(raw, position, limit, batch, remaining, builder)
            remaining -= run_length
            pause = 1 if run_length else min(2 * pause, _LONGEST_PAUSE)
            wait = pause
            if run_length:
                continue
        remaining -= 1
        byte = raw[position]
        if byte < 128:
            position += 1
            end = position + (byte >> 1) if not byte & 1 else -1
        else:
            second_byte = raw[position + 1]
            if second_byte < 128 and not byte & 1:
                position += 2
                end = position + ((byte & 127 | second_byte << 7) >> 1)
            else:
                length, position = read_varint(raw, position)
                end = position + length
        if not position <= end <= limit:
            raise ValueError("a record reaches past its batch")
        position += 1  # skip the attributes, which may have any value

        byte = raw[position]
        if byte < 128 and not byte & 1:
            position += 1
            ms = base_ms + (byte >> 1)
        else:
            second_byte = raw[position + 1]
            if byte > 127 and second_byte < 128 and not byte & 1:
                position += 2
                ms = base_ms + ((byte & 127 | second_byte << 7) >> 1)
            else:
                delta, position = read_varint(raw, position, 64)
                ms = _wrap_to_64_bits(base_ms + delta)
        if has_create_time:
            add_time(ms)

        byte = raw[position]
        if byte < 128 and not byte & 1:
            position += 1
            add_offset(base_offset + (byte >> 1))
        else:
            second_byte = raw[position + 1]
            if byte > 127 and second_byte < 128 and not byte & 1:
                position += 2
                add_offset(base_offset + ((byte & 127 | second_byte << 7) >> 1))
            else:
                delta, position = read_varint(raw, position)
                add_offset(base_offset + delta)

        byte = raw[position]
        if byte < 128:
            position += 1
            key_size = -1 if byte & 1 else byte >> 1
        else:
            key_size, position = read_varint(raw, position)
        key_at = position
        if key_size > 0:
            position += key_size
        elif key_size < 0:
            key_size = -1

        byte = raw[position]
        if byte < 128:
            position += 1
            value_size = -1 if byte & 1 else byte >> 1
        else:
            second_byte = raw[position + 1]
            if second_byte < 128 and not byte & 1:
                position += 2
                value_size = (byte & 127 | second_byte << 7) >> 1
            else:
                value_size, position = read_varint(raw, position)
        value_at = position
        if value_size > 0:
            position += value_size
        elif value_size < 0:
            value_size = -1

        if raw[position] == 0:
            position += 1
            add_positions((key_at, key_size, value_at, value_size, 0, 0))
        else:
            first = len(headers) // 4
            header_count, position = _decode_headers(raw, position, end, builder)
            add_positions((key_at, key_size, value_at, value_size, first if header_count else 0, header_count))
        if position != end:
            raise ValueError("a record's fields do not fit its length")
    return position


def _decode_headers(raw: Bytes, position: int, end: int, builder: ColumnBuilder) -> tuple[int, int]:
    count, position = read_varint(raw, position)
    # check first, so that a wrong count allocates no memory
    if not 0 <= count <= (end - position) // _LEAST_HEADER_BYTES:
        raise ValueError("header count")
    for _ in range(count):
        key_size, position = read_varint(raw, position)
        if key_size < 0:
            raise ValueError("a header's key is null")
        key_at = position
        position += key_size
        value_size, position = read_varint(raw, position)
        value_at = position
        position += max(value_size, 0)
        if position > end:
            raise ValueError("a header reaches past its record")
        builder.headers.extend((key_at, key_size, value_at, max(value_size, -1)))
    return count, position


def _time_adder(builder: ColumnBuilder, base_ms: int) -> Callable[[int], None]:
    """Return a function that appends a timestamp to ``builder``: the sum of ``base_ms`` and a delta of any size.

    The function wraps the timestamp to 64 bits if a delta of two bytes could overflow. For a longer delta, the caller
    has already wrapped the sum.
    """
    append = builder.timestamps.append
    if base_ms <= _LAST_MS - _SHORT_DELTA:
        return append
    return lambda ms: append(_wrap_to_64_bits(ms))


def _wrap_to_64_bits(value: int) -> int:
    """Return an integer wrapped to 64 bits. As in Kafka's addition of Java longs, an overflow is not an error."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
