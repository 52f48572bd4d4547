"""Conversion of record sets for readers that know only older magics.

Source: apache/kafka RecordsUtil.downConvert.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Final

from stratalog.errors import CorruptBatchError, InvalidRecordError, UnsupportedCompressionError
from stratalog.model.batches import CODEC_MASK, BatchTable, Buffer, RecordBatch, ScanStop, TimestampType
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.components import FormatTable
from stratalog.segment.framing import scan
from stratalog.spi.codecs import CodecTable
from stratalog.spi.formats import BatchHeader, RecordFormat

BATCH_MAGIC: Final = 2  # the first magic with headers, producers, control batches and zstd
_ZSTD_ID: Final = 4
_INT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Converted:
    """A record set after conversion; ``records_converted`` is the number of records that were encoded again."""

    data: bytes
    records_converted: int


def convert(
    data: Buffer,
    formats: FormatTable,
    codecs: CodecTable,
    magic: int,
    *,
    first_offset: int = 0,
    limit_bytes: int,
) -> Converted:
    """Convert batches with a magic above ``magic`` to ``magic``, and copy the other batches unchanged.

    A truncated batch at the end is left out. A conversion to magic 1 loses headers, the fields of producers,
    transactional flags, leader epochs, control batches, and the boundaries of uncompressed batches. A conversion to
    magic 0 also loses timestamps and their type. Offsets with their gaps, keys and values are kept.

    Args:
        data: whole batches, as a fetch returns them.
        formats: formats of all magics in ``data``, and of ``magic``.
        codecs: codecs of the batches.
        magic: the highest magic that the reader knows.
        first_offset: records below it are left out of uncompressed batches; compressed batches stay whole.
        limit_bytes: maximum size (bytes) of a decompressed batch.

    Raises:
        UnsupportedCompressionError: a batch above ``magic`` is compressed with zstd, which older magics do not have, or
            with a codec that is not installed.
        CorruptBatchError: a batch or its records are damaged; the error's ``position`` is the position in ``data``, and
            its ``file`` is "".
        DecompressedSizeError: a batch decompresses past ``limit_bytes``.
    """
    scanned = scan(formats, data, 0, len(data), check_crc=False)
    if scanned.stop is ScanStop.CORRUPT:
        raise CorruptBatchError(scanned.reason, "", scanned.stop_position)
    view, output, converted_records = memoryview(data), bytearray(), 0
    for table in scanned.tables:
        if table.magic <= magic:
            output += view[table.position[0] : table.position[-1] + table.size_bytes[-1]]
            continue
        source, target = formats.of(table.magic, "", table.position[0]), formats.of(magic, "", table.position[0])
        for row, batch in enumerate(table):
            if magic < BATCH_MAGIC and batch.is_control:
                continue
            columns = _columns(source, data, table.take(row, row + 1), magic, first_offset, limit_bytes)
            if columns.count:
                output += _encode(columns, batch, target, codecs)
                converted_records += columns.count
    return Converted(bytes(output), converted_records)


def _columns(
    source: RecordFormat, data: Buffer, row: BatchTable, magic: int, first_offset: int, limit_bytes: int
) -> RecordColumns:
    """Return the records of one batch to convert, without headers if ``magic`` has none."""
    codec_id = row.attributes[0] & CODEC_MASK
    if magic < BATCH_MAGIC and codec_id == _ZSTD_ID:
        raise UnsupportedCompressionError(f"magic {magic} does not support zstd", "", row.position[0])
    columns = next(source.decode(data, row, fields=Fields.ALL, limit_bytes=limit_bytes), RecordColumns(b"", 0))
    if not codec_id:
        columns = columns.take(bisect_left(columns.offset, first_offset), columns.count)
    if magic < BATCH_MAGIC:
        none = memoryview(bytes(_INT32_BYTES * columns.count)).cast("i")
        columns = replace(columns, header_first=none, header_count=none)
    return columns


def _encode(columns: RecordColumns, batch: RecordBatch, target: RecordFormat, codecs: CodecTable) -> bytearray:
    """Encode the records with the target's magic.

    The result is one message if ``batch`` is compressed, or one message for each record.
    """
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    header = BatchHeader(
        base_offset=columns.offset[0],
        leader_epoch=batch.leader_epoch,
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
        append_time_ms=batch.max_timestamp_ms,
    )
    codec = codecs.by_id(batch.codec_id) if batch.codec_id else None
    try:
        return target.encode(columns, header, codec, None, keep_offsets=True)
    except InvalidRecordError as error:  # the batch can be decoded, but it breaks a rule of encoders
        raise CorruptBatchError(error.reason, "", batch.position) from error
