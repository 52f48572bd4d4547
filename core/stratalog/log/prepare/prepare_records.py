"""Checks and encoding of records by a leader, before they get offsets. The log's lock is not held.

Source: apache/kafka LogValidator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from stratalog.model.batches import BATCH_COLUMNS, NO_TIMESTAMP, BatchTable, TimestampType
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Record, RecordColumns, Survey, int64_column, survey
from stratalog.segment.components import Components
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader, RecordFormat

BATCH_BYTES_WANTED: Final = 1 << 20
RECORD_OVERHEAD_BYTES: Final = 30
PRODUCER_CODEC: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"
CREATE_TIME: Final = "CreateTime"
COMPACT: Final = "compact"
_COUNT_COLUMN: Final = BATCH_COLUMNS.index("record_count")
_LEAST_MS: Final = -(1 << 63)


def prepare_records(records: Sequence[Record], config: TopicConfig, components: Components) -> list[PreparedBatches]:
    """Encode records as batches no larger than ``max.message.bytes``, in the topic's format and codec.

    A record with the timestamp -1 gets the time of the clock.

    Raises:
        InvalidRecordError, InvalidTimestampError: there are no records, or a record breaks a rule; the error's
            ``record_errors`` has the indexes.
        RecordTooLargeError: a batch of one record is above ``max.message.bytes``.
        UnsupportedCompressionError: the topic's codec is not installed, or its record format does not have the codec.
    """
    if not records:
        raise InvalidRecordError("no records were given")
    now_ms = components.env.clock.now_ms()
    limit = batch_limit_bytes(config)
    groups = list(_groups(records, limit))
    if min(group.least_ms for group in groups) == NO_TIMESTAMP:
        records = [
            record if record.timestamp_ms != NO_TIMESTAMP else record._replace(timestamp_ms=now_ms)
            for record in records
        ]
        groups = list(_groups(records, limit))
    least_ms = min(group.least_ms for group in groups)
    if least_ms < NO_TIMESTAMP or any(
        _group_may_break_rules(group.least_ms, group.largest_ms, group.null_key, config, now_ms) for group in groups
    ):
        check_records(records, config, now_ms)
    header = BatchHeader(timestamp_type=timestamp_type(config), append_time_ms=now_ms)
    codec, level = codec_of(config, components, 0)
    record_format = components.formats.for_version(config.record_version)
    prepared: list[PreparedBatches] = []
    start = 0
    for group in groups:
        part = records if len(groups) == 1 else records[start : group.end]

        def encode(first: int, end: int, part: Sequence[Record] = part) -> bytearray:
            return record_format.encode(part[first:end], header, codec, level)

        prepared.extend(encode_batches(len(part), encode, record_format, config))
        start = group.end
    return prepared


def batch_limit_bytes(config: TopicConfig) -> int:
    """Return the size (bytes, before compression) at which a new batch ends, unless it has only one record."""
    return min(BATCH_BYTES_WANTED, config.max_message_bytes, config.segment_bytes)


def _groups(records: Sequence[Record], limit: int) -> Iterator[Survey]:
    """Yield a survey of each group of consecutive records.

    A group has at most about ``limit`` bytes uncompressed, or one larger record.
    """
    end = 0
    while end < len(records):
        group = survey(records, end, limit, RECORD_OVERHEAD_BYTES)
        end = group.end
        yield group


def _group_may_break_rules(least_ms: int, largest_ms: int, null_key: object, config: TopicConfig, now_ms: int) -> bool:
    """Return True if a record of a group may lack a required key, or may have a timestamp that the topic refuses.

    The caller then checks each record. ``least_ms`` and ``largest_ms`` are the least and the largest timestamp of the
    group. ``null_key`` is true if a key is null.
    """
    if null_key and COMPACT in config.cleanup_policy:
        return True
    is_early = least_ms < now_ms - config.message_timestamp_before_max_ms
    is_late = largest_ms > now_ms + config.message_timestamp_after_max_ms
    return (is_early or is_late) and is_create_time(config)


def encode_batches(
    count: int, encode: Callable[[int, int], bytearray], record_format: RecordFormat, config: TopicConfig
) -> list[PreparedBatches]:
    """Encode ``count`` records as batches no larger than ``max.message.bytes``.

    ``encode`` returns the bytes of the records with the indexes [start, end).

    Raises:
        RecordTooLargeError: a batch of one record is above ``max.message.bytes``.
    """

    def pieces(start: int, end: int) -> list[PreparedBatches]:
        data = encode(start, end)
        table = record_format.scan(data, 0, len(data), check_crc=False)
        if max(table.size_bytes) <= config.max_message_bytes:
            return [PreparedBatches(set_record_count(table, end - start), data)]
        if end - start == 1:
            raise RecordTooLargeError(
                f"a record needs {max(table.size_bytes)} bytes, above max.message.bytes={config.max_message_bytes}"
            )
        middle = (start + end) // 2
        return pieces(start, middle) + pieces(middle, end)

    return pieces(0, count)


def set_record_count(table: BatchTable, count: int) -> BatchTable:
    """Return ``table``; if it is one compressed message, set its record count to ``count``.

    ``RecordFormat.assign`` needs the record count of a compressed message, which a scan does not know.
    """
    if table.record_count[0] >= 0:
        return table
    columns = list(table.columns)
    columns[_COUNT_COLUMN] = int64_column([count])
    return BatchTable(table.magic, columns, table.stop, table.stop_position, table.reason)


def check_records(records: Sequence[Record], config: TopicConfig, now_ms: int) -> None:
    """Check the keys and timestamps of records. An error is raised after all records were checked.

    Raises:
        InvalidTimestampError: on a CreateTime topic, a timestamp is too far from the clock, even if other rules are
            broken too.
        InvalidRecordError: a record of a compacted topic has no key, or a timestamp is below -1.
    """
    rows = ((record.key is None, record.timestamp_ms, False) for record in records)
    _check(rows, config, now_ms, least_ms=NO_TIMESTAMP)


def check_columns(
    columns: RecordColumns, config: TopicConfig, now_ms: int, *, first_index: int = 0, position: int = 0
) -> None:
    """Check records that a client encoded, as ``check_records`` does, but accept timestamps below -1.

    ``first_index`` is the index of the first record in its batch, and ``position`` is the batch's position in the
    append; errors name both. As in Kafka, records with the timestamp type LogAppendTime raise InvalidTimestampError,
    unless the topic uses CreateTime and the records have a timestamp.
    """
    keys_missing = (size < 0 for size in columns.key_size)
    append_times = (kind == TimestampType.LOG_APPEND_TIME for kind in columns.timestamp_type)
    if _columns_may_break_rules(columns, config, now_ms):
        rows = zip(keys_missing, columns.timestamp_ms, append_times, strict=True)
        where = f" position={position}"
        _check(rows, config, now_ms, least_ms=_LEAST_MS, first_index=first_index, where=where)


def _columns_may_break_rules(columns: RecordColumns, config: TopicConfig, now_ms: int) -> bool:
    """Return True if any record may break a rule."""
    if not columns.count:
        return False
    if COMPACT in config.cleanup_policy and min(columns.key_size) < 0:
        return True
    earliest, latest = _window(config, now_ms)
    is_outside = (
        is_create_time(config) and not earliest <= min(columns.timestamp_ms) <= max(columns.timestamp_ms) <= latest
    )
    return is_outside or max(columns.timestamp_type) == TimestampType.LOG_APPEND_TIME


def _check(
    rows: Iterable[tuple[bool, int, bool]],
    config: TopicConfig,
    now_ms: int,
    *,
    least_ms: int,
    first_index: int = 0,
    where: str = "",
) -> None:
    """Raise an error if a row breaks a rule. A row is (has no key, timestamp, its batch has LogAppendTime)."""
    needs_key, is_topic_create_time = COMPACT in config.cleanup_policy, is_create_time(config)
    earliest, latest = _window(config, now_ms)
    record_errors: list[tuple[int, str]] = []
    has_wrong_time = False
    for index, (has_no_key, stamp, has_append_time) in enumerate(rows, first_index):
        if needs_key and has_no_key:
            record_errors.append((index, "a record of a compacted topic needs a key"))
        elif stamp < least_ms:
            record_errors.append((index, f"timestamp {stamp} is negative"))
        elif is_topic_create_time and stamp != NO_TIMESTAMP and not earliest <= stamp <= latest:
            record_errors.append((index, f"timestamp {stamp} is outside [{earliest}, {latest}]"))
            has_wrong_time = True
        elif has_append_time and (not is_topic_create_time or stamp == NO_TIMESTAMP):
            record_errors.append((index, "a client cannot set the timestamp type LogAppendTime"))
            has_wrong_time = True
    if record_errors:
        kind = InvalidTimestampError if has_wrong_time else InvalidRecordError
        raise kind(f"records were refused; no record of this append was written{where}", tuple(record_errors))


def _window(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms


def is_create_time(config: TopicConfig) -> bool:
    """Return True if records keep the producer's timestamp (``message.timestamp.type=CreateTime``)."""
    return config.message_timestamp_type == CREATE_TIME


def timestamp_type(config: TopicConfig) -> TimestampType:
    """Return the timestamp type of the topic's records."""
    return TimestampType.CREATE_TIME if is_create_time(config) else TimestampType.LOG_APPEND_TIME


def codec_of(config: TopicConfig, components: Components, source_codec: int) -> tuple[Codec | None, int | None]:
    """Return the codec and its level for records that arrived with the codec id ``source_codec`` (0: not compressed).

    The codec is None if the records are not to be compressed. The level is None for the codec's default level, or if
    the codec is None.

    Raises:
        UnsupportedCompressionError: the codec is not installed.
    """
    codec = _codec(config, components, source_codec)
    return codec, None if codec is None else config.compression_level(components.codecs.name_of(codec.id))


def _codec(config: TopicConfig, components: Components, source_codec: int) -> Codec | None:
    if config.compression_type == PRODUCER_CODEC:
        return components.codecs.by_id(source_codec) if source_codec else None
    if config.compression_type == UNCOMPRESSED:
        return None
    return components.codecs.by_name(config.compression_type)
