"""Read of one split of a read plan, in any process, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    CorruptBatchError,
    CorruptionError,
    LogDirNotFoundError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    SegmentGoneError,
    UnknownTopicError,
)
from stratalog.log.read.columns import read_arrow, segment_arrow
from stratalog.log.read.retry_read import DamagedReads
from stratalog.model.arguments import checked
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.reading.read_source import ReadSource
from stratalog.reading.split import Piece, Split
from stratalog.reading.split_opener import SplitOpener
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import batch_at, check_position
from stratalog.segment.segment_check import good_batch_after

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

BATCH_BYTES: Final = 1 << 20
LARGEST_BATCH_BYTES: Final = 4 << 20
_HAS_BOUNDS: Final = 2  # the first magic with a first offset in its headers


class Scanned(NamedTuple):
    """Records of one log as an Arrow batch with the chosen columns of ``arrow_schema()``."""

    log: TopicPartition
    batch: pyarrow.RecordBatch


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A damaged range of a log that ``scan`` skipped: no record with an offset in [start, end) was read.

    ``scan`` skipped ``size_bytes`` bytes from ``position`` of ``file``. ``reason`` describes the damage.
    """

    log: TopicPartition
    start: int
    end: int
    file: str
    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets [start, end) of a plan whose records no longer exist, for example after retention.

    ``log_start`` and ``log_end`` (exclusive) are the bounds of the records that can be read now; both are 0 if the
    topic was deleted.
    """

    log: TopicPartition
    start: int
    end: int
    log_start: int
    log_end: int


@checked
def scan(
    source: ReadSource,
    split: Split,
    *,
    columns: Sequence[str] | None = None,
    on_damage: Callable[[DamagedRange], None] | None = None,
    on_loss: Callable[[MissingRange], None] | None = None,
) -> Iterator[Scanned]:
    """Yield the records of a split in Arrow batches of about 1 to 5 MiB, ascending by offset within each piece.

    An Arrow batch may be smaller at the end of a partition and next to a large one. It is larger if a single record is
    larger. CRCs are checked. Control records are left out. For ``read_committed``, records of aborted transactions are
    left out, too. A piece with a known number of records (``Piece.records``) is not read, and gives no batch. If a
    segment was deleted or replaced after the plan was made, the scan opens the whole source, and reads the current
    segments of the log.

    Args:
        source: source of the plan; it is open while the iteration runs.
        split: split of a plan.
        columns: names of the columns, in the order of the batches; only these are decoded. None means all.
        on_damage: called for each damaged range, which is then skipped. If None, the scan raises CorruptBatchError.
        on_loss: called for records that no longer exist. If None, the scan raises OffsetOutOfRangeError.

    Raises:
        ConfigError: a column does not exist, or is named twice.
        CorruptBatchError: a batch is damaged, and ``on_damage`` is None; all records before it have been yielded.
        OffsetOutOfRangeError: records no longer exist, and ``on_loss`` is None; later records were not read.
        PluginImportError: pyarrow is not installed; the text names the extra.
        StoreError, LogDirError: the source cannot be read.
    """
    with SplitOpener(source, split) as place:
        for log, pieces in groupby(split.pieces, key=attrgetter("log")):
            work = PieceReader(place, split.isolation, columns, on_damage, on_loss)
            batches = (batch for piece in pieces if piece.records is None for batch in work.read(piece))
            yield from (Scanned(log, batch) for batch in _resize_batches(batches))


class PieceReader:
    """Reads pieces of one log. ``place`` opens the segments; see ``scan`` for the other arguments."""

    def __init__(
        self,
        place: SplitOpener,
        isolation: Isolation,
        columns: Sequence[str] | None,
        on_damage: Callable[[DamagedRange], None] | None,
        on_loss: Callable[[MissingRange], None] | None,
    ) -> None:
        self._place, self._isolation, self._columns = place, isolation, columns
        self._on_damage, self._on_loss = on_damage, on_loss
        self._offset = 0  # next offset of the current piece
        self._walked = 0  # offset after the last batch that was read, which may be before the piece

    def read(self, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of one piece as Arrow batches; raise the errors and call the callbacks of ``scan``."""
        self._offset, self._walked = piece.start, piece.base_offset
        if piece.damage is not None:
            self._report_damage(piece, piece.damage, piece.end, piece.damage.position)
            return
        try:
            with self._place.segment(piece) as segment:
                yield from self._read_planned(piece, segment)
        except (SegmentGoneError, ObjectNotFoundError, LogDirNotFoundError):
            yield from self._read_where_stored_now(piece)

    def _read_planned(self, piece: Piece, segment: ReadableSegment) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of a piece from the segment that the plan names."""
        components, end_below = self._place.components, None if piece.is_active else piece.end_offset
        position = check_position(segment, piece.position, piece.start, components)
        damaged = DamagedReads()  # the second error at a position skips the batch
        while self._offset < piece.end:
            chunks = walk(segment, position, components, offset_limit=end_below, stop_position=piece.end_position)
            span = range(self._offset, piece.end)
            try:
                batches = segment_arrow(
                    segment, chunks, span, piece.aborted, components, piece.log.partition, self._columns
                )
                for batch, offset in batches:
                    self._walked, self._offset = offset, max(self._offset, offset)
                    if batch is not None:
                        yield batch
            except CorruptionError as error:
                if not damaged.should_repeat(error, segment):
                    if not isinstance(error, CorruptBatchError):
                        raise
                    position = self._skip_entry(piece, segment, error)
            else:
                return

    def _skip_entry(self, piece: Piece, segment: ReadableSegment, error: CorruptBatchError) -> int:
        """Skip a damaged batch, report its offsets, and return the position in the segment where reading continues."""
        components = self._place.components
        valid_batch = batch_at(segment, error.position, components)
        if valid_batch is not None:  # the CRC is right, but the records were written wrong
            position, next_offset = error.position + valid_batch.size_bytes, valid_batch.next_offset
            limit = next_offset
        else:
            good_position = good_batch_after(segment, error.position, self._walked, components)
            next_batch = None if good_position is None else batch_at(segment, good_position, components)
            if good_position is None or next_batch is None:
                position, next_offset = segment.size_bytes, piece.end_offset
                limit = next_offset
            else:
                position, limit = good_position, next_batch.base_offset
                # a compressed message of magic 0 or 1 stores only its last offset
                has_first = next_batch.magic >= _HAS_BOUNDS or not next_batch.codec_id
                next_offset = limit if has_first else self._offset
        if limit > piece.start:  # otherwise all damaged offsets are before the piece
            self._report_damage(piece, error, next_offset, position)
        self._walked, self._offset = max(self._walked, next_offset), max(self._offset, next_offset)
        return position

    def _report_damage(self, piece: Piece, error: CorruptBatchError, end: int, end_position: int) -> None:
        if self._on_damage is None:
            raise error.with_traceback(None)
        start = min(max(self._offset, piece.start), end)
        size_bytes = end_position - error.position
        self._on_damage(DamagedRange(piece.log, start, end, error.file, error.position, size_bytes, error.reason))

    def _read_where_stored_now(self, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rest of a piece, whose segment is gone, from the log's current segments; report lost records."""
        reader = self._place.reader
        try:
            log = reader.log(*piece.log)
        except UnknownTopicError:
            self._report_missing(piece, piece.end, 0, 0)
            return
        offsets = log.offsets()
        if log.topic_id != piece.topic_id:  # the topic was deleted and created again
            self._report_missing(piece, piece.end, offsets.log_start, offsets.log_end)
            return
        if offsets.log_start > self._offset:
            self._report_missing(piece, min(offsets.log_start, piece.end), offsets.log_start, offsets.log_end)
        visible_end = offsets.bound(self._isolation)
        stop = min(piece.end, visible_end)
        if self._offset < stop:
            isolation, partition = str(self._isolation), piece.log.partition
            yield from read_arrow(log.view, log.components, self._offset, stop, isolation, partition, self._columns)
            self._offset = stop
        if self._offset < piece.end:
            self._report_missing(piece, piece.end, offsets.log_start, visible_end)

    def _report_missing(self, piece: Piece, end: int, log_start: int, log_end: int) -> None:
        if self._on_loss is None:
            raise OffsetOutOfRangeError(str(piece.log), self._offset, log_start, log_end)
        self._on_loss(MissingRange(piece.log, self._offset, end, log_start, log_end))
        self._offset = end


def _resize_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of ``batches`` in the same order, in batches of about 1 to 5 MiB."""
    waiting: list[pyarrow.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.nbytes > LARGEST_BATCH_BYTES:
            if waiting:
                yield _join(waiting)
                waiting, size_bytes = [], 0
            yield from _cut(batch)
            continue
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= BATCH_BYTES:
            yield _join(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    pa = import_module("pyarrow")
    merged: pyarrow.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return merged


def _cut(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    rows = max(batch.num_rows * (LARGEST_BATCH_BYTES // 2) // batch.nbytes, 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
