"""Encoding of columns of records into batches of a topic's format and codec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from stratalog.config.topic import NO_CODEC, TopicConfig
from stratalog.errors import ConfigError, CorruptBatchError, UnsupportedCompressionError
from stratalog.log.prepare.prepare_records import (
    RECORD_OVERHEAD_BYTES,
    batch_limit_bytes,
    check_columns,
    codec_of,
    encode_batches,
    timestamp_type,
)
from stratalog.model.batches import NO_EPOCH, NO_TIMESTAMP, BatchTable, TimestampType
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import RecordColumns, int64_column
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.spi.formats import BatchHeader

_HEADER_BYTES: Final = 8  # approximate size of a record's header without its name and value


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes records for one topic. Unless offsets are kept, the encoder makes the checks of a log's leader."""

    components: Components
    config: TopicConfig

    @classmethod
    def of(cls, components: Components, config: TopicConfig, compression: str | None = None) -> Encoder:
        """Return the encoder for a topic. ``compression`` overrides the codec in ``config``, unless it is None.

        Raises:
            ConfigError: the codec is unknown or not installed.
        """
        if compression is not None:
            name = "uncompressed" if compression == "none" else compression
            config = config.replaced({"compression.type": name}, "compression")
        if config.compression_type not in NO_CODEC:
            try:
                components.codecs.by_name(config.compression_type)
            except UnsupportedCompressionError as error:
                raise ConfigError(f"{error}: install its plugin, or choose another compression") from error
        return cls(components, config)

    def batches(self, columns: RecordColumns, *, keep_offsets: bool) -> Iterator[PreparedBatches]:
        """Yield the records as batches of at most ``max.message.bytes``, and about 1 MiB or less before compression.

        With ``keep_offsets``, the records are not checked, and keep their offsets, leader epochs and append times.
        Otherwise each batch begins at offset 0, and the caller assigns the offsets.

        Raises:
            InvalidRecordError: a record breaks a rule of the topic.
            RecordTooLargeError: a single record is larger than ``max.message.bytes``.
        """
        if not columns.count:
            return
        now_ms = self.components.env.clock.now_ms()
        if not keep_offsets:
            if min(columns.timestamp_ms) == NO_TIMESTAMP:
                stamps = (now_ms if stamp == NO_TIMESTAMP else stamp for stamp in columns.timestamp_ms)
                columns = replace(columns, timestamp_ms=int64_column(stamps))
            check_columns(columns, self.config, now_ms)
        codec, level = codec_of(self.config, self.components, 0)
        record_format = self.components.formats.for_version(self.config.record_version)
        kind = timestamp_type(self.config)
        for part in self._split_columns(columns, keep_offsets=keep_offsets):

            def encode(start: int, end: int, part: RecordColumns = part) -> bytearray:
                piece = part.take(start, end)
                header = BatchHeader(timestamp_type=kind, append_time_ms=now_ms)
                if keep_offsets:
                    epoch = piece.leader_epoch[0] if len(piece.leader_epoch) else NO_EPOCH
                    header = BatchHeader(base_offset=piece.offset[0], leader_epoch=epoch)
                    append_time_ms = _append_time_ms(piece, 0)
                    if append_time_ms is not None:
                        time_type = TimestampType.LOG_APPEND_TIME
                        header = replace(header, timestamp_type=time_type, append_time_ms=append_time_ms)
                return record_format.encode(piece, header, codec, level, keep_offsets=keep_offsets)

            yield from encode_batches(part.count, encode, record_format, self.config)

    def _split_columns(self, columns: RecordColumns, *, keep_offsets: bool) -> Iterator[RecordColumns]:
        """Yield the records in parts of about the size of a batch.

        With kept offsets, each part has one leader epoch, and one append time or none.
        """
        size = columns.count * RECORD_OVERHEAD_BYTES + sum(columns.key_size) + sum(columns.value_size)
        size += len(columns.header_key_size) * _HEADER_BYTES
        size += sum(columns.header_key_size) + sum(columns.header_value_size)
        limit = batch_limit_bytes(self.config)
        rows = max(1, limit * columns.count // max(size, 1))
        for start, end in pairwise(_borders(columns) if keep_offsets else (0, columns.count)):
            for row in range(start, end, rows):
                yield columns.take(row, min(row + rows, end))


def _borders(columns: RecordColumns) -> list[int]:
    """Return the row numbers where the leader epoch or the append time changes, and also 0 and the number of rows."""
    epochs = columns.leader_epoch
    changes = set[int]()
    if len(epochs) and min(epochs) != max(epochs):
        changes.update(row for row in range(1, columns.count) if epochs[row] != epochs[row - 1])
    if TimestampType.LOG_APPEND_TIME in columns.timestamp_type:
        times = [_append_time_ms(columns, row) for row in range(columns.count)]
        changes.update(row for row in range(1, columns.count) if times[row] != times[row - 1])
    return [0, *sorted(changes), columns.count]


def _append_time_ms(columns: RecordColumns, row: int) -> int | None:
    """Return the time (ms since 1970) at which a record was appended; None if its timestamp is not an append time."""
    if not len(columns.timestamp_type) or columns.timestamp_type[row] != TimestampType.LOG_APPEND_TIME:
        return None
    return columns.timestamp_ms[row]


def place_tables(
    data: bytearray, components: Components, base_offset: int | None, leader_epoch: int
) -> Iterator[tuple[BatchTable, memoryview]]:
    """Yield tables of the batches in ``data``, each with its bytes. All batches of a table have the same magic.

    The batches in ``data`` are changed: they get offsets from ``base_offset`` on, and ``leader_epoch``. If
    ``base_offset`` is None, the batches keep their offsets and leader epochs.

    Raises:
        CorruptBatchError: ``data`` does not consist of whole batches.
    """
    scan_result = scan(components.formats, data, 0, len(data), check_crc=False)
    if scan_result.stop_position != len(data):
        raise CorruptBatchError(scan_result.reason or "the last batch is cut off", "", scan_result.stop_position)
    for scanned in scan_result.tables:
        table = scanned
        if base_offset is not None:
            batches = PreparedBatches(scanned, data)
            components.formats.of(table.magic, "", 0).assign(batches, base_offset, leader_epoch, None)
            table, base_offset = batches.table, batches.last_offset + 1
        end = table.position[-1] + table.size_bytes[-1]
        yield table, memoryview(data)[table.position[0] : end]
