"""Checks and conversions, by a leader, of batches that a client encoded. The log's lock is not held.

Source: apache/kafka LogValidator, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from stratalog.log.prepare.prepare_records import (
    check_columns,
    codec_of,
    encode_batches,
    is_create_time,
    set_record_count,
    timestamp_type,
)
from stratalog.model.batches import (
    BATCH_COLUMNS,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchTable,
    Buffer,
    RecordBatch,
    ScanStop,
)
from stratalog.model.offsets import AppendOrigin
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.components import Components
from stratalog.segment.framing import MIN_SIZE, OVERHEAD_BYTES, scan
from stratalog.spi.formats import BatchHeader, RecordFormat


@dataclass(slots=True)
class _BatchSet:
    """Batches that are checked together: one batch, or consecutive uncompressed messages of magic 0 or 1.

    If necessary, the set is encoded again as a whole. ``data`` is a copy of its bytes, and positions in ``table`` are
    positions in ``data``. ``position`` is the first batch's position in the input.
    """

    format: RecordFormat
    data: bytearray
    table: BatchTable
    position: int
    config: TopicConfig
    components: Components

    @property
    def first(self) -> RecordBatch:
        """The first batch. Its header represents the whole set."""
        return self.table[0]


def prepare_batches(
    data: Buffer, config: TopicConfig, components: Components, *, origin: AppendOrigin = AppendOrigin.CLIENT
) -> list[PreparedBatches]:
    """Check encoded batches. Batches that fit the topic are kept; others are encoded again.

    Consecutive uncompressed messages of magic 0 or 1 become one batch if the topic's record format has batches. If a
    batch is above ``max.message.bytes`` after it is encoded again, it is split, unless it has a producer id. An
    incomplete batch at the end is ignored, as in Kafka. Unlike in Kafka, several batches and base offsets other than 0
    are accepted; these base offsets are ignored. Therefore batches fetched from another log can be appended. The result
    is empty if ``data`` has no complete batch.

    Raises:
        CorruptBatchError: framing or a CRC is wrong; the error's ``file`` is "append", and its ``position`` is the
            position in ``data``.
        RecordTooLargeError: a batch is above ``max.message.bytes``. Or, after it is encoded again, a batch with a
            producer id or with a single record is above ``max.message.bytes``.
        InvalidRecordError, InvalidTimestampError: a batch or record breaks a rule of the topic, cannot be decoded, or
            cannot be written in the topic's magic.
        UnsupportedCompressionError: the codec of a batch or of the topic is not installed, or the topic's magic does
            not have the codec.
        DecompressedSizeError: a batch decompresses past ``limits.decompressed.bytes``.
    """
    prepared: list[PreparedBatches] = []
    for table in whole_batches(data, components):
        for batch in table:
            _check_batch(batch, config, origin)
        for start, end in _group_rows(table):
            prepared.extend(_prepare_set(_copy_set(data, table, start, end, config, components)))
    return prepared


def whole_batches(data: Buffer, components: Components) -> tuple[BatchTable, ...]:
    """Check the CRCs of ``data``, and return its complete batches. An incomplete batch at the end is ignored.

    Raises:
        CorruptBatchError: framing or a CRC is wrong; the error's ``file`` is "append", and its ``position`` is the
            position in ``data``.
    """
    scanned = scan(components.formats, data, 0, len(data), check_crc=True)
    is_partial = scanned.stop is ScanStop.PARTIAL and not _bad_size(data, scanned.stop_position)
    if not is_partial and scanned.stop is not ScanStop.END:
        raise CorruptBatchError(scanned.reason or scanned.stop.value, "append", scanned.stop_position).advised(
            "encode the batches again and repeat the append; nothing was written"
        )
    return scanned.tables


def _bad_size(data: Buffer, position: int) -> bool:
    if len(data) - position < OVERHEAD_BYTES:
        return False
    return int.from_bytes(memoryview(data)[position + 8 : position + OVERHEAD_BYTES], "big", signed=True) < MIN_SIZE


def _check_batch(batch: RecordBatch, config: TopicConfig, origin: AppendOrigin) -> None:
    where = f"position={batch.position}"
    if batch.size_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch has {batch.size_bytes} bytes, above max.message.bytes={config.max_message_bytes} {where}"
        )
    if batch.magic < 2 or origin is not AppendOrigin.CLIENT:
        return
    if batch.is_control:
        raise InvalidRecordError(f"clients cannot append control batches {where}")
    span = batch.last_offset - batch.base_offset + 1
    if batch.record_count <= 0 or span != batch.record_count:
        raise InvalidRecordError(f"a batch of {batch.record_count} records spans {span} offsets {where}")
    if batch.producer_id > NO_PRODUCER and batch.base_sequence < 0:
        raise InvalidRecordError(f"producer {batch.producer_id} sent no sequence number {where}")


def _group_rows(table: BatchTable) -> Iterator[tuple[int, int]]:
    """Yield the row range of each set: consecutive uncompressed messages of magic 0 or 1, or one other batch."""
    start = 0
    for row in range(1, len(table) + 1):
        is_single_message = table.magic < 2 and table.record_count[start] == 1
        if row == len(table) or not is_single_message or table.record_count[row] != 1:
            yield start, row
            start = row


def _copy_set(
    data: Buffer, table: BatchTable, start: int, end: int, config: TopicConfig, components: Components
) -> _BatchSet:
    position, last = table.position[start], end - 1
    set_data = bytearray(memoryview(data)[position : table.position[last] + table.size_bytes[last]])
    record_format = components.formats.of(table.magic, "append", position)
    return _BatchSet(
        record_format,
        set_data,
        record_format.scan(set_data, 0, len(set_data), check_crc=False),
        position,
        config,
        components,
    )


def _prepare_set(batch_set: _BatchSet) -> list[PreparedBatches]:
    config, components = batch_set.config, batch_set.components
    limit_bytes = components.limits.decompressed_bytes
    try:
        decoded = list(
            batch_set.format.decode(batch_set.data, batch_set.table, fields=Fields.ALL, limit_bytes=limit_bytes)
        )
    except CorruptBatchError as error:
        raise InvalidRecordError(f"{error.reason} position={batch_set.position + error.position}") from error
    except UnsupportedCompressionError as error:
        position = -1 if error.position < 0 else batch_set.position + error.position
        raise UnsupportedCompressionError(error.reason, "", position) from error
    is_wrapper = batch_set.first.magic < 2 and batch_set.first.codec_id != 0
    stored_offsets = [_check_inside(batch_set, columns) for columns in decoded] if is_wrapper else []
    now_ms = components.env.clock.now_ms()
    checked_records = 0
    for columns in decoded:
        check_columns(columns, config, now_ms, first_index=checked_records, position=batch_set.position)
        checked_records += columns.count
    base_offset = batch_set.first.base_offset
    offsets = stored_offsets[0] if is_wrapper else [offset - base_offset for offset in decoded[0].offset]
    if len(decoded) == 1 and _fits(batch_set, offsets):
        return [PreparedBatches(_restamp(batch_set, decoded[0]), batch_set.data)]
    return [piece for columns in decoded for piece in _rebuild(batch_set, columns, now_ms)]


def _check_inside(batch_set: _BatchSet, columns: RecordColumns) -> list[int]:
    """Check the CRC and magic of the messages inside a compressed message, and return their stored offsets.

    ``columns.arena`` contains the decompressed inner messages.
    """
    arena = columns.arena
    inner = batch_set.format.scan(arena, 0, memoryview(arena).nbytes, check_crc=True)
    if inner.stop is ScanStop.CORRUPT:
        raise CorruptBatchError(f"inside a compressed message: {inner.reason}", "append", batch_set.position).advised(
            "encode the batches again and repeat the append; nothing was written"
        )
    if len(inner) != columns.count:
        raise InvalidRecordError(
            f"a message with another magic is inside a message of magic {inner.magic} (position={batch_set.position})"
        )
    return inner.last_offset.tolist()


def _fits(batch_set: _BatchSet, offsets: list[int]) -> bool:
    """Return True if only the offsets and timestamps of a set must change before the set is written."""
    first, config = batch_set.first, batch_set.config
    if first.magic != batch_set.components.formats.for_version(config.record_version).magic:
        return False
    if first.is_control and not first.codec_id:
        return True  # never compressed
    codec, _ = codec_of(config, batch_set.components, first.codec_id)
    if (0 if codec is None else codec.id) != first.codec_id:
        return False
    if first.magic < 2 and not first.codec_id:
        return True  # each message has its own offset
    if first.magic >= 2 and first.last_offset - first.base_offset + 1 != len(offsets):
        return False
    return first.magic > 0 and offsets == list(range(len(offsets)))


def _restamp(batch_set: _BatchSet, columns: RecordColumns) -> BatchTable:
    """Return the table with the record count and, on a CreateTime topic, the timestamp type and largest timestamps.

    ``RecordFormat.assign`` writes these values to the headers. On a LogAppendTime topic, ``assign`` writes the append
    time.
    """
    table = set_record_count(batch_set.table, columns.count)
    if not is_create_time(batch_set.config) or not table.magic:
        return table
    if len(table) == columns.count:
        largest = columns.timestamp_ms.tolist()
    else:
        largest = [max(columns.timestamp_ms, default=NO_TIMESTAMP)]
    new_column_by_name = {
        "attributes": [attributes & ~TIMESTAMP_TYPE_BIT for attributes in table.attributes],
        "max_timestamp_ms": [max(stamp, NO_TIMESTAMP) for stamp in largest],
    }
    new_columns = (
        new_column_by_name.get(name, column) for name, column in zip(BATCH_COLUMNS, table.columns, strict=True)
    )
    return BatchTable.from_rows(table.magic, zip(*new_columns, strict=True), table.stop, table.stop_position)


def _rebuild(batch_set: _BatchSet, columns: RecordColumns, now_ms: int) -> list[PreparedBatches]:
    """Return the records, encoded again with the topic's magic, codec and level. Their offsets are consecutive."""
    first, config = batch_set.first, batch_set.config
    header = BatchHeader(
        timestamp_type=timestamp_type(config),
        append_time_ms=now_ms,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        transactional=first.is_transactional,
    )
    codec, level = codec_of(config, batch_set.components, first.codec_id)
    target = batch_set.components.formats.for_version(config.record_version)

    def encode(start: int, end: int) -> bytearray:
        return target.encode(columns.take(start, end), header, codec, level)

    pieces = encode_batches(columns.count, encode, target, config)
    if len(pieces) > 1 and first.producer_id > NO_PRODUCER:
        raise RecordTooLargeError("an idempotent batch is above max.message.bytes after it was encoded for the topic")
    return pieces
