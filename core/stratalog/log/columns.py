"""Reading records, as columns.

Source: the filter for aborted transactions is that of apache/kafka's consumer (CompletedFetch).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from stratalog.errors import CorruptionError, SegmentGoneError
from stratalog.log.again import Again, ViewSource
from stratalog.model.batches import BatchTable
from stratalog.model.offsets import Isolation
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segments import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import aborted_transactions, chunks_from, decode


def read_columns(
    views: ViewSource, parts: Components, start: int, end: int | None, isolation: str, fields: Fields = Fields.ALL
) -> Iterator[RecordColumns]:
    """The data records with offsets in [start, end), at most up to the isolation's bound at the first step.

    ``start`` 0 is the log start. Control records, and for read_committed aborted ones, are left out. CRCs are checked.
    A segment that retention takes away meanwhile is read on from the tier.

    Raises:
        OffsetOutOfRangeError: ``start`` is below the log start (and not 0) or above the log end.
        CorruptBatchError: a bad entry; all good records before it have been yielded.
    """
    view = views()
    if start == 0:
        start = view.offsets.log_start
    view.check_range(start)
    bound = view.bound(isolation)
    stop = bound if end is None else min(end, bound)
    fields |= Fields.OFFSET
    aborted: tuple[AbortedTransaction, ...] = ()
    if isolation == Isolation.READ_COMMITTED:
        aborted = aborted_transactions(view.readable_from(start), start, stop, parts)
    hidden = _by_producer(aborted)
    position, again = start, Again(views)
    while position < stop:
        segment = view.segment_at(position)
        if segment is None:
            break
        try:
            below = None if view.is_active(segment) else segment.end_offset
            chunks = chunks_from(segment, position, parts, below=below)
            for columns, next_offset in _segment_columns(segment, chunks, parts, position, stop, fields, hidden):
                position = next_offset
                if columns is not None:
                    yield columns
        except (SegmentGoneError, CorruptionError) as error:
            view = again.after(error, view, segment)
            continue
        position = max(position, segment.end_offset)
    if view.damage is not None and (end is None or end > stop):
        raise view.damage.with_traceback(None)


def _segment_columns(
    segment: ReadableSegment,
    chunks: Iterator[Chunk],
    parts: Components,
    start: int,
    stop: int,
    fields: Fields,
    hidden: Mapping[int, list[AbortedTransaction]],
) -> Iterator[tuple[RecordColumns | None, int]]:
    """Columns of [start, stop) in one segment, each with the offset to go on from when it has been used."""
    for chunk in chunks:
        for table in chunk.tables:
            wanted = table.keep(_wanted(table, start, stop, hidden))
            for columns in decode(chunk, wanted, segment, parts, fields):
                cut = _cut(columns, start, stop)
                if cut.count:
                    yield cut, cut.offset[-1] + 1
            next_offset = table.last_offset[-1] + 1
            yield None, min(next_offset, stop)
            if next_offset >= stop:
                if _leaps(table, stop):
                    next(chunks, None)
                return


def _leaps(table: BatchTable, stop: int) -> bool:
    """Whether the last batch is the first to reach ``stop``, from beyond it.

    Compaction leaves such gaps, and so does a damaged offset: then the next batch does not follow, and says so.
    """
    row = bisect_left(table.last_offset, stop - 1)
    return row == len(table) - 1 and table.base_offset[row] >= stop


def _by_producer(aborted: Sequence[AbortedTransaction]) -> dict[int, list[AbortedTransaction]]:
    grouped: dict[int, list[AbortedTransaction]] = {}
    for transaction in aborted:
        grouped.setdefault(transaction.producer_id, []).append(transaction)
    return grouped


def _wanted(table: BatchTable, start: int, stop: int, hidden: Mapping[int, list[AbortedTransaction]]) -> list[bool]:
    """For each batch whether it holds something to show. ``hidden`` are aborted transactions, by producer id."""
    result, before = [], -1
    for batch in table:
        # a wrapper of V0 or V1 tells only its last offset: what it holds begins somewhere after the entry before it
        first = batch.base_offset if batch.magic == 2 else before + 1
        before = batch.last_offset
        inside = batch.last_offset >= start and first < stop
        aborted = batch.is_transactional and any(
            gone.first_offset <= batch.base_offset <= gone.last_offset for gone in hidden.get(batch.producer_id, ())
        )
        result.append(inside and not aborted and not batch.is_control)
    return result


def _cut(columns: RecordColumns, start: int, stop: int) -> RecordColumns:
    if columns.count and columns.offset[0] >= start and columns.offset[-1] < stop:
        return columns
    return columns.take(bisect_left(columns.offset, start), bisect_left(columns.offset, stop))
