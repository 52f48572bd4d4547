"""Decoding of the records of batches of magic 2 to columns, in pure Python.

Consecutive records whose fields have equal sizes are read column by column (``runs``), all others field by field. At the
end of each record, the actual position is compared with the expected end.
"""

from __future__ import annotations

from array import array
from typing import Final

from stratalog import RecordColumns, TimestampType
from stratalog.errors import CorruptBatchError
from stratalog.spi import BatchTable, Buffer, Fields, RecordBatch
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES, MAX_ARENA_BYTES, MIN_RECORD_BYTES
from stratalog_formats.kernels.runs import append_run
from stratalog_formats.kernels.varint import Bytes, read_varint

_LEAST_HEADER_BYTES: Final = 2
_LONGEST_PAUSE: Final = 256  # largest number of records between two searches for a run


def decode_batches(data: Buffer, batches: BatchTable, bounds: memoryview | None, fields: Fields) -> RecordColumns:
    """Return the records of uncompressed batches as columns.

    Args:
        data: the arena: bytes that contain the records of all batches.
        batches: headers of the batches.
        bounds: start and end of each batch's records in ``data``, int64, alternating; None if the records follow the
            headers at ``batches.position``.
        fields: fields to fill.

    Raises:
        CorruptBatchError: the records do not fit their batch; the error has the batch's position.
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
    """Return ``data`` as bytes or a bytearray, because indexing a view is slower; copy only if necessary."""
    if isinstance(data, memoryview):
        whole = data.obj
        if isinstance(whole, bytes | bytearray) and data.c_contiguous and data.nbytes == len(whole):
            return whole
        return bytes(data)
    return data


def _decode_batch(raw: Bytes, start: int, end: int, batch: RecordBatch, into: ColumnBuilder) -> None:
    count = batch.record_count
    try:
        stop = _decode(raw, start, end, batch, into)
    except (IndexError, ValueError, OverflowError) as error:
        raise CorruptBatchError("the records do not fit their batch", "", batch.position) from error
    if stop != end:
        raise CorruptBatchError("the records do not fit their batch", "", batch.position)
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    into.types.extend(array("i", (int(is_append_time),)) * count)
    into.epochs.extend(array("i", (batch.leader_epoch,)) * count)
    if is_append_time:
        into.timestamps.extend(array("q", (batch.max_timestamp_ms,)) * count)


def _decode(raw: Bytes, at: int, limit: int, batch: RecordBatch, into: ColumnBuilder) -> int:
    base_ms, base_offset = batch.base_timestamp_ms, batch.base_offset
    with_times = batch.timestamp_type is not TimestampType.LOG_APPEND_TIME
    left, wait, pause = batch.record_count, 1, 1
    while left:
        wait -= 1
        if wait == 0:  # try to find a run; the time between attempts grows while there are no runs
            done, at = append_run(raw, at, limit, batch, left, into)
            left -= done
            pause = 1 if done else min(2 * pause, _LONGEST_PAUSE)
            wait = pause
            if done:
                continue
        left -= 1
        length, at = read_varint(raw, at)
        end = at + length
        if not at <= end <= limit:
            raise ValueError("a record reaches past its batch")
        delta_ms, at = read_varint(raw, at + 1, 64)  # after the attributes: any value, ignored
        if with_times:
            into.timestamps.append(_wrapped(base_ms + delta_ms))
        delta, at = read_varint(raw, at)
        into.offsets.append(base_offset + delta)
        key_at, key_size = _field(raw, at)
        value_at, value_size = _field(raw, key_at + max(key_size, 0))
        first = len(into.headers) // 4
        header_count, at = _decode_headers(raw, value_at + max(value_size, 0), end, into)
        into.positions.extend((key_at, key_size, value_at, value_size, first if header_count else 0, header_count))
        if at != end:
            raise ValueError("a record's fields do not fit its length")
    return at


def _field(raw: Bytes, at: int) -> tuple[int, int]:
    """Return the position and the size of the nullable field whose length is at ``at``; the size of null is -1."""
    size, at = read_varint(raw, at)
    return at, max(size, -1)


def _decode_headers(raw: Bytes, at: int, end: int, into: ColumnBuilder) -> tuple[int, int]:
    count, at = read_varint(raw, at)
    if not 0 <= count <= (end - at) // _LEAST_HEADER_BYTES:  # checked first: a wrong count must not allocate memory
        raise ValueError("header count")
    for _ in range(count):
        key_size, at = read_varint(raw, at)
        if key_size < 0:
            raise ValueError("a header's key is null")
        key_at = at
        at += key_size
        value_at, value_size = _field(raw, at)
        at = value_at + max(value_size, 0)
        if at > end:
            raise ValueError("a header reaches past its record")
        into.headers.extend((key_at, key_size, value_at, value_size))
    return count, at


def _wrapped(value: int) -> int:
    """Return an integer wrapped to 64 bits: as in Kafka's addition of Java longs, an overflow is no error."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
