"""Finding offsets and timestamps in a segment of either tier. An index is a hint: what it says is checked.

Source: apache/kafka LogSegment.translateOffset, findOffsetByTimestamp; OffsetIndex, TimeIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.batches import NO_TIMESTAMP, BatchTable, RecordBatch
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segments import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexReader, IndexRole

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_PEEK_BYTES: Final = 4096  # a look at one batch should not read a megabyte
NEAR_BYTES: Final = 1 << 14  # and looking for one, where an index entry is near and reading is cheap, not either


def offset_index(segment: ReadableSegment, parts: Components) -> IndexReader[OffsetPosition]:
    """A reader over the segment's offset index."""
    entries = segment.index_entries(IndexRole.OFFSET)
    return cast(IndexReader[OffsetPosition], parts.indexes[IndexRole.OFFSET].reader(entries, segment.base_offset))


def time_index(segment: ReadableSegment, parts: Components) -> IndexReader[TimestampOffset]:
    """A reader over the segment's time index."""
    entries = segment.index_entries(IndexRole.TIME)
    return cast(IndexReader[TimestampOffset], parts.indexes[IndexRole.TIME].reader(entries, segment.base_offset))


def transaction_index(segment: ReadableSegment, parts: Components) -> IndexReader[AbortedTransaction]:
    """A reader over the segment's transaction index."""
    entries = segment.index_entries(IndexRole.TRANSACTION)
    return cast(
        IndexReader[AbortedTransaction], parts.indexes[IndexRole.TRANSACTION].reader(entries, segment.base_offset)
    )


def start_position(segment: ReadableSegment, offset: int, parts: Components) -> int:
    """A position (bytes) of a batch at or before the one that holds ``offset``; 0 if the index does not help.

    The entry found is checked against the log: the batch there must be whole, with a good CRC, and must not start
    after ``offset``. An index that lies costs a scan from the segment's start, never an answer.
    """
    try:
        entry = offset_index(segment, parts).floor(offset)
    except CorruptIndexError:
        return 0
    if entry is None or entry.position <= 0:
        return 0
    batch = batch_at(segment, entry.position, parts)
    if batch is None:
        return 0
    honest = batch.last_offset <= offset or (batch.magic >= 2 and batch.base_offset <= offset)
    return entry.position if honest else 0


def batch_at(segment: ReadableSegment, position: int, parts: Components) -> RecordBatch | None:
    """The batch that starts at ``position``, its CRC checked; None if no good batch starts there."""
    if not 0 <= position < segment.size_bytes:
        return None
    try:
        chunk = next(walk(segment, position, parts, read_bytes=_PEEK_BYTES), None)
    except CorruptBatchError:
        return None
    return None if chunk is None else next(chunk.batches())


def chunks_from(
    segment: ReadableSegment,
    offset: int,
    parts: Components,
    *,
    check_crc: bool = True,
    below: int | None = None,
    read_bytes: int = 0,
) -> Iterator[Chunk]:
    """Batches of the segment, beginning at or before the one that holds ``offset``; else as ``walk``."""
    position = start_position(segment, offset, parts)
    return walk(segment, position, parts, check_crc=check_crc, read_bytes=read_bytes, below=below)


def find_batch(
    segment: ReadableSegment, offset: int, parts: Components, *, read_bytes: int = 0
) -> tuple[int, RecordBatch] | None:
    """Position and header of the first batch whose last offset is at or above ``offset``; None if there is none.

    ``read_bytes`` is how much to read at a time, 0 is ``limits.read.bytes``.
    """
    for chunk in chunks_from(segment, offset, parts, check_crc=False, read_bytes=read_bytes):
        for table in chunk.tables:
            index = bisect_left(table.last_offset, offset)
            if index < len(table):
                return chunk.position + table.position[index], table[index]
    return None


