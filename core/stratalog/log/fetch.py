"""Reading a log: raw batches for machines, columns of records for everybody else.

Source: apache/kafka UnifiedLog.read, LogSegment.read; the aborted filter is that of its consumer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from stratalog.errors import SegmentGoneError
from stratalog.log.view import LogView
from stratalog.model.batches import BatchTable, Buffer
from stratalog.model.offsets import Isolation, LogOffsets
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segments import AbortedTransaction, FileSlice
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import aborted_transactions, chunks_from, decode, find_batch

ViewSource = Callable[[], LogView]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Raw batches, as they stand in the log; whole ones only. Release it (or leave its ``with`` block) after use.

    Attributes:
        slices: the bytes, in order; empty at the end of what the isolation shows. The first batch may begin below the
            offset asked for: a reader drops those records.
        next_offset: where to fetch next; the offset asked for if nothing was returned.
        offsets: all bounds of the log, of the same view.
        aborted_transactions: for read_committed, those with data in the range; else empty.
    """

    slices: tuple[FileSlice, ...]
    next_offset: int
    offsets: LogOffsets
    aborted_transactions: tuple[AbortedTransaction, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all slices."""
        return sum(piece.size_bytes for piece in self.slices)

    def read(self) -> bytes:
        """All bytes, copied."""
        return b"".join(piece.data for piece in self.slices)

    def release(self) -> None:
        """Unpin the slices. Twice is fine."""
        for piece in self.slices:
            piece.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def fetch(views: ViewSource, parts: Components, offset: int, max_bytes: int, isolation: str) -> Fetched:
    """Whole batches from the one that holds ``offset``, of one segment, at most ``max_bytes`` but at least one.

    Raises:
        OffsetOutOfRangeError: ``offset`` is below the log start or above the log end.
        CorruptBatchError: there is a bad entry where the first batch should be.
    """
    while True:
        view = views()
        view.check_range(offset)
        bound = view.bound(isolation)
        try:
            return _fetch(view, parts, offset, max_bytes, bound, isolation)
        except SegmentGoneError:
            if views() is view:
                raise


def _fetch(view: LogView, parts: Components, offset: int, max_bytes: int, bound: int, isolation: str) -> Fetched:
    for segment in view.readable_from(offset) if offset < bound else ():
        found = find_batch(segment, offset, parts)
        if found is None:
            continue
        position, first = found
        if first.base_offset >= bound and first.last_offset >= bound:
            break
        want = max(first.size_bytes, min(max_bytes, segment.size_bytes - position))
        piece = segment.slice(position, want)
        try:
            size, last_offset = _whole_batches(piece.data, bound, parts)
            piece.data = piece.data[:size]
            aborted: tuple[AbortedTransaction, ...] = ()
            if isolation == Isolation.READ_COMMITTED:
                aborted = aborted_transactions(view.readable_from(offset), offset, last_offset + 1, parts)
        except BaseException:
            piece.release()
            raise
        return Fetched((piece,), last_offset + 1, view.offsets, aborted)
    if view.damage is not None and offset >= view.offsets.log_end:
        raise view.damage
    return Fetched((), offset, view.offsets)


def _whole_batches(data: Buffer, bound: int, parts: Components) -> tuple[int, int]:
    """Size of the whole batches in ``data`` that begin below ``bound``, and the last offset in them."""
    size, last_offset = 0, -1
    for table in scan(parts.formats, data, 0, len(data), check_crc=False).tables:
        for index in range(len(table)):
            if size and table.base_offset[index] >= bound:
                return size, last_offset
            size = table.position[index] + table.size_bytes[index]
            last_offset = table.last_offset[index]
    return size, last_offset


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
    position = start
    while position < stop:
        segment = view.segment_at(position)
        if segment is None:
            break
        try:
            for columns, next_offset in _segment_columns(segment, parts, position, stop, fields, aborted):
                position = next_offset
                if columns is not None:
                    yield columns
        except SegmentGoneError:
            newer = views()
            if newer is view:
                raise
            view = newer
            continue
        position = max(position, segment.end_offset)
    if view.damage is not None and (end is None or end > stop):
        raise view.damage


def _segment_columns(
    segment: ReadableSegment,
    parts: Components,
    start: int,
    stop: int,
    fields: Fields,
    aborted: tuple[AbortedTransaction, ...],
) -> Iterator[tuple[RecordColumns | None, int]]:
    """Columns of [start, stop) in one segment, each with the offset to go on from when it has been used."""
    for chunk in chunks_from(segment, start, parts):
        for table in chunk.tables:
            wanted = table.keep(_wanted(table, start, stop, aborted))
            for columns in decode(chunk, wanted, segment, parts, fields):
                cut = _cut(columns, start, stop)
                if cut.count:
                    yield cut, cut.offset[-1] + 1
            next_offset = table.last_offset[-1] + 1
            yield None, min(next_offset, stop)
            if next_offset >= stop:
                return


def _wanted(table: BatchTable, start: int, stop: int, aborted: tuple[AbortedTransaction, ...]) -> list[bool]:
    result, before = [], -1
    for batch in table:
        # a wrapper of V0 or V1 tells only its last offset: what it holds begins somewhere after the entry before it
        first = batch.base_offset if batch.magic == 2 else before + 1
        before = batch.last_offset
        hidden = batch.is_control or (
            batch.is_transactional
            and any(
                batch.producer_id == gone.producer_id and gone.first_offset <= batch.base_offset <= gone.last_offset
                for gone in aborted
            )
        )
        result.append(batch.last_offset >= start and first < stop and not hidden)
    return result


def _cut(columns: RecordColumns, start: int, stop: int) -> RecordColumns:
    if columns.count and columns.offset[0] >= start and columns.offset[-1] < stop:
        return columns
    return columns.take(bisect_left(columns.offset, start), bisect_left(columns.offset, stop))
