"""Checks and conversions of a leader for batches that a client encoded. The log's lock is not held.

Source: apache/kafka LogValidator, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, InvalidRecordError, RecordTooLargeError
from stratalog.log.prepare.prepare_records import (
    check_columns,
    codec_of,
    counted,
    encoded,
    is_create_time,
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
class _Set:
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
        """The first batch, which represents all of them."""
        return self.table[0]


def prepare_batches(
    data: Buffer, config: TopicConfig, components: Components, *, origin: AppendOrigin = AppendOrigin.CLIENT
) -> list[PreparedBatches]:
    """Check encoded batches. Batches that fit the topic are kept; others are encoded again.

    Consecutive uncompressed messages of magic 0 or 1 become one batch if the topic's record format has batches. A batch
    that is above ``max.message.bytes`` after it is encoded again is split, unless it has a producer id. An
    incomplete entry at the end is ignored, as in Kafka. Unlike in Kafka, several batches and base offsets other than 0
    are accepted; these base offsets are ignored. Therefore batches fetched from another log can be appended. The result
    is empty if ``data`` has no complete batch.

    Raises:
        CorruptBatchError: framing or a CRC is wrong; the error's ``file`` is "append", its ``position`` is that in
            ``data``.
        RecordTooLargeError: a batch is above ``max.message.bytes``; or, after it is encoded again, a single record or a
            batch with a producer id is.
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
        for start, end in _together(table):
            prepared.extend(_prepared(_copied(data, table, start, end, config, components)))
    return prepared


def whole_batches(data: Buffer, components: Components) -> tuple[BatchTable, ...]:
    """Check the CRCs of ``data``, and return its complete batches; an incomplete entry at the end is ignored.

    Raises:
        CorruptBatchError: framing or a CRC is wrong; the error's ``file`` is "append", its ``position`` is that in
            ``data``.
    """
    found = scan(components.formats, data, 0, len(data), check_crc=True)
    partial = found.stop is ScanStop.PARTIAL and not _bad_size(data, found.stop_position)
    if not partial and found.stop is not ScanStop.END:
        raise CorruptBatchError(found.reason or found.stop.value, "append", found.stop_position).advised(
            "encode the batches again and repeat the append; nothing was written"
        )
    return found.tables


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


def _together(table: BatchTable) -> Iterator[tuple[int, int]]:
    """Yield the row range of each set: consecutive uncompressed messages of magic 0 or 1, or one other batch."""
    start = 0
    for row in range(1, len(table) + 1):
        plain = table.magic < 2 and table.record_count[start] == 1
        if row == len(table) or not plain or table.record_count[row] != 1:
            yield start, row
            start = row


def _copied(data: Buffer, table: BatchTable, start: int, end: int, config: TopicConfig, components: Components) -> _Set:
    position, last = table.position[start], end - 1
    own = bytearray(memoryview(data)[position : table.position[last] + table.size_bytes[last]])
    found = components.formats.of(table.magic, "append", position)
    return _Set(found, own, found.scan(own, 0, len(own), check_crc=False), position, config, components)


def _prepared(given: _Set) -> list[PreparedBatches]:
    config, components = given.config, given.components
    limit_bytes = components.limits.decompressed_bytes
    try:
        decoded = list(given.format.decode(given.data, given.table, fields=Fields.ALL, limit_bytes=limit_bytes))
    except CorruptBatchError as error:
        raise InvalidRecordError(f"{error.reason} position={given.position + error.position}") from error
    is_wrapper = given.first.magic < 2 and given.first.codec_id != 0
    fields = [_check_inside(given, columns) for columns in decoded] if is_wrapper else []
    now = components.env.clock.now_ms()
    checked = 0
    for columns in decoded:
        check_columns(columns, config, now, first_index=checked, position=given.position)
        checked += columns.count
    base_offset = given.first.base_offset
    offsets = fields[0] if is_wrapper else [offset - base_offset for offset in decoded[0].offset]
    if len(decoded) == 1 and _fits(given, offsets):
        return [PreparedBatches(_restamped(given, decoded[0]), given.data)]
    return [piece for columns in decoded for piece in _rebuilt(given, columns, now)]


def _check_inside(given: _Set, columns: RecordColumns) -> list[int]:
    """Check the CRC and magic of the messages inside a compressed message, and return their stored offsets.

    ``columns.arena`` contains the decompressed inner messages.
    """
    arena = columns.arena
    inside = given.format.scan(arena, 0, memoryview(arena).nbytes, check_crc=True)
    if inside.stop is ScanStop.CORRUPT:
        raise CorruptBatchError(f"inside a compressed message: {inside.reason}", "append", given.position).advised(
            "encode the batches again and repeat the append; nothing was written"
        )
    if len(inside) != columns.count:
        raise InvalidRecordError(
            f"a message with another magic is inside a message of magic {inside.magic} position={given.position}"
        )
    return inside.last_offset.tolist()


def _fits(given: _Set, offsets: list[int]) -> bool:
    """Return True if only the offsets and timestamps of a set must change before the set is written."""
    first, config = given.first, given.config
    if first.magic != given.components.formats.chosen(config.record_version).magic:
        return False
    if first.is_control and not first.codec_id:
        return True  # never compressed
    codec, _ = codec_of(config, given.components, first.codec_id)
    if (0 if codec is None else codec.id) != first.codec_id:
        return False
    if first.magic < 2 and not first.codec_id:
        return True  # each message has its own offset
    if first.magic >= 2 and first.last_offset - first.base_offset + 1 != len(offsets):
        return False
    return first.magic > 0 and offsets == list(range(len(offsets)))


def _restamped(given: _Set, columns: RecordColumns) -> BatchTable:
    """Return the table with the record count and, on a CreateTime topic, the timestamp type and largest timestamps.

    ``RecordFormat.assign`` writes these values to the headers. On a LogAppendTime topic, ``assign`` writes the append
    time.
    """
    table = counted(given.table, columns.count)
    if not is_create_time(given.config) or not table.magic:
        return table
    if len(table) == columns.count:
        largest = columns.timestamp_ms.tolist()
    else:
        largest = [max(columns.timestamp_ms, default=NO_TIMESTAMP)]
    changed = {
        "attributes": [attributes & ~TIMESTAMP_TYPE_BIT for attributes in table.attributes],
        "max_timestamp_ms": [max(stamp, NO_TIMESTAMP) for stamp in largest],
    }
    listed = (changed.get(name, column) for name, column in zip(BATCH_COLUMNS, table.columns, strict=True))
    return BatchTable.from_rows(table.magic, zip(*listed, strict=True), table.stop, table.stop_position)


def _rebuilt(given: _Set, columns: RecordColumns, now_ms: int) -> list[PreparedBatches]:
    """Return the records, encoded again with the topic's magic, codec and level. Their offsets are consecutive."""
    first, config = given.first, given.config
    header = BatchHeader(
        timestamp_type=timestamp_type(config),
        append_time_ms=now_ms,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        transactional=first.is_transactional,
    )
    codec, level = codec_of(config, given.components, first.codec_id)
    target = given.components.formats.chosen(config.record_version)

    def encode(start: int, end: int) -> bytearray:
        return target.encode(columns.take(start, end), header, codec, level)

    pieces = encoded(columns.count, encode, target, config)
    if len(pieces) > 1 and first.producer_id > NO_PRODUCER:
        raise RecordTooLargeError("an idempotent batch is above max.message.bytes after it was encoded for the topic")
    return pieces
