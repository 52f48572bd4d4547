"""Record batches, magic 2.

Source: apache/kafka DefaultRecordBatch, DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from crc32c import crc32c

from stratalog.spi import (
    CODEC_MASK,
    CONTROL_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchTable,
    Buffer,
    Codec,
    CodecTable,
    CorruptBatchError,
    Fields,
    Record,
    RecordBatch,
    RecordColumns,
    RecordFormat,
    ScanStop,
    TimestampType,
    UnsupportedCompressionError,
)
from stratalog_formats.records.columns import ColumnBuilder
from stratalog_formats.records.decode import decode_records
from stratalog_formats.records.encode import encode_records
from stratalog_formats.records.layout import (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    FRAME_BYTES,
    INT32,
    INT64,
    MIN_ENTRY_SIZE,
    OVERHEAD_BYTES,
)

_LOW_BYTE = 0xFF  # readers look at this byte of the attributes alone
_LEADER_EPOCH_POSITION, _ATTRIBUTES_POSITION, _MAX_TIMESTAMP_POSITION = 12, 21, 35


class BatchFormat(RecordFormat):
    """Batches with one header, one CRC-32C and optionally one compressed stream of records.

    Args:
        codecs: looked up when a compressed batch is decoded.
    """

    magic: ClassVar[int] = 2

    def __init__(self, codecs: CodecTable) -> None:
        self._codecs = codecs

    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """The whole batches in [start, end)."""
        view, rows, at = memoryview(data), list[tuple[int, ...]](), start
        stop, reason = ScanStop.END, ""
        unpack, add = BATCH_HEADER.unpack_from, rows.append
        while at < end:
            if end - at < FRAME_BYTES:
                stop = ScanStop.PARTIAL
                break
            size = INT32.unpack_from(view, at + 8)[0]
            total = size + OVERHEAD_BYTES
            if size < MIN_ENTRY_SIZE:
                stop, reason = ScanStop.CORRUPT, f"an entry of size {size} is too small"
            elif view[at + FRAME_BYTES - 1] != self.magic:
                stop = ScanStop.OTHER_MAGIC
            elif at + total > end:
                stop = ScanStop.PARTIAL
            elif total < BATCH_HEADER_BYTES:
                stop, reason = ScanStop.CORRUPT, f"a batch of {total} bytes is shorter than its header"
            if stop is not ScanStop.END:
                break
            base, _, epoch, _, crc, attributes, delta, base_ms, max_ms, pid, pepoch, sequence, count = unpack(view, at)
            if check_crc and crc32c(view[at + BATCH_CHECKED_FROM : at + total]) != crc:
                stop, reason = ScanStop.CORRUPT, "the CRC does not match"
                break
            last = base + delta
            if not -(1 << 63) <= last < 1 << 63:
                stop, reason = ScanStop.CORRUPT, f"offset {base} + {delta} overflows"
                break
            add(
                (
                    at,
                    total,
                    base,
                    last,
                    base_ms,
                    max_ms,
                    epoch,
                    pid,
                    pepoch,
                    sequence,
                    count,
                    attributes & _LOW_BYTE,
                    crc,
                )
            )
            at += total
        return BatchTable.from_rows(self.magic, rows, stop, at, reason)

    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """Runs of uncompressed batches share an arena, each compressed one has its own."""
        run, raw = ColumnBuilder(), b""
        for batch in batches:
            start, end = batch.position + BATCH_HEADER_BYTES, batch.position + batch.size_bytes
            if batch.codec_id:
                if len(run.offsets):
                    yield run.build(raw, fields)
                    run = ColumnBuilder()
                yield self._decode_compressed(data, batch, start, end, fields, limit_bytes)
                continue
            raw = raw or (data if isinstance(data, bytes) else bytes(data))
            decode_records(raw, start, end, batch, run)
        if len(run.offsets):
            yield run.build(raw, fields)

    def _decode_compressed(
        self, data: Buffer, batch: RecordBatch, start: int, end: int, fields: Fields, limit_bytes: int
    ) -> RecordColumns:
        builder, arena = ColumnBuilder(), b""
        if batch.record_count:
            packed = memoryview(data)[start:end]
            arena = bytes(decompressed(self._codecs, batch, packed, limit_bytes))
            decode_records(arena, 0, len(arena), batch, builder)
        return builder.build(arena, fields)

    def encode(
        self, records: Sequence[Record], header: BatchHeader, codec: Codec | None, level: int | None
    ) -> bytearray:
        """One batch."""
        body = encode_records(records)
        buffer, attributes = body.buffer, 0
        if codec is not None:
            packed = codec.compress(memoryview(buffer)[BATCH_HEADER_BYTES:], level=level, magic=self.magic)
            buffer = bytearray(BATCH_HEADER_BYTES) + packed
            attributes |= codec.id
        max_ms = body.max_timestamp_ms
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_BIT
            max_ms = header.append_time_ms
        attributes |= TRANSACTIONAL_BIT if header.transactional else 0
        attributes |= CONTROL_BIT if header.control else 0
        BATCH_HEADER.pack_into(
            buffer,
            0,
            header.base_offset,
            len(buffer) - OVERHEAD_BYTES,
            header.leader_epoch,
            self.magic,
            0,
            attributes,
            len(records) - 1,
            body.base_timestamp_ms,
            max_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            len(records),
        )
        _seal(buffer, 0, len(buffer))
        return buffer

    def assign(
        self, data: bytearray, batches: BatchTable, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> BatchTable:
        """Patch base offset and leader epoch, which no CRC covers; LogAppendTime also attributes and maximum."""
        start = batches.position[0] if len(batches) else 0
        end = start
        for batch in batches:
            at, end = batch.position, batch.position + batch.size_bytes
            INT64.pack_into(data, at, base_offset)
            INT32.pack_into(data, at + _LEADER_EPOCH_POSITION, leader_epoch)
            if append_time_ms is not None:
                flags = (batch.attributes | TIMESTAMP_TYPE_BIT).to_bytes(2, "big")
                data[at + _ATTRIBUTES_POSITION : at + _ATTRIBUTES_POSITION + 2] = flags
                INT64.pack_into(data, at + _MAX_TIMESTAMP_POSITION, append_time_ms)
                _seal(data, at, end)
            base_offset += batch.last_offset - batch.base_offset + 1
        return self.scan(data, start, end, check_crc=False)


def decompressed(codecs: CodecTable, batch: RecordBatch, packed: memoryview, limit_bytes: int) -> memoryview:
    """A batch's records section, decompressed; errors carry the batch's position."""
    try:
        codec = codecs.by_id(batch.attributes & CODEC_MASK)
    except UnsupportedCompressionError as error:
        raise UnsupportedCompressionError(f"{error.reason} position={batch.position}") from error
    try:
        return codec.decompress(packed, limit_bytes=limit_bytes, magic=batch.magic)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, "", batch.position) from error


def _seal(buffer: bytearray, start: int, end: int) -> None:
    with memoryview(buffer) as view:
        crc = crc32c(view[start + BATCH_CHECKED_FROM : end])
    buffer[start + BATCH_CRC_POSITION : start + BATCH_CHECKED_FROM] = crc.to_bytes(4, "big")
