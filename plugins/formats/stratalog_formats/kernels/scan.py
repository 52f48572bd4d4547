"""Scan of batches and messages to a table of their headers, in pure Python. Records are read only for CRC checks.

Source: apache/kafka DefaultRecordBatch, LegacyRecord, ByteBufferLogInputStream.
"""

from __future__ import annotations

from zlib import crc32

from crc32c import crc32c

from stratalog.spi import (
    CODEC_MASK,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchTable,
    Buffer,
    PreparedBatches,
    ScanStop,
)
from stratalog_formats.kernels.layout import (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    FRAME_BYTES,
    INT32,
    INT64,
    MESSAGE_CHECKED_FROM,
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    MIN_ENTRY_SIZE,
    OVERHEAD_BYTES,
)

_LOW_BYTE = 0xFF  # readers use only this byte of the attributes
_LEADER_EPOCH_POSITION, _ATTRIBUTES_POSITION, _MAX_TIMESTAMP_POSITION = 12, 21, 35


def scan_batches(data: Buffer, start: int, end: int, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as in the compiled module
    """Return the batches in [start, end) before the first bytes that are not a complete, valid batch of magic 2.

    ``RecordFormat.scan`` documents the result.
    """
    view, rows, position = memoryview(data), list[tuple[int, ...]](), start
    _check_range(view, start, end)
    stop, reason = ScanStop.END, ""
    unpack, add = BATCH_HEADER.unpack_from, rows.append
    while position < end:
        stop, reason, total = _read_frame(view, position, end, 2)
        if stop is not ScanStop.END:
            break
        if total < BATCH_HEADER_BYTES:
            stop, reason = ScanStop.CORRUPT, f"a batch of {total} bytes is shorter than its header"
            break
        fields = unpack(view, position)
        base, _, epoch, _, crc, attributes, delta, base_ms, max_ms, pid, pepoch, sequence, count = fields
        if check_crc and crc32c(view[position + BATCH_CHECKED_FROM : position + total]) != crc:
            stop, reason = ScanStop.CORRUPT, "the CRC does not match"
            break
        last = base + delta
        if not -(1 << 63) <= last < 1 << 63:
            stop, reason = ScanStop.CORRUPT, f"offset {base} + {delta} overflows"
            break
        flags = attributes & _LOW_BYTE
        add((position, total, base, last, base_ms, max_ms, epoch, pid, pepoch, sequence, count, flags, crc))
        position += total
    return BatchTable.from_rows(2, rows, stop, position, reason)


def scan_messages(magic: int, data: Buffer, start: int, end: int, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as in the compiled module
    """Return the messages in [start, end) before the first bytes that are not a complete, valid message of ``magic``.

    ``RecordFormat.scan`` documents the result.
    """
    view, rows, position = memoryview(data), list[tuple[int, ...]](), start
    _check_range(view, start, end)
    stop, reason, stamp = ScanStop.END, "", NO_TIMESTAMP
    while position < end:
        stop, reason, total = _read_frame(view, position, end, magic)
        if stop is not ScanStop.END:
            break
        offset, _, crc, _, attributes = MESSAGE_HEADER.unpack_from(view, position)
        if check_crc and crc32(view[position + MESSAGE_CHECKED_FROM : position + total]) != crc:
            stop, reason = ScanStop.CORRUPT, "the CRC does not match"
            break
        if magic:
            stamp = INT64.unpack_from(view, position + MESSAGE_HEADER_BYTES)[0]
        count = -1 if attributes & CODEC_MASK else 1
        producer = (NO_EPOCH, NO_PRODUCER, -1, -1)
        rows.append((position, total, offset, offset, stamp, stamp, *producer, count, attributes & _LOW_BYTE, crc))
        position += total
    return BatchTable.from_rows(magic, rows, stop, position, reason)


def _read_frame(view: memoryview, position: int, end: int, magic: int) -> tuple[ScanStop, str, int]:
    """Return (END, "", size in bytes) if ``position`` is the start of a complete message or batch of ``magic``.

    Otherwise return the reason to stop, a description of the damage ("" if there is no damage), and 0.
    """
    if end - position < FRAME_BYTES:
        return ScanStop.PARTIAL, "", 0
    size = INT32.unpack_from(view, position + 8)[0]
    if size < MIN_ENTRY_SIZE:
        return ScanStop.CORRUPT, f"an entry of size {size} is too small", 0
    if view[position + FRAME_BYTES - 1] != magic:
        return ScanStop.OTHER_MAGIC, "", 0
    if size + OVERHEAD_BYTES > end - position:
        return ScanStop.PARTIAL, "", 0
    return ScanStop.END, "", size + OVERHEAD_BYTES


def _check_range(view: memoryview, start: int, end: int) -> None:
    if start < 0 or end > view.nbytes:
        raise IndexError(f"[{start}, {end}) is not inside a buffer of {view.nbytes} bytes")


def assign_batches(batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
    """Set the offsets and the leader epoch of batches, in ``batches.data`` and in ``batches.table``.

    If ``append_time_ms`` is not None, each batch gets LogAppendTime and this largest timestamp. Otherwise, each batch
    gets the attributes and the largest timestamp of its row in ``batches.table``. The CRC of a batch is computed again
    only if attributes or largest timestamp change.

    Raises:
        IndexError: a batch is not inside its data.
    """
    data, table = batches.data, batches.table
    for position, size in zip(table.position, table.size_bytes, strict=True):
        if position < 0 or not BATCH_HEADER_BYTES <= size <= len(data) - position:
            raise IndexError(f"a batch of {size} bytes at {position} is not inside a buffer of {len(data)} bytes")
    for batch in table:
        position = batch.position
        INT64.pack_into(data, position, base_offset)
        INT32.pack_into(data, position + _LEADER_EPOCH_POSITION, leader_epoch)
        attributes, stamp = batch.attributes & _LOW_BYTE, batch.max_timestamp_ms
        if append_time_ms is not None:
            attributes, stamp = attributes | TIMESTAMP_TYPE_BIT, append_time_ms
        is_stamped = INT64.unpack_from(data, position + _MAX_TIMESTAMP_POSITION)[0] == stamp
        if data[position + _ATTRIBUTES_POSITION + 1] != attributes or not is_stamped:
            data[position + _ATTRIBUTES_POSITION : position + _ATTRIBUTES_POSITION + 2] = attributes.to_bytes(2, "big")
            INT64.pack_into(data, position + _MAX_TIMESTAMP_POSITION, stamp)
            put_crc(data, position, position + batch.size_bytes)
        base_offset += batch.last_offset - batch.base_offset + 1
    end = table.position[-1] + table.size_bytes[-1]
    batches.replace_table(scan_batches(data, table.position[0], end, False))


def seal_batch(
    buffer: bytearray,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the header, with the CRC, into the first 61 bytes of ``buffer``. The records must follow these bytes."""
    BATCH_HEADER.pack_into(
        buffer,
        0,
        base_offset,
        len(buffer) - OVERHEAD_BYTES,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    put_crc(buffer, 0, len(buffer))


def put_crc(buffer: bytearray, start: int, end: int) -> None:
    """Compute the CRC of the batch in [start, end) of ``buffer``, and write it into the header of the batch."""
    with memoryview(buffer) as view:
        crc = crc32c(view[start + BATCH_CHECKED_FROM : end])
    buffer[start + BATCH_CRC_POSITION : start + BATCH_CHECKED_FROM] = crc.to_bytes(4, "big")
