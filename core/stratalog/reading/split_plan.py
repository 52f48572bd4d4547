"""Planning a read: ranges of offsets become splits, each the work of one task.

A plan is made of offsets, which partition the log whatever an index says. Positions stand beside them as hints, so that
a task reads the bytes it needs and no index; each is checked against the log before it is believed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.view import LogView
from stratalog.model.arguments import Positive, checked
from stratalog.model.names import LOG_SUFFIX, TopicId, TopicPartition
from stratalog.model.offsets import Isolation, OffsetPosition
from stratalog.model.segment_info import AbortedTransaction
from stratalog.reading.reader import Reader
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import aborted_transactions, offset_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexReader
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.read.fetcher import RemoteSegment

LARGEST_SPLIT_BYTES: Final = 128 << 20  # what Spark gives a task of files, too
SMALLEST_SPLIT_BYTES: Final = 4 << 20
USUAL_SPLITS: Final = 8  # of what fits in so many of the largest: enough to keep a few cores busy to the end


@checked
@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one log with offsets in [start, end)."""

    log: TopicPartition
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one segment: records with offsets in [start, end).

    Attributes:
        log: whose.
        topic_id: of its topic, None where the directory is older than topic ids.
        start: first offset wanted.
        end: exclusive.
        position: where in the ``.log`` file (bytes) a batch at or before ``start`` should begin.
        end_position: where the batches behind ``end`` should begin.
        base_offset: of the segment.
        end_offset: of the segment.
        size_bytes: of the segment when the plan was made.
        place: the name of that file in the log's folder, or what the tier's manifest says of the segment.
        is_active: appends go there.
        aborted: transactions whose records are left out.
        damage: what is wrong at a log's end that was found cut or broken; such a piece has no records.
        file_start: where (bytes) in the file the segment begins: one of Kafka before 2.0 may be seen as several.
        file_bytes: of the file, whatever of it is the segment's; 0 is ``size_bytes``.
    """

    log: TopicPartition
    topic_id: TopicId | None
    start: int
    end: int
    position: int
    end_position: int
    base_offset: int
    end_offset: int
    size_bytes: int
    place: str | StoredSegment
    is_active: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    damage: CorruptBatchError | None = None
    file_start: int = 0
    file_bytes: int = 0

    @property
    def span_bytes(self) -> int:
        """About how many bytes of the ``.log`` file will be read."""
        return self.end_position - self.position


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads, in the order of partitions and offsets. Can be pickled; holds no secrets and no open files."""

    pieces: tuple[Piece, ...]
    isolation: Isolation

    @property
    def size_bytes(self) -> int:
        """About how many bytes of ``.log`` files will be read."""
        return sum(piece.span_bytes for piece in self.pieces)


