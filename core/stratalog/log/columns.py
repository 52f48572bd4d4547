"""Reading records, as columns.

Source: the filter for aborted transactions is that of apache/kafka's consumer (CompletedFetch).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from stratalog.errors import CorruptionError, SegmentGoneError
from stratalog.log.again import Again, ViewSource
from stratalog.model.batches import CONTROL_BIT, TRANSACTIONAL_BIT, BatchTable
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
            wanted = _wanted(table, start, stop, hidden)
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


def _wanted(table: BatchTable, start: int, stop: int, hidden: Mapping[int, list[AbortedTransaction]]) -> BatchTable:
    """The batches that hold something to show. ``hidden`` are aborted transactions, by producer id."""
    is_v2 = table.magic == 2
    # a wrapper of V0 or V1 tells only its last offset: what it holds begins somewhere after the entry before it
    firsts = table.base_offset if is_v2 else [0, *(last + 1 for last in table.last_offset[:-1])]
    controls = is_v2 and any(attributes & CONTROL_BIT for attributes in table.attributes)
    if not hidden and not controls and table.last_offset[0] >= start and firsts[-1] < stop:
        return table  # nearly always
    rows = zip(firsts, table.last_offset, table.attributes, table.producer_id, strict=True)
    return table.keep(
        [
            last >= start
            and first < stop
            and not (is_v2 and attributes & CONTROL_BIT)
            and not (is_v2 and attributes & TRANSACTIONAL_BIT and _is_aborted(first, hidden.get(producer, ())))
            for first, last, attributes, producer in rows
        ]
    )


def _is_aborted(first_offset: int, transactions: Sequence[AbortedTransaction]) -> bool:
    return any(gone.first_offset <= first_offset <= gone.last_offset for gone in transactions)


def _cut(columns: RecordColumns, start: int, stop: int) -> RecordColumns:
    if columns.count and columns.offset[0] >= start and columns.offset[-1] < stop:
        return columns
    return columns.take(bisect_left(columns.offset, start), bisect_left(columns.offset, stop))