def find_timestamp(
    segment: ReadableSegment, timestamp_ms: int, min_offset: int, parts: Components
) -> TimestampOffset | None:
    """The first record with a timestamp at or above ``timestamp_ms`` and an offset at or above ``min_offset``.

    Control batches count, as in Kafka.
    """
    from_offset = max(_offset_before(segment, timestamp_ms, parts), min_offset)
    for chunk in chunks_from(segment, from_offset, parts):
        for table in chunk.tables:
            late = table.keep([stamp >= timestamp_ms for stamp in table.max_timestamp_ms])
            for columns in decode(chunk, late, segment, parts, Fields.OFFSET | Fields.TIMESTAMP):
                for offset, stamp in zip(columns.offset, columns.timestamp_ms, strict=True):
                    if stamp >= timestamp_ms and offset >= min_offset:
                        return TimestampOffset(stamp, offset)
    return None


def _offset_before(segment: ReadableSegment, timestamp_ms: int, parts: Components) -> int:
    """An offset before which every record is older than ``timestamp_ms``, from the time index if it tells the truth.

    An entry with this very timestamp is passed over: if its offset were wrong, an earlier record could be missed.
    """
    try:
        entry = time_index(segment, parts).floor(timestamp_ms - 1)
    except CorruptIndexError:
        return segment.base_offset
    if entry is None or entry.timestamp_ms >= timestamp_ms:
        return segment.base_offset
    if not segment.base_offset <= entry.offset < segment.end_offset:
        return segment.base_offset
    found = find_batch(segment, entry.offset, parts)
    if found is None or found[1].max_timestamp_ms != entry.timestamp_ms:
        return segment.base_offset
    return entry.offset


def largest_timestamp(segment: ReadableSegment, parts: Components) -> TimestampOffset:
    """The largest batch timestamp and the last offset of the first batch that has it; (-1, base) if there is none.

    The last time index entry is taken as a start and checked, then the batches after it are looked at, as Kafka does
    for a segment that it opens for appending.
    """
    best, from_offset = TimestampOffset(NO_TIMESTAMP, segment.base_offset), segment.base_offset
    try:
        reader = time_index(segment, parts)
        last = reader[-1] if len(reader) else None
    except CorruptIndexError:
        last = None
    if last is not None and segment.base_offset <= last.offset < segment.end_offset:
        found = find_batch(segment, last.offset, parts)
        if found is not None and found[1].max_timestamp_ms == last.timestamp_ms:
            best, from_offset = last, last.offset
    for chunk in chunks_from(segment, from_offset, parts, check_crc=False):
        for table in chunk.tables:
            top = max(table.max_timestamp_ms)
            if top > best.timestamp_ms:
                best = TimestampOffset(top, table.last_offset[list(table.max_timestamp_ms).index(top)])
    return best


def aborted_transactions(
    segments: Iterable[ReadableSegment], start: int, end: int, parts: Components
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions with data in [start, end), from the transaction indexes of the segments from ``start`` on.

    Source: apache/kafka TransactionIndex.collectAbortedTxns; the stop rule rests on the stored last stable offset.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        for entry in transaction_index(segment, parts):
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return tuple(found)
    return tuple(found)


def decode(
    chunk: Chunk, table: BatchTable, segment: ReadableSegment, parts: Components, fields: Fields
) -> Iterator[RecordColumns]:
    """The records of some rows of a chunk; errors name the segment's file and the position in it."""
    if not len(table):
        return
    found = parts.formats.of(table.magic, segment.label, chunk.position)
    with _named_errors(chunk, segment):
        yield from found.decode(chunk.data, table, fields=fields, limit_bytes=parts.limits.decompressed_bytes)


def decode_arrow(
    chunk: Chunk, table: BatchTable, segment: ReadableSegment, parts: Components, partition: int
) -> Iterator[pyarrow.RecordBatch]:
    """The same with all fields as Arrow batches, which say that they are of this partition."""
    if not len(table):
        return
    found, limit_bytes = parts.formats.of(table.magic, segment.label, chunk.position), parts.limits.decompressed_bytes
    with _named_errors(chunk, segment):
        yield from found.decode_arrow(chunk.data, table, partition=partition, limit_bytes=limit_bytes)


@contextmanager
def _named_errors(chunk: Chunk, segment: ReadableSegment) -> Iterator[None]:
    """Errors of a format get the segment's file and the position in it."""
    try:
        yield
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
