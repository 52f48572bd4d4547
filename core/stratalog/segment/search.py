"""Search for offsets in a segment, local or in a tier. An index entry is a hint that is always checked.

Source: apache/kafka LogSegment.translateOffset; OffsetIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from stratalog.errors import CorruptBatchError, CorruptIndexError, StorageError, UnsupportedCompressionError
from stratalog.model.batches import BatchTable, RecordBatch
from stratalog.model.offsets import OffsetPosition
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexReader, IndexRole

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

NEAR_BYTES: Final = 16 << 10  # read size of a search if an index entry is near and reading is cheap
WINDOW_BYTES: Final = 36 << 10  # usual distance from an index entry to the end of the wanted batch
_PEEK_BYTES: Final = 4096  # read size for one batch, to avoid reading a megabyte


def offset_index(segment: ReadableSegment, components: Components) -> IndexReader[OffsetPosition]:
    """Return a reader of the segment's offset index."""
    entries = segment.index_entries(IndexRole.OFFSET)
    return cast(
        "IndexReader[OffsetPosition]", components.indexes[IndexRole.OFFSET].reader(entries, segment.base_offset)
    )


def transaction_index(segment: ReadableSegment, components: Components) -> IndexReader[AbortedTransaction]:
    """Return a reader of the segment's transaction index."""
    entries = segment.index_entries(IndexRole.TRANSACTION)
    return cast(
        "IndexReader[AbortedTransaction]",
        components.indexes[IndexRole.TRANSACTION].reader(entries, segment.base_offset),
    )


def index_floor(segment: ReadableSegment, offset: int, components: Components) -> OffsetPosition | None:
    """Return the last index entry at or below ``offset``; None if there is none, or if the index is damaged.

    An entry at position 0 is ignored. If the index is right, the entry's offset is the last offset of a batch.
    """
    if offset <= segment.base_offset:
        return None
    try:
        entries = segment.index_entries(IndexRole.OFFSET)
        entry, *_ = components.indexes[IndexRole.OFFSET].around(entries, segment.base_offset, offset)
    except CorruptIndexError:
        return None
    return entry if entry is not None and 0 < entry.position < segment.size_bytes else None


def agrees(tables: Sequence[BatchTable], indexed_offset: int) -> bool:
    """Return True if ``tables``, which were read from the position of an index entry, fit that entry.

    One of the batches must have the last offset ``indexed_offset``. It need not be the first one: Kafka before 4.1
    indexes the last offset of an append, which may be the last offset of a later batch.
    """
    if not tables or tables[0].last_offset[0] > indexed_offset:
        return False
    return any(indexed_offset in table.last_offset for table in tables)


def check_position(segment: ReadableSegment, position: int, offset: int, components: Components) -> int:
    """Return ``position`` (bytes) if a good batch begins there, at or below ``offset``; otherwise 0.

    The last offset of a batch of magic 0 or 1 must be at or below ``offset``, too, because it may not store its first
    offset.
    """
    batch = batch_at(segment, position, components) if position > 0 else None
    if batch is None:
        return 0
    is_honest = batch.last_offset <= offset or (batch.magic >= 2 and batch.base_offset <= offset)
    return position if is_honest else 0


def last_indexed_position(segment: ReadableSegment, components: Components) -> int:
    """Return the position (bytes) in the last offset index entry if a good batch begins there; otherwise 0."""
    reader = offset_index(segment, components)
    if not len(reader):
        return 0
    entry = reader[-1]
    batch = batch_at(segment, entry.position, components)
    return entry.position if batch is not None and batch.last_offset <= entry.offset else 0


def batch_at(segment: ReadableSegment, position: int, components: Components) -> RecordBatch | None:
    """Return the batch that starts at ``position``, with its CRC checked; None if no good batch starts there.

    The ``position`` of the returned batch is 0.
    """
    if not 0 <= position < segment.size_bytes:
        return None
    try:
        chunk = next(walk(segment, position, components, read_bytes=_PEEK_BYTES), None)
    except CorruptBatchError:
        return None
    return None if chunk is None else next(chunk.batches())


def chunks_from(
    segment: ReadableSegment,
    offset: int,
    components: Components,
    *,
    check_crc: bool = True,
    offset_limit: int | None = None,
    read_bytes: int = 0,
    stop_position: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
) -> Iterator[Chunk]:
    """Yield the chunks of a segment, from the batch that contains ``offset`` or an earlier batch on.

    ``walk`` documents the other arguments. Raises the same errors as ``walk``. If the index is wrong, the walk begins
    at the segment's start: this costs time, but never gives a wrong result.
    """
    walk_from = partial(
        walk,
        segment,
        check_crc=check_crc,
        read_bytes=read_bytes,
        offset_limit=offset_limit,
        stop_position=stop_position,
        read=read,
    )
    entry = index_floor(segment, offset, components)
    if entry is not None:
        chunks = walk_from(entry.position, components)
        try:
            first_chunk = next(chunks, None)
        except CorruptBatchError:
            first_chunk = None
        if first_chunk is not None and agrees(first_chunk.tables, entry.offset):
            yield first_chunk
            del first_chunk  # `read` may reuse the memory
            yield from chunks
            return
    yield from walk_from(0, components)


