"""Base class of the formats of magic 0 and 1. A wrapper is a message whose value is a compressed set of messages.

Source: apache/kafka LegacyRecord, AbstractLegacyRecordBatch, MemoryRecordsBuilder.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from struct import Struct
from typing import Final
from zlib import crc32

from stratalog import Record, RecordColumns, TimestampType
from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    UnsupportedCompressionError,
    UnsupportedForMessageFormatError,
)
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
    Fields,
    PreparedBatches,
    RecordBatch,
    RecordFormat,
    Verdict,
)
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.dispatch import KERNELS, Kernels
from stratalog_formats.kernels.encode import check_offsets, check_timestamp, no_records
from stratalog_formats.kernels.layout import (
    FRAME_BYTES,
    INT32,
    INT64,
    MAX_ARENA_BYTES,
    MESSAGE_CHECKED_FROM,
    MESSAGE_CRC_POSITION,
    MESSAGE_HEADER_BYTES,
)
from stratalog_formats.kernels.retain import check_lengths, wrong_count
from stratalog_formats.records.batches import arena_runs, decompress_records
from stratalog_formats.records.message_set import add_fields, offset_distance, read_messages

ZSTD_ID: Final = 4  # Kafka supports zstd only for magic 2
LIMIT_BYTES: Final = 1 << 28
_LAST_MS: Final = (1 << 63) - 1
_FRAME: Final = Struct(">qiI")  # offset, size, CRC
_CRC_BYTES: Final = 4
_ATTRIBUTES_POSITION: Final = FRAME_BYTES
_KEPT: Final = bytes(word != Verdict.DROP for word in range(256))  # 1 for each verdict that keeps the record


class MessageFormat(RecordFormat):
    """Base class of the formats of magic 0 and 1. An entry is either a message with one record, or a wrapper.

    A wrapper is a message whose value is a compressed set of messages. ``limit_bytes`` is the limit of the decompressed size
    of a wrapper in ``assign``.
    """

    def __init__(self, codecs: CodecTable, limit_bytes: int = LIMIT_BYTES, kernels: Kernels = KERNELS) -> None:
        self._codecs, self._kernels, self._limit_bytes = codecs, kernels, limit_bytes

    # --- what differs ------------------------------------------------------------------------------------------------

    def _encode_heads(self, attributes: int, stamps: Iterable[int], key_sizes: Iterable[int]) -> Iterable[bytes]:
        """Return the bytes between CRC and key of each message: magic, attributes, timestamp (in magic 1), key size."""
        raise NotImplementedError

    def _shift(self, wrapper: RecordBatch, last_field: int) -> int:
        """Return the number to add to the offset field of each message in a wrapper, to get the message's offset.

        ``last_field`` is the offset field of the last message in the wrapper.

        Raises:
            CorruptBatchError: ``last_field`` contradicts the offset of the wrapper.
        """
        raise NotImplementedError

    # --- reading -----------------------------------------------------------------------------------------------------

    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """Return the entries in [start, end) before the first bytes that are not a valid, complete entry."""
        return self._kernels.scan_messages(self.magic, data, start, end, check_crc)

    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """Yield the records as columns. Each result has an arena: the bytes to which positions in its columns refer.

        The arena of consecutive uncompressed messages is ``data`` or a view of ``data``. The arena of a wrapper is the
        wrapper's decompressed message set.
        """
        for start, end in arena_runs(batches, joins_compressed=False):
            run = batches.take(start, end)
            if run.attributes[0] & CODEC_MASK:
                yield self._decode_wrapper(data, run[0], fields, limit_bytes)
            else:
                yield self._decode_plain(data, run, fields)

    def _decode_plain(self, data: Buffer, run: BatchTable, fields: Fields) -> RecordColumns:
        first, end = run.position[0], run.position[-1] + run.size_bytes[-1]
        if end > MAX_ARENA_BYTES:
            data = memoryview(data)[first:end]
            run = self.scan(data, 0, end - first, check_crc=False)
        else:
            first = 0
        builder = ColumnBuilder()
        try:
            add_fields(builder, data, run)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, "", error.position + first) from error
        builder.offsets.frombytes(run.last_offset.cast("B"))
        builder.timestamps.frombytes(run.max_timestamp_ms.cast("B"))
        builder.types.extend([self._kind(attributes) for attributes in run.attributes])
        builder.epochs = array("i", (NO_EPOCH,)) * len(run)
        return builder.build(data, fields)

    def _kind(self, attributes: int) -> int:
        """Return the timestamp type in the attributes of an uncompressed message or of a wrapper."""
        if not self.magic:
            return TimestampType.NONE
        return TimestampType.LOG_APPEND_TIME if attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    def _decode_wrapper(self, data: Buffer, wrapper: RecordBatch, fields: Fields, limit_bytes: int) -> RecordColumns:
        """Return the messages of one wrapper. Each message is decoded in the format of its own magic, 0 or 1."""
        arena = self._decompress_wrapper(data, wrapper, limit_bytes)
        tables = read_messages(self._kernels, arena, self.magic, wrapper.position)
        builder = ColumnBuilder()
        for table in tables:
            add_fields(builder, arena, table, wrapper.position)
        shift = self._shift(wrapper, tables[-1].last_offset[-1])
        try:
            builder.offsets.extend([field + shift for table in tables for field in table.last_offset])
        except OverflowError as error:
            raise CorruptBatchError("an inner offset does not fit 64 bits", "", wrapper.position) from error
        kind = self._kind(wrapper.attributes)
        for table in tables:
            of_wrapper = table.magic and kind == TimestampType.LOG_APPEND_TIME
            builder.timestamps.extend([wrapper.max_timestamp_ms] * len(table) if of_wrapper else table.max_timestamp_ms)
            builder.types.extend([kind if table.magic else TimestampType.NONE] * len(table))
        builder.epochs = array("i", (NO_EPOCH,)) * len(builder.offsets)
        return builder.build(arena, fields)

    def _decompress_wrapper(self, data: Buffer, wrapper: RecordBatch, limit_bytes: int) -> memoryview:
        """Return the decompressed message set of a wrapper.

        Raise CorruptBatchError if it has no value or uses zstd. Raises the errors of ``decompress_records``, too.
        """
        if wrapper.codec_id == ZSTD_ID:
            raise CorruptBatchError(f"magic {self.magic} does not support zstd", "", wrapper.position)
        view = memoryview(data)[wrapper.position : wrapper.position + wrapper.size_bytes]
        builder, table = ColumnBuilder(), self.scan(view, 0, len(view), check_crc=False)
        if len(table) != 1:
            raise CorruptBatchError("the bytes changed while they were read", "", wrapper.position)
        add_fields(builder, view, table, wrapper.position)
        start, size = builder.positions[2:4]
        if size < 0:
            raise CorruptBatchError("a compressed message has no value", "", wrapper.position)
        return decompress_records(self._codecs, wrapper, view[start : start + size], limit_bytes)

    # --- writing -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        records: Sequence[Record] | RecordColumns,
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
        *,
        keep_offsets: bool = False,
    ) -> bytearray:
        """Return one message for each record. With a codec, return one wrapper with these messages.

        With ``keep_offsets``, gaps between the offsets of columns do not change. Otherwise, offsets ascend by one.

        Raises:
            InvalidRecordError: there are no records, a record has headers, or a timestamp or an offset is invalid.
            UnsupportedCompressionError: the codec is zstd.
            UnsupportedForMessageFormatError: ``header`` has a producer id, or is for a transaction or control batch.
        """
        if isinstance(records, RecordColumns):
            return self._encode_columns(records, header, codec, level, keep_offsets=keep_offsets)
        for index, record in enumerate(records):
            if record.headers:
                raise self._headers_error(index)
        offsets = range(header.base_offset, header.base_offset + len(records))
        stamps = [record.timestamp_ms for record in records]
        keys, values = [record.key for record in records], [record.value for record in records]
        return self._encode_messages(offsets, stamps, keys, values, header, codec, level)

    def _encode_columns(
        self, columns: RecordColumns, header: BatchHeader, codec: Codec | None, level: int | None, *, keep_offsets: bool
    ) -> bytearray:
        for index, count in enumerate(columns.header_count):
            if count:
                raise self._headers_error(index)
        offsets: Sequence[int] = range(header.base_offset, header.base_offset + columns.count)
        if keep_offsets and columns.count:
            check_offsets(columns.offset)
            shift = header.base_offset - columns.offset[0]
            offsets = [offset + shift for offset in columns.offset]
        return self._encode_messages(
            offsets, columns.timestamp_ms.tolist(), columns.keys(), columns.values(), header, codec, level
        )

    def _headers_error(self, index: int) -> InvalidRecordError:
        return InvalidRecordError(f"magic {self.magic} does not support headers", ((index, "headers"),))

    def _encode_messages(
        self,
        offsets: Sequence[int],
        stamps: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
    ) -> bytearray:
        if not len(offsets):
            raise no_records()
        if codec is not None and codec.id == ZSTD_ID:
            raise UnsupportedCompressionError(f"magic {self.magic} does not support zstd")
        if header.transactional or header.control or header.producer_id > NO_PRODUCER:
            raise UnsupportedForMessageFormatError(f"magic {self.magic} does not support producer ids and transactions")
        largest = max(stamps)
        if min(stamps) < NO_TIMESTAMP or largest > _LAST_MS:
            for index, stamp in enumerate(stamps):
                check_timestamp(stamp, index)
        is_append_time, attributes = self.magic and header.timestamp_type is TimestampType.LOG_APPEND_TIME, 0
        if is_append_time:
            largest, attributes = header.append_time_ms, TIMESTAMP_TYPE_BIT
            stamps = [largest] * len(offsets)
        last = offsets[-1]
        if codec is not None and self.magic:
            offsets = [offset - offsets[0] for offset in offsets]
        messages = self._messages(offsets, stamps, keys, values, attributes)
        if codec is None:
            return messages
        compressed = codec.compress(messages, level=level, magic=self.magic)
        return self._messages([last], [largest], [None], [compressed], attributes | codec.id)

    def _messages(
        self,
        offsets: Sequence[int],
        stamps: Iterable[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        attributes: int,
    ) -> bytearray:
        """Return one message for each of ``offsets``. The arguments are not checked."""
        key_sizes, value_sizes = (
            [-1 if field is None else len(field) for field in column] for column in (keys, values)
        )
        heads = self._encode_heads(attributes, stamps, key_sizes)
        fields = zip(heads, _replace_nulls(keys), map(INT32.pack, value_sizes), _replace_nulls(values), strict=True)
        contents = list(map(b"".join, fields))
        sizes = [len(content) + _CRC_BYTES for content in contents]
        frames = map(_FRAME.pack, offsets, sizes, map(crc32, contents))
        return bytearray().join(chain.from_iterable(zip(frames, contents, strict=True)))

    # --- in place ----------------------------------------------------------------------------------------------------

    def assign(self, batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
        """Set the offsets of the entries, and for magic 1 timestamp type and timestamp. ``leader_epoch`` is ignored.

        A wrapper gets the offset of its last message. If ``record_count`` of a wrapper is -1, its value after a scan,
        ``assign`` decompresses the wrapper to find the number of its offsets. To avoid this, a caller can first set
        ``record_count`` to the number of messages if the inner offsets are 0, 1, 2, ...

        Raises:
            CorruptBatchError: a wrapper was decompressed, and its contents are not valid.
            DecompressedSizeError: a wrapper exceeds ``limit_bytes`` of this object.
            UnsupportedCompressionError: no codec has the id of a wrapper.
        """
        del leader_epoch
        data, table = batches.data, batches.table
        end = table.position[-1] + table.size_bytes[-1]
        for batch in table:
            span = self._span(data, batch)
            INT64.pack_into(data, batch.position, base_offset + span - 1)
            if self.magic:
                if append_time_ms is None:
                    self._stamp(data, batch, batch.attributes, batch.max_timestamp_ms)
                else:
                    self._stamp(data, batch, batch.attributes | TIMESTAMP_TYPE_BIT, append_time_ms)
            base_offset += span
        batches.replace_table(self.scan(data, table.position[0], end, check_crc=False))

    def _span(self, data: bytearray, batch: RecordBatch) -> int:
        if batch.record_count >= 0:
            return batch.record_count
        offsets = self._decode_wrapper(data, batch, Fields.OFFSET, self._limit_bytes).offset
        return offset_distance(offsets[0], offsets[-1], batch) + 1

    @staticmethod
    def _stamp(data: bytearray, batch: RecordBatch, attributes: int, stamp: int) -> None:
        """Set attributes, timestamp and CRC of a message. Do nothing if attributes and timestamp are already right."""
        start, end = batch.position, batch.position + batch.size_bytes
        if (data[start + _ATTRIBUTES_POSITION], *INT64.unpack_from(data, start + MESSAGE_HEADER_BYTES)) == (
            attributes,
            stamp,
        ):
            return
        data[start + _ATTRIBUTES_POSITION] = attributes
        INT64.pack_into(data, start + MESSAGE_HEADER_BYTES, stamp)
        with memoryview(data) as view:
            crc = crc32(view[start + MESSAGE_CHECKED_FROM : end])
        data[start + MESSAGE_CRC_POSITION : start + MESSAGE_CHECKED_FROM] = crc.to_bytes(4, "big")

    # --- cleaning ----------------------------------------------------------------------------------------------------

    def retain(
        self,
        data: Buffer,
        batches: BatchTable,
        verdicts: Sequence[Buffer],
        horizon_ms: int | None,
        *,
        retain_empty: Sequence[bool] | None = None,
        limit_bytes: int,
    ) -> Iterator[Buffer]:
        """Yield one buffer with the messages to keep. A wrapper that loses some messages is encoded again without them.

        A rewritten wrapper gets the offset of its last kept message. A wrapper that keeps all messages is not
        decompressed. ``horizon_ms`` is ignored, because messages cannot store a delete horizon.

        Raises:
            InvalidRecordError: the numbers of verdicts and records differ. Or ``retain_empty`` is True for an entry
                that loses all records, because these formats have no empty batches.
            CorruptBatchError, DecompressedSizeError, UnsupportedCompressionError: see ``decode``.
        """
        del horizon_ms
        check_lengths(batches, verdicts, retain_empty)
        view, retained = memoryview(data), bytearray()
        for row, batch in enumerate(batches):
            verdict = bytes(verdicts[row])
            if batch.record_count >= 0 and len(verdict) != batch.record_count:
                raise wrong_count(len(verdict), batch.record_count, batch.position)
            dropped = verdict.count(Verdict.DROP)
            if dropped < len(verdict):
                unchanged = view[batch.position : batch.position + batch.size_bytes]
                retained += self._rewrite_wrapper(data, batch, verdict, limit_bytes) if dropped else unchanged
            elif retain_empty is not None and retain_empty[row]:
                raise InvalidRecordError(
                    f"magic {self.magic} does not support empty batches (position={batch.position})"
                )
        yield retained

    def _rewrite_wrapper(self, data: Buffer, wrapper: RecordBatch, verdict: bytes, limit_bytes: int) -> bytearray:
        columns = self._decode_wrapper(data, wrapper, Fields.ALL, limit_bytes)
        if len(verdict) != columns.count:
            raise wrong_count(len(verdict), columns.count, wrapper.position)
        mask = verdict.translate(_KEPT)
        offsets, stamps = (list(compress(column, mask)) for column in (columns.offset, columns.timestamp_ms))
        keys, values = (list(compress(column, mask)) for column in (columns.keys(), columns.values()))
        header = BatchHeader(timestamp_type=wrapper.timestamp_type, append_time_ms=wrapper.max_timestamp_ms)
        return self._encode_messages(offsets, stamps, keys, values, header, self._codecs.by_id(wrapper.codec_id), None)


def _replace_nulls(column: Sequence[bytes | None]) -> Sequence[bytes]:
    """Return the column with empty bytes in place of None."""
    return [field or b"" for field in column]
