"""What a leader checks and makes of records before they get offsets. Runs outside the log's lock.

Source: apache/kafka LogValidator, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from stratalog.model.batches import NO_PRODUCER, NO_TIMESTAMP, BatchTable, Buffer, RecordBatch, ScanStop, TimestampType
from stratalog.model.records import Fields, Record
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME, FRAME_BYTES, MIN_SIZE, scan
from stratalog.spi.formats import BatchHeader, Codec, RecordFormat

BATCH_BYTES_WANTED: Final = 1 << 20
RECORD_OVERHEAD_BYTES: Final = 30
PRODUCER_CODEC: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"


@dataclass(slots=True)
class Prepared:
    """Batches that passed, with relative offsets: positions of ``table`` are into ``data``."""

    format: RecordFormat
    data: bytearray
    table: BatchTable


def prepare_records(
    records: Sequence[Record], config: TopicConfig, parts: Components, *, source_codec: int = 0
) -> list[Prepared]:
    """Encode records as batches no larger than ``max.message.bytes``, in the topic's format and codec.

    A record without a timestamp gets the clock's.

    Raises:
        InvalidRecordError: there are none, or one breaks a rule; the indexes are in ``record_errors``.
        RecordTooLargeError: one record alone is above ``max.message.bytes``.
    """
    if not records:
        raise InvalidRecordError("no records were given")
    now = parts.env.clock.now_ms()
    stamped = [
        record if record.timestamp_ms != NO_TIMESTAMP else record._replace(timestamp_ms=now) for record in records
    ]
    check_records(stamped, config, now)
    header = BatchHeader(timestamp_type=_timestamp_type(config), append_time_ms=now)
    codec = _codec(config, parts, source_codec)
    prepared: list[Prepared] = []
    limit = min(BATCH_BYTES_WANTED, config.max_message_bytes, config.segment_bytes)
    for group in _groups(stamped, limit):
        prepared.extend(_encoded(group, header, codec, config, parts))
    return prepared


def _groups(records: Sequence[Record], limit: int) -> Iterator[Sequence[Record]]:
    start = size = 0
    for index, record in enumerate(records):
        own = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            own += len(name) + len(value or b"") + 4
        if size and size + own > limit:
            yield records[start:index]
            start, size = index, 0
        size += own
    yield records[start:]


def _encoded(
    records: Sequence[Record], header: BatchHeader, codec: Codec | None, config: TopicConfig, parts: Components
) -> list[Prepared]:
    found = parts.formats.of(config.record_version, "", 0)
    level = None if codec is None else config.compression_level(parts.codecs.name_of(codec.id))
    data = found.encode(records, header, codec, level)
    table = found.scan(data, 0, len(data), check_crc=False)
    if max(table.size_bytes) <= config.max_message_bytes:
        return [Prepared(found, data, table)]
    if len(records) == 1:
        raise RecordTooLargeError(
            f"a record needs {max(table.size_bytes)} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    middle = len(records) // 2
    halves = (records[:middle], records[middle:])
    return [piece for half in halves for piece in _encoded(half, header, codec, config, parts)]


def check_records(records: Sequence[Record], config: TopicConfig, now_ms: int, *, stamped: bool = False) -> None:
    """Keys on compacted topics, timestamps on CreateTime topics. All records are looked at before anything is raised.

    ``stamped``: their batch says LogAppendTime, which is not a client's to say. Kafka lets it pass where it does not
    count: on a CreateTime topic, for records that have a timestamp.
    """
    keyed = "compact" in config.cleanup_policy
    create_time = config.message_timestamp_type == "CreateTime"
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    wrong: list[tuple[int, str]] = []
    late = False
    for index, record in enumerate(records):
        stamp = record.timestamp_ms
        if keyed and record.key is None:
            wrong.append((index, "a record of a compacted topic needs a key"))
        elif stamp < NO_TIMESTAMP:
            wrong.append((index, f"timestamp {stamp} is negative"))
        elif create_time and stamp != NO_TIMESTAMP and not earliest <= stamp <= latest:
            wrong.append((index, f"timestamp {stamp} is outside [{earliest}, {latest}]"))
            late = True
        elif stamped and (not create_time or stamp == NO_TIMESTAMP):
            wrong.append((index, "a client does not say LogAppendTime"))
            late = True
    if wrong:
        kind = InvalidTimestampError if late else InvalidRecordError
        raise kind("records were refused, none of this append was written", tuple(wrong))


def _timestamp_type(config: TopicConfig) -> TimestampType:
    is_create = config.message_timestamp_type == "CreateTime"
    return TimestampType.CREATE_TIME if is_create else TimestampType.LOG_APPEND_TIME


def _codec(config: TopicConfig, parts: Components, source_codec: int) -> Codec | None:
    if config.compression_type == PRODUCER_CODEC:
        return parts.codecs.by_id(source_codec) if source_codec else None
    if config.compression_type == UNCOMPRESSED:
        return None
    return parts.codecs.by_name(config.compression_type)


# --- batches that a client encoded -------------------------------------------------------------------------------


def prepare_batches(data: Buffer, config: TopicConfig, parts: Components) -> list[Prepared]:
    """Check encoded batches; those that fit the topic stay as they are, others are encoded again.

    A trailing partial entry is left out, as Kafka does.

    Raises:
        CorruptBatchError: framing or CRC is wrong; file is "append", the position that in ``data``.
        RecordTooLargeError: a batch is above ``max.message.bytes``.
        InvalidRecordError: a batch or record breaks a rule of the topic.
    """
    found = scan(parts.formats, data, 0, len(data), check_crc=True)
    partial = found.stop is ScanStop.PARTIAL and not _bad_size(data, found.stop_position)
    if not partial and found.stop is not ScanStop.END:
        raise CorruptBatchError(found.reason or found.stop.value, "append", found.stop_position)
    return [piece for table in found.tables for batch in table for piece in _prepare_batch(data, batch, config, parts)]


def _bad_size(data: Buffer, position: int) -> bool:
    left = len(data) - position
    return left >= FRAME_BYTES and FRAME.unpack_from(data, position)[1] < MIN_SIZE


def _prepare_batch(data: Buffer, batch: RecordBatch, config: TopicConfig, parts: Components) -> list[Prepared]:
    if batch.size_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch of {batch.size_bytes} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    _check_batch(batch)
    own = bytearray(memoryview(data)[batch.position : batch.position + batch.size_bytes])
    found = parts.formats.of(batch.magic, "append", batch.position)
    row = found.scan(own, 0, len(own), check_crc=False)
    try:
        decoded = list(found.decode(own, row, fields=Fields.ALL, limit_bytes=parts.limits.decompressed_bytes))
    except CorruptBatchError as error:
        raise InvalidRecordError(f"{error.reason} position={batch.position}") from error
    records = [record for columns in decoded for record in columns.to_records()]
    if any(record.timestamp_type is not batch.timestamp_type for record in records):
        raise InvalidRecordError(f"a message of another magic inside one of {batch.magic} position={batch.position}")
    now = parts.env.clock.now_ms()
    check_records(records, config, now, stamped=batch.timestamp_type is TimestampType.LOG_APPEND_TIME)
    if _fits(batch, records, config, parts):
        return [Prepared(found, own, row)]
    return _rebuilt(batch, records, config, parts, now)


def _check_batch(batch: RecordBatch) -> None:
    where = f"position={batch.position}"
    if batch.magic < 2:
        return
    if batch.is_control:
        raise InvalidRecordError(f"clients do not write control batches {where}")
    span = batch.last_offset - batch.base_offset + 1
    if batch.record_count <= 0 or span != batch.record_count:
        raise InvalidRecordError(f"a batch of {batch.record_count} records spans {span} offsets {where}")
    if batch.producer_id != NO_PRODUCER and batch.base_sequence < 0:
        raise InvalidRecordError(f"producer {batch.producer_id} gives no sequence {where}")


def _fits(batch: RecordBatch, records: Sequence[Record], config: TopicConfig, parts: Components) -> bool:
    """Whether a batch can stay as it is: right magic, codec, consecutive offsets, true maximum, right type of time."""
    codec = _codec(config, parts, batch.codec_id)
    if batch.magic != config.record_version or batch.magic < 2 or (0 if codec is None else codec.id) != batch.codec_id:
        return False
    if [record.offset - batch.base_offset for record in records] != list(range(len(records))):
        return False
    if _timestamp_type(config) is TimestampType.LOG_APPEND_TIME:
        return True
    largest = max(record.timestamp_ms for record in records)
    return batch.timestamp_type is TimestampType.CREATE_TIME and batch.max_timestamp_ms == largest


def _rebuilt(
    batch: RecordBatch, records: Sequence[Record], config: TopicConfig, parts: Components, now_ms: int
) -> list[Prepared]:
    header = BatchHeader(
        timestamp_type=_timestamp_type(config),
        append_time_ms=now_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    pieces = _encoded(records, header, _codec(config, parts, batch.codec_id), config, parts)
    if len(pieces) > 1 and batch.producer_id != NO_PRODUCER:
        raise RecordTooLargeError("an idempotent batch is above max.message.bytes after encoding it again")
    return pieces
