"""Plan of a read: ranges of offsets are divided into splits, each the work of one task.

The offsets in a plan determine which records each split contains, even if an index is wrong. The plan also contains
positions from indexes, with which a task reads only the bytes that it needs. A task checks each position against the
log before it uses the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.read_plan import hidden_transactions
from stratalog.log.read.view import ReadRange
from stratalog.model.arguments import Positive, checked
from stratalog.model.names import LOG_SUFFIX, TopicPartition
from stratalog.model.offsets import Isolation, OffsetPosition
from stratalog.model.segment_info import AbortedTransaction
from stratalog.reading.known_records import records_of
from stratalog.reading.reader import Reader
from stratalog.reading.split import PackedSegment, Piece, Split
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import byte_range, offset_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexReader
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier import Tier

LARGEST_SPLIT_BYTES: Final = 128 << 20  # also Spark's usual size for a task that reads files
SMALLEST_SPLIT_BYTES: Final = 4 << 20
MAX_SPLITS: Final = (
    20_000  # Spark's driver needs milliseconds and kilobytes for each task: a larger read gets larger splits
)
_KEPT_SEGMENTS: Final = 10_000  # if a plan has more segments, the reader releases each log that is planned
USUAL_SPLITS: Final = 8  # enough to keep a few cores busy to the end; a read of more than 1 GiB gets more


@checked
@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one log with offsets in [start, end), to plan a read of them.

    ``is_counted`` is True if only the number of records is requested. Then segments whose manifest entry has the record
    count are not read.
    """

    log: TopicPartition
    start: int
    end: int
    is_counted: bool = False