@checked
def plan_splits(
    reader: Reader,
    ranges: Sequence[OffsetRange],
    *,
    isolation: str = Isolation.READ_UNCOMMITTED,
    split_bytes: Positive | None = None,
    min_splits: Positive = 1,
    usual_splits: Positive = USUAL_SPLITS,
) -> list[Split]:
    """Cut ranges into splits of about equal size: parts of large segments, many small ones together.

    Nothing of a ``.log`` file is read. Indexes are looked at only of segments that lie in a range in part, or are cut.

    Args:
        reader: of a directory or a tier; what it showed when its logs were opened is what is planned.
        ranges: one a log; what lies outside a log is left out without a word.
        isolation: how far a reader sees. What ``read_committed`` hides is worked out here, from transaction indexes.
        split_bytes: how large splits should be; None: a share of the whole, from 4 to 128 MiB.
        min_splits: at least so many, if there are so many places to cut.
        usual_splits: without ``split_bytes``, so many where they are of 4 to 128 MiB: for who knows how many tasks run at
            once.

    Raises:
        ConfigError: a number is below 1, or the isolation is unknown.
        UnknownTopicError: a log is not there.
        StoreError, CorruptManifestError: the tier cannot be read.
    """
    seen = Isolation.of(isolation)
    found = [part for wanted in ranges for part in _parts(reader.log(*wanted.log), wanted, seen)]
    total = sum(part.piece.span_bytes for part in found)
    usual = min(max(-(-total // usual_splits), SMALLEST_SPLIT_BYTES), LARGEST_SPLIT_BYTES)
    count = max(min_splits, -(-total // (split_bytes or usual)), 1)
    target = max(-(-total // count), 1)
    pieces = [piece for part in found for piece in part.cut(target)]
    return [Split(tuple(packed), seen) for packed in _packed(pieces, total, count)]


def _packed(pieces: Sequence[Piece], total: int, count: int) -> Iterator[list[Piece]]:
    """Neighbours together: ``count`` groups of about the same size, fewer if a piece is larger than that."""
    group: list[Piece] = []
    number, done = 0, 0
    for piece in pieces:
        here = (2 * done + piece.span_bytes) * count // (2 * total) if total else 0
        if group and here != number:
            yield group
            group = []
        group.append(piece)
        number, done = here, done + piece.span_bytes
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece as large as its segment allows, with what is needed to cut it."""

    piece: Piece
    segment: ReadableSegment | None = field(repr=False)
    parts: Components = field(repr=False)

    def cut(self, target_bytes: int) -> Iterator[Piece]:
        """Pieces of about ``target_bytes``, cut where the offset index has entries."""
        whole = self.piece
        count = -(-whole.span_bytes // target_bytes)
        entries = _entries(self.segment, self.parts) if count > 1 and self.segment is not None else None
        start, position = whole.start, whole.position
        for number in range(1, count):
            entry = entries.after(whole.position + number * whole.span_bytes // count) if entries else None
            if entry is None or not position < entry.position < whole.end_position:
                continue
            if not start <= entry.offset < whole.end - 1:
                continue
            # an entry names the last offset of its batch, which so belongs to the piece before
            after = entries.after(entry.position + 1) if entries else None
            until = min(whole.end_position if after is None else after.position, whole.end_position)
            yield replace(whole, start=start, end=entry.offset + 1, position=position, end_position=until)
            start, position = entry.offset + 1, min(until, entry.position)
        yield replace(whole, start=start, position=position)


def _parts(log: LogReader, wanted: OffsetRange, isolation: Isolation) -> Iterator[_Part]:
    """The segments of a range, ascending."""
    view = log.view()
    bound = view.bound(isolation)
    start, end = max(wanted.start, view.offsets.log_start), min(wanted.end, bound)
    if start < end:
        yield from _held(log, view, (start, end), isolation)
    if view.damage is not None and start <= bound <= wanted.end:  # who gets there is told
        yield _Part(_end(log, bound, view.damage), None, log.parts)


def _held(log: LogReader, view: LogView, span: tuple[int, int], isolation: Isolation) -> Iterator[_Part]:
    start, end = span
    hidden: tuple[AbortedTransaction, ...] = ()
    if isolation is Isolation.READ_COMMITTED:
        hidden = aborted_transactions(view.readable_from(start), start, end, log.parts)
    for segment in view.readable_from(start):
        if segment.base_offset >= end:
            return
        if segment.size_bytes:
            first, last = max(segment.base_offset, start), min(segment.end_offset, end)
            if first < last:
                yield _Part(_piece(log, view, segment, (first, last), hidden), segment, log.parts)
                start = last  # the next one may begin before this one ends: borders differ from tier to tier


def _end(log: LogReader, bound: int, damage: CorruptBatchError) -> Piece:
    """A piece without records that tells what is wrong where a log ends."""
    return Piece(log.name, log.topic_id, bound, bound, 0, 0, bound, bound, 0, "", damage=damage)


def _piece(
    log: LogReader,
    view: LogView,
    segment: ReadableSegment,
    span: tuple[int, int],
    hidden: Sequence[AbortedTransaction],
) -> Piece:
    start, end = span
    position, end_position = _positions(segment, start, end, log.parts)
    return Piece(
        log=log.name,
        topic_id=log.topic_id,
        start=start,
        end=end,
        position=position,
        end_position=end_position,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        place=_place(segment),
        is_active=view.is_active(segment),
        aborted=tuple(gone for gone in hidden if gone.last_offset >= start and gone.first_offset < end),
        file_start=segment.start if isinstance(segment, Segment) else 0,
        file_bytes=segment.log.size_bytes if isinstance(segment, Segment) else 0,
    )


def _place(segment: ReadableSegment) -> str | StoredSegment:
    if isinstance(segment, RemoteSegment):
        return segment.stored
    assert isinstance(segment, Segment)  # there are two tiers
    return segment.file_name(LOG_SUFFIX)


def _positions(segment: ReadableSegment, start: int, end: int, parts: Components) -> tuple[int, int]:
    """Between which positions the offsets [start, end) should be; the whole segment if the index does not tell."""
    whole = 0, segment.size_bytes
    if start <= segment.base_offset and end >= segment.end_offset:
        return whole
    entries = _entries(segment, parts)
    if entries is None:
        return whole
    first = entries.floor(start)
    behind = bisect_left(entries, end, key=lambda entry: entry.offset) + 1
    position = 0 if first is None else first.position
    end_position = entries[behind].position if behind < len(entries) else segment.size_bytes
    return (position, end_position) if 0 <= position < end_position <= segment.size_bytes else whole


def _entries(segment: ReadableSegment, parts: Components) -> IndexReader[OffsetPosition] | None:
    try:
        return offset_index(segment, parts)
    except CorruptIndexError:
        return None