def byte_range(segment: ReadableSegment, start: int, stop: int, components: Components) -> tuple[int, int | None]:
    """Return a position (bytes) at or before the batches with offsets [start, stop), and one at or after their end.

    Both are from the index, which may be wrong, so the caller must check the batches. If the index has no entry for a
    position, the first position is 0, and the second is None.
    """
    floor, end = index_floor(segment, start, components), end_position(segment, stop, components)
    position = 0 if floor is None else floor.position
    return (position, end) if end is None or position < end else (0, None)


def end_position(segment: ReadableSegment, offset: int, components: Components) -> int | None:
    """Return a position (bytes) at which all batches below ``offset`` have ended, according to the index.

    The result is None if the index has no such entry or is damaged, or if ``offset`` is not below the segment's end
    offset.
    """
    if offset >= segment.end_offset:
        return None
    try:
        entries = segment.index_entries(IndexRole.OFFSET)
        floor, after, after_next = components.indexes[IndexRole.OFFSET].around(entries, segment.base_offset, offset - 1)
    except CorruptIndexError:
        return None
    entry: OffsetPosition | None = after if floor is not None and floor.offset == offset - 1 else after_next
    return entry.position if entry is not None and 0 < entry.position <= segment.size_bytes else None


def start_position(segment: ReadableSegment, offset: int, components: Components) -> int:
    """Return the position (bytes) where a search for ``offset`` begins; 0 if the index is wrong or has no entry."""
    try:
        first_chunk = next(chunks_from(segment, offset, components, read_bytes=_PEEK_BYTES), None)
    except CorruptBatchError:
        return 0
    return 0 if first_chunk is None else first_chunk.position


def find_batch(
    segment: ReadableSegment, offset: int, components: Components, *, read_bytes: int = 0
) -> tuple[int, RecordBatch] | None:
    """Return position and header of the first batch whose last offset is at or above ``offset``; None if there is none.

    CRCs are not checked. ``read_bytes`` is the size of a read; 0 means ``limits.read.bytes``. Raises the same errors as
    ``walk``.
    """
    for chunk in chunks_from(segment, offset, components, check_crc=False, read_bytes=read_bytes):
        for table in chunk.tables:
            index = bisect_left(table.last_offset, offset)
            if index < len(table):
                return chunk.position + table.position[index], table[index]
    return None


def aborted_transactions(
    segments: Iterable[ReadableSegment], start: int, end: int, components: Components
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with data in [start, end), from the transaction indexes of ``segments``.

    ``segments`` begins with the segment that holds ``start``. The search ends at an entry whose last stable offset is
    at or above ``end``: later entries have no data below ``end``.

    Source: apache/kafka TransactionIndex.collectAbortedTxns.
    """
    aborted: list[AbortedTransaction] = []
    for segment in segments:
        for entry in transaction_index(segment, components):
            if entry.last_offset >= start and entry.first_offset < end:
                aborted.append(entry)
            if entry.last_stable_offset >= end:
                return tuple(aborted)
    return tuple(aborted)


def decode(
    chunk: Chunk, table: BatchTable, segment: ReadableSegment, components: Components, fields: Fields
) -> Iterator[RecordColumns]:
    """Yield the records of ``table``, which has batches of ``chunk``, as columns of ``fields``.

    Raises the same errors as ``RecordFormat.decode``. A CorruptBatchError or UnsupportedCompressionError has the
    segment's file and the position in it.
    """
    if not len(table):
        return
    record_format = components.formats.get(table.magic) or components.formats.of(
        table.magic, segment.label, chunk.position
    )
    try:
        yield from record_format.decode(
            chunk.data, table, fields=fields, limit_bytes=components.limits.decompressed_bytes
        )
    except (CorruptBatchError, UnsupportedCompressionError) as error:
        raise _locate_error(error, chunk, segment) from error


def decode_arrow(
    chunk: Chunk,
    table: BatchTable,
    segment: ReadableSegment,
    components: Components,
    partition: int,
    columns: Sequence[str] | None,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of ``table``, which has batches of ``chunk``, as Arrow batches with these columns.

    ``partition`` is the value of the column ``partition``. Raises the same errors as ``decode``.
    """
    if not len(table):
        return
    record_format, limit_bytes = (
        components.formats.of(table.magic, segment.label, chunk.position),
        components.limits.decompressed_bytes,
    )
    try:
        yield from record_format.decode_arrow(
            chunk.data, table, partition=partition, limit_bytes=limit_bytes, columns=columns
        )
    except (CorruptBatchError, UnsupportedCompressionError) as error:
        raise _locate_error(error, chunk, segment) from error


def _locate_error(
    error: CorruptBatchError | UnsupportedCompressionError, chunk: Chunk, segment: ReadableSegment
) -> StorageError:
    """Return an error of a format with the segment's file and the position in it."""
    if isinstance(error, CorruptBatchError):
        return CorruptBatchError(error.reason, segment.label, chunk.position + error.position)
    position = -1 if error.position < 0 else chunk.position + error.position
    return UnsupportedCompressionError(error.reason, segment.label, position).advised(
        "install the plugin that has this codec; stratalog plugins shows the installed plugins and their errors"
    )
