"""Messages of magic 0 and 1: one entry a record, or a wrapper whose value is a compressed set of entries.

Source: apache/kafka LegacyRecord, AbstractLegacyRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar
from zlib import crc32

from stratalog.spi import (
    CODEC_MASK,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    BatchTable,
    Buffer,
    Codec,
    CodecTable,
    CorruptBatchError,
    Fields,
    InvalidRecordError,
    Record,
    RecordBatch,
    RecordColumns,
    RecordFormat,
    ScanStop,
    TimestampType,
    UnsupportedCompressionError,
)
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.encode import check_timestamp
from stratalog_formats.kernels.layout import (
    FRAME_BYTES,
    INT32,
    INT64,
    MESSAGE_CHECKED_FROM,
    MESSAGE_CRC_POSITION,
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    MIN_ENTRY_SIZE,
    OVERHEAD_BYTES,
)
from stratalog_formats.records.batches import decompressed

KEY_POSITIONS = {0: MESSAGE_HEADER_BYTES, 1: MESSAGE_HEADER_BYTES + 8}  # of the key's length, by magic
ZSTD_ID = 4  # came with magic 2 and is refused below
MAX_RATIO = 1 << 11  # above what any codec of these magics reaches; the bytes were made or checked here before


class MessageFormat(RecordFormat):
    """What magic 0 and 1 share. ``key_position`` is where the key's length stands in an entry.

    Args:
        codecs: looked up when a wrapper is decoded.
    """

    key_position: ClassVar[int]

    def __init__(self, codecs: CodecTable) -> None:
        self._codecs = codecs

    # --- what differs ------------------------------------------------------------------------------------------------

    def timestamp_ms(self, view: memoryview, at: int) -> int:
        """The timestamp of the entry at ``at``."""
        raise NotImplementedError

    def inner_offset(self, wrapper: RecordBatch, field: int, last_field: int) -> int:
        """The absolute offset of a message in a wrapper, from its own field and that of the last one."""
        raise NotImplementedError

    # --- reading -----------------------------------------------------------------------------------------------------

    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """The whole entries in [start, end)."""
        view, rows, at = memoryview(data), list[tuple[int, ...]](), start
        stop, reason = ScanStop.END, ""
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
            if stop is not ScanStop.END:
                break
            offset, _, crc, _, attributes = MESSAGE_HEADER.unpack_from(view, at)
            if check_crc and crc32(view[at + MESSAGE_CHECKED_FROM : at + total]) != crc:
                stop, reason = ScanStop.CORRUPT, "the CRC does not match"
                break
            stamp = self.timestamp_ms(view, at)
            count = -1 if attributes & CODEC_MASK else 1
            producer = (NO_EPOCH, NO_PRODUCER, -1, -1)
            rows.append((at, total, offset, offset, stamp, stamp, *producer, count, attributes & 0xFF, crc))
            at += total
        return BatchTable.from_rows(self.magic, rows, stop, at, reason)

    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """Runs of plain messages share an arena, each wrapper has its own."""
        run, raw = ColumnBuilder(), b""
        rows = zip(batches.position, batches.size_bytes, batches.last_offset, batches.attributes, strict=True)
        for index, (position, size, offset, attributes) in enumerate(rows):
            if not attributes & CODEC_MASK:
                raw = raw or (data if isinstance(data, bytes) else bytes(data))
                kind = 1 if attributes & TIMESTAMP_TYPE_BIT else 0
                self._add(run, raw, position, position + size, offset, position, kind, None)
                continue
            if len(run.offsets):
                yield run.build(raw, fields)
                run = ColumnBuilder()
            yield self._decode_wrapper(data, batches[index], fields, limit_bytes)
        if len(run.offsets):
            yield run.build(raw, fields)

    def _add(
        self,
        into: ColumnBuilder,
        raw: bytes,
        at: int,
        end: int,
        offset: int,
        entry: int,
        kind: int,
        append_ms: int | None,
    ) -> None:
        """Append the message at ``at``; bytes after its value are ignored, as Kafka does.

        A message in a wrapper may be of the other magic: it is read as what it says it is. ``entry`` is the position
        of the message or its wrapper, ``kind`` the timestamp type of that, ``append_ms`` what a wrapper says of time.
        """
        magic = raw[at + FRAME_BYTES - 1]
        if magic not in KEY_POSITIONS:
            raise CorruptBatchError(f"a message of magic {magic} inside one of {self.magic}", "", entry)
        key_at, key_size = _field(raw, at + KEY_POSITIONS[magic], end, entry)
        value_at, value_size = _field(raw, key_at + max(key_size, 0), end, entry)
        if magic == 0:
            kind, stamp = TimestampType.NONE, NO_TIMESTAMP
        elif append_ms is None:
            stamp = INT64.unpack_from(raw, at + MESSAGE_HEADER_BYTES)[0]
        else:
            stamp = append_ms
        into.offsets.append(offset)
        into.timestamps.append(stamp)
        into.types.append(kind)
        into.epochs.append(NO_EPOCH)
        into.positions.extend((key_at, key_size, value_at, value_size, 0, 0))

    def _decode_wrapper(self, data: Buffer, wrapper: RecordBatch, fields: Fields, limit_bytes: int) -> RecordColumns:
        if wrapper.codec_id == ZSTD_ID:
            raise CorruptBatchError(f"zstd does not exist in magic {self.magic}", "", wrapper.position)
        end = wrapper.position + wrapper.size_bytes
        view = bytes(memoryview(data)[wrapper.position : end])
        key_at, key_size = _field(view, self.key_position, len(view), wrapper.position)
        value_at, value_size = _field(view, key_at + max(key_size, 0), len(view), wrapper.position)
        if value_size < 0:
            raise CorruptBatchError("a compressed message has no value", "", wrapper.position)
        packed = memoryview(view)[value_at : value_at + value_size]
        arena = bytes(decompressed(self._codecs, wrapper, packed, limit_bytes))
        places = list(self._inner(arena, wrapper))
        if not places:
            raise CorruptBatchError("a compressed message holds no messages", "", wrapper.position)
        builder, last_field, kind = ColumnBuilder(), places[-1][2], wrapper.timestamp_type
        append_ms = wrapper.max_timestamp_ms if kind is TimestampType.LOG_APPEND_TIME else None
        try:
            for at, stop, field in places:
                offset = self.inner_offset(wrapper, field, last_field)
                self._add(builder, arena, at, stop, offset, wrapper.position, kind, append_ms)
        except OverflowError as error:
            raise CorruptBatchError("an inner offset does not fit 64 bits", "", wrapper.position) from error
        return builder.build(arena, fields)

    def _inner(self, arena: bytes, wrapper: RecordBatch) -> Iterator[tuple[int, int, int]]:
        """Start, end and offset field of each message in a decompressed set; a cut one at the end is left out."""
        at = 0
        while len(arena) - at >= OVERHEAD_BYTES:
            field, size = INT64.unpack_from(arena, at)[0], INT32.unpack_from(arena, at + 8)[0]
            stop = at + OVERHEAD_BYTES + size
            if size < MIN_ENTRY_SIZE:
                raise CorruptBatchError(f"an inner message of size {size} is too small", "", wrapper.position)
            if stop > len(arena):
                return
            if arena[at + FRAME_BYTES] & CODEC_MASK:
                raise CorruptBatchError("a compressed message inside another", "", wrapper.position)
            yield at, stop, field
            at = stop

    # --- writing -----------------------------------------------------------------------------------------------------

    def encode(
        self, records: Sequence[Record], header: BatchHeader, codec: Codec | None, level: int | None
    ) -> bytearray:
        """One entry a record, or one wrapper around all."""
        if not records:
            raise InvalidRecordError("a batch has at least one record")
        if codec is not None and codec.id == ZSTD_ID:
            raise UnsupportedCompressionError(f"zstd does not exist in magic {self.magic}")
        for index, record in enumerate(records):
            if record.headers:
                raise InvalidRecordError(f"magic {self.magic} has no headers", ((index, "headers"),))
            check_timestamp(record.timestamp_ms, index)
        if header.transactional or header.control or header.producer_id != NO_PRODUCER:
            raise InvalidRecordError(f"magic {self.magic} has no producers and no transactions")
        is_append_time = self.magic and header.timestamp_type is TimestampType.LOG_APPEND_TIME
        attributes = TIMESTAMP_TYPE_BIT if is_append_time else 0
        out = bytearray()
        for index, record in enumerate(records):
            stamp = header.append_time_ms if is_append_time else record.timestamp_ms
            offset = index if codec is not None and self.magic else header.base_offset + index
            out += self._message(offset, attributes, stamp, record.key, record.value)
        if codec is None:
            return out
        stamp = header.append_time_ms if is_append_time else max(record.timestamp_ms for record in records)
        packed = codec.compress(out, level=level, magic=self.magic)
        last = header.base_offset + len(records) - 1
        return self._message(last, attributes | codec.id, stamp, None, packed)

    def _message(self, offset: int, attributes: int, stamp: int, key: bytes | None, value: bytes | None) -> bytearray:
        out = bytearray(MESSAGE_HEADER_BYTES)
        if self.magic:
            out += INT64.pack(stamp)
        for field in (key, value):
            out += INT32.pack(-1 if field is None else len(field)) + (field or b"")
        MESSAGE_HEADER.pack_into(out, 0, offset, len(out) - OVERHEAD_BYTES, 0, self.magic, attributes)
        _seal(out, 0, len(out))
        return out

    def assign(
        self, data: bytearray, batches: BatchTable, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> BatchTable:
        """Give entries consecutive offsets; a wrapper takes as many as it has messages, and its own is the last one."""
        del leader_epoch
        start = end = batches.position[0] if len(batches) else 0
        for batch in batches:
            end = batch.position + batch.size_bytes
            span = self._span(data, batch)
            INT64.pack_into(data, batch.position, base_offset + span - 1)
            if append_time_ms is not None and self.magic:
                data[batch.position + FRAME_BYTES] |= TIMESTAMP_TYPE_BIT
                INT64.pack_into(data, batch.position + MESSAGE_HEADER_BYTES, append_time_ms)
                _seal(data, batch.position, end)
            base_offset += span
        return self.scan(data, start, end, check_crc=False)

    def _span(self, data: bytearray, batch: RecordBatch) -> int:
        """How many offsets an entry takes: those of a wrapper are counted in its contents."""
        if not batch.codec_id:
            return 1
        columns = self._decode_wrapper(data, batch, Fields.OFFSET, len(data) * MAX_RATIO)
        return columns.count


class MessageFormatV0(MessageFormat):
    """Magic 0: no timestamps; inner offsets are absolute."""

    magic: ClassVar[int] = 0
    key_position: ClassVar[int] = KEY_POSITIONS[0]

    def timestamp_ms(self, view: memoryview, at: int) -> int:
        """None."""
        del view, at
        return NO_TIMESTAMP

    def inner_offset(self, wrapper: RecordBatch, field: int, last_field: int) -> int:
        """Its own field."""
        del wrapper, last_field
        return field

    def assign(
        self, data: bytearray, batches: BatchTable, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> BatchTable:
        """As for magic 1, but wrappers are encoded again: the offsets inside them are absolute."""
        if not any(batch.codec_id for batch in batches):
            return super().assign(data, batches, base_offset, leader_epoch, append_time_ms)
        start, end, moved = batches.position[0], batches.position[0], bytearray()
        for batch in batches:
            end = batch.position + batch.size_bytes
            one = self.scan(data, batch.position, end, check_crc=False)
            records = [
                record
                for columns in self.decode(data, one, limit_bytes=len(data) * MAX_RATIO)
                for record in columns.to_records()
            ]
            codec = self._codecs.by_id(batch.codec_id) if batch.codec_id else None
            moved += self.encode(records, BatchHeader(base_offset=base_offset), codec, None)
            base_offset += len(records)
        data[start:end] = moved
        return self.scan(data, start, start + len(moved), check_crc=False)


class MessageFormatV1(MessageFormat):
    """Magic 1: timestamps; inner offsets are relative, the wrapper has the offset of the last one."""

    magic: ClassVar[int] = 1
    key_position: ClassVar[int] = KEY_POSITIONS[1]

    def timestamp_ms(self, view: memoryview, at: int) -> int:
        """Behind the attributes."""
        return int(INT64.unpack_from(view, at + MESSAGE_HEADER_BYTES)[0])

    def inner_offset(self, wrapper: RecordBatch, field: int, last_field: int) -> int:
        """Relative to the last one; a wrapper at offset 0 counts from 0, as old librdkafka wrote them."""
        if wrapper.last_offset == 0:
            return field
        if wrapper.last_offset < last_field:
            raise CorruptBatchError("a wrapper's offset is below its last inner one", "", wrapper.position)
        return wrapper.last_offset - last_field + field


def _field(raw: bytes, at: int, end: int, entry: int) -> tuple[int, int]:
    """Position and size of the bytes behind the length at ``at``; -1 for any negative length."""
    if at + 4 > end:
        raise CorruptBatchError("a message ends inside its fields", "", entry)
    size = INT32.unpack_from(raw, at)[0]
    if size > end - at - 4:
        raise CorruptBatchError(f"a field of {size} bytes reaches past its message", "", entry)
    return at + 4, max(size, -1)


def _seal(out: bytearray, start: int, end: int) -> None:
    with memoryview(out) as view:
        crc = crc32(view[start + MESSAGE_CHECKED_FROM : end])
    out[start + MESSAGE_CRC_POSITION : start + MESSAGE_CHECKED_FROM] = crc.to_bytes(4, "big")