@checked
def plan_splits(
    reader: Reader,
    ranges: Iterable[OffsetRange],
    *,
    isolation: str = Isolation.READ_UNCOMMITTED,
    split_bytes: Positive | None = None,
    split_records: Positive | None = None,
    min_splits: Positive = 1,
    usual_splits: Positive = USUAL_SPLITS,
) -> list[Split]:
    """Divide ranges into splits of about equal size: offset ranges of large segments, and groups of small ones.

    No ``.log`` file is read. Indexes are read only for segments that are divided among splits, or that are partly
    outside of a range. If the plan has more than 10,000 segments, the reader releases each log after its segments are
    planned, to use less memory.

    Args:
        reader: reader of a directory or a tier; the plan is for the state of the logs in this reader.
        ranges: one for each log, consumed one by one; offsets outside of a log are ignored.
        isolation: isolation level. For ``read_committed``, the plan determines the aborted transactions from the
            transaction indexes.
        split_bytes: target size of a split. None means the total size divided by ``usual_splits``, but at least 4 MiB
            and at most 128 MiB, or more than 128 MiB if there would be more than 20,000 splits.
        split_records: maximal number of offsets of a split; None for no limit.
        min_splits: minimal number of splits; there can be fewer, because segments are divided only at index entries.
        usual_splits: target number of splits if ``split_bytes`` is None, such as the number of tasks that run at the
            same time.

    Raises:
        ConfigError: a size or number of splits is below 1, or the isolation level is unknown.
        The errors of ``Reader.log``, such as UnknownTopicError and StoreError.
        StoreError, CorruptionError: a page of the manifest or an index cannot be read.
    """
    isolation_level = Isolation.of(isolation)
    parts = list[_Part]()
    for offset_range in ranges:
        parts += _parts(reader.log(*offset_range.log), offset_range, isolation_level, split_records)
        if len(parts) > _KEPT_SEGMENTS:
            reader.release(offset_range.log)
    total = sum(part.piece.span_bytes for part in parts)
    largest = max(LARGEST_SPLIT_BYTES, -(-total // MAX_SPLITS))
    default_bytes = min(max(-(-total // usual_splits), SMALLEST_SPLIT_BYTES), largest)
    count = max(min_splits, -(-total // (split_bytes or default_bytes)), 1)
    target = max(-(-total // count), 1)
    pieces = [piece for part in parts for piece in part.cut(target, reader.tier)]
    return [Split(tuple(group), isolation_level) for group in _group_pieces(pieces, total, count, split_records)]


def _group_pieces(pieces: Sequence[Piece], total: int, count: int, most_records: int | None) -> Iterator[list[Piece]]:
    """Yield about ``count`` groups of adjacent pieces, of about the same size and at most ``most_records`` offsets."""
    group: list[Piece] = []
    number, planned_bytes, records = 0, 0, 0
    for piece in pieces:
        split_number = (2 * planned_bytes + piece.span_bytes) * count // (2 * total) if total else 0
        added_records = piece.end - piece.start
        if group and (split_number != number or (most_records is not None and records + added_records > most_records)):
            yield group
            group, records = [], 0
        group.append(piece)
        number, planned_bytes, records = split_number, planned_bytes + piece.span_bytes, records + added_records
    if group:
        yield group


class _Part(NamedTuple):
    """A piece before it is divided. ``segment`` is its segment if the segment is on local disk, otherwise None."""

    piece: Piece
    segment: ReadableSegment | None
    components: Components

    def cut(self, target_bytes: int, tier: Tier | None) -> Iterator[Piece]:
        """Divide the piece at entries of the offset index, and yield pieces of about ``target_bytes``."""
        piece = self.piece
        count = -(-piece.span_bytes // target_bytes)
        entries = self._entries(tier) if count > 1 else None
        if not entries:
            yield piece
            return
        start, position = piece.start, piece.position
        for number in range(1, count):
            entry = entries.after(piece.position + number * piece.span_bytes // count)
            if entry is None or not position < entry.position < piece.end_position:
                continue
            if not start <= entry.offset < piece.end - 1:
                continue
            # an index entry has the last offset of its batch, so the new piece ends after this batch
            next_entry = entries.after(entry.position + 1)
            cut_position = min(piece.end_position if next_entry is None else next_entry.position, piece.end_position)
            yield piece._replace(start=start, end=entry.offset + 1, position=position, end_position=cut_position)
            start, position = entry.offset + 1, min(cut_position, entry.position)
        yield piece._replace(start=start, position=position)

    def _entries(self, tier: Tier | None) -> IndexReader[OffsetPosition] | None:
        """Return the offset index of the segment; None if it is corrupt."""
        segment = self.segment
        if segment is None:
            stored_segment = self.piece.stored_segment()
            assert tier is not None  # a segment is either in a tier or local
            assert stored_segment is not None  # only a piece with an entry in a manifest is in a tier
            segment = RemoteSegment(stored_segment, tier.log(self.piece.log, stored_segment.info.topic_id).fetcher)
        try:
            return offset_index(segment, self.components)
        except CorruptIndexError:
            return None


def _parts(
    log: LogReader, offset_range: OffsetRange, isolation: Isolation, most_records: int | None
) -> Iterator[_Part]:
    """Yield the segments of a range, ascending, each in pieces of at most ``most_records`` offsets."""
    view = log.view()
    bound = view.bound(isolation)
    start, end = max(offset_range.start, view.offsets.log_start), min(offset_range.end, bound)
    aborted: tuple[AbortedTransaction, ...] = ()
    if start < end and isolation is Isolation.READ_COMMITTED:
        aborted = hidden_transactions(view, log.components, start, end)
    for first_offset in range(start, end, most_records or max(end - start, 1)):
        for part in view.ranges(first_offset, min(first_offset + most_records, end) if most_records else end):
            records = records_of(part, aborted) if offset_range.is_counted else None
            if records is not None:
                yield _Part(_unread(log, part.start, part.end, records=records), None, log.components)
            elif part.segment.size_bytes:
                local = part.segment if isinstance(part.segment, Segment) else None
                yield _Part(_piece(log, part, aborted), local, log.components)
    if view.damage is not None and start <= bound <= offset_range.end:  # a read to the log's end reports the damage
        yield _Part(_unread(log, bound, bound, damage=view.damage), None, log.components)


def _unread(
    log: LogReader, start: int, end: int, *, records: int | None = None, damage: CorruptBatchError | None = None
) -> Piece:
    """Return a piece from which nothing is read: it only has the number of its records, or the damage of the log."""
    return Piece(
        log=log.name,
        topic_id=log.topic_id,
        start=start,
        end=end,
        position=0,
        end_position=0,
        base_offset=start,
        end_offset=end,
        size_bytes=0,
        place="",
        damage=damage,
        records=records,
    )


def _piece(log: LogReader, part: ReadRange, aborted: Sequence[AbortedTransaction]) -> Piece:
    segment, start, end, next_segment = part
    position, end_position = byte_range(segment, start, end, log.components)
    return Piece(
        log=log.name,
        topic_id=log.topic_id,
        start=start,
        end=end,
        position=position,
        end_position=segment.size_bytes if end_position is None else end_position,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        place=_place(segment),
        is_active=next_segment is None,
        aborted=tuple(
            transaction
            for transaction in aborted
            if transaction.last_offset >= start and transaction.first_offset < end
        ),
        file_start=segment.start if isinstance(segment, Segment) else 0,
        file_bytes=segment.file.size_bytes if isinstance(segment, Segment) else 0,
    )


def _place(segment: ReadableSegment) -> str | PackedSegment:
    if isinstance(segment, RemoteSegment):
        return PackedSegment.of(segment.entry)
    assert isinstance(segment, Segment)  # a segment is either in a tier or local
    return segment.file_name(LOG_SUFFIX)
