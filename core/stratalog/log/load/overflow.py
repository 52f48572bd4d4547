"""Segments with offsets that exceed the base offset by more than 2^31 - 1, as Kafka before 2.0 wrote them.

No index can store such offsets. When a log is opened for writing, each of these segments is split, with the protocol
that replaces cleaned segments. Therefore the cleaner and the tier never process such a segment. A reader of the folder
changes no file: it reads each part of the segment as a separate segment. Unlike stratalog, Kafka splits a segment when
recovery or the cleaner finds the overflow.

Source: apache/kafka LocalLog.splitOverflowedSegment, LogSegment.appendFromFile, LogLoader.retryOnOffsetOverflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, CorruptionError, UnsupportedCompressionError
from stratalog.log.folder.folder import UNKNOWN_END, file_names, open_segments, set_aside
from stratalog.log.folder.swap_files import swap_in
from stratalog.model.batches import BatchTable
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.records import Fields
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME, FRAME_BYTES, MAX_RELATIVE_OFFSET, Chunk, OffsetOverflowError, walk
from stratalog.segment.search import decode, last_indexed_position, transaction_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles

_COPY_BYTES: Final = 1 << 20
_PEEK_BYTES: Final = 4096  # a check of one batch should not read a megabyte


@dataclass(frozen=True, slots=True)
class OverflowRange:
    """Part of a segment that becomes a separate segment.

    ``base_offset`` is the first offset in the part, as in Kafka. The part's positions (bytes) are ``[start, end)``.
    """

    base_offset: int
    start: int
    end: int


class SegmentOverflow(Exception):  # noqa: N818 - no error: loading restarts with other segments
    """Signal of the loader that ``segment`` must be split into ``spans``, after which loading starts again."""

    def __init__(self, segment: Segment, spans: Sequence[OverflowRange]) -> None:
        super().__init__(segment, spans)
        self.segment, self.spans = segment, spans


# --- finding overflows -----------------------------------------------------------------------------------------------


def find_closed_spans(segment: Segment, components: Components) -> list[OverflowRange]:
    """Return the ranges that a closed segment must be split into; empty if it needs no split.

    The result is also empty if the segment is damaged before the first offset that does not fit.

    The file is read only if the segment's offset range allows an overflow. Usually only the bytes after the position of
    the last index entry are read.
    """
    if segment.end_offset - segment.base_offset <= MAX_RELATIVE_OFFSET + 1:
        return []
    return _spans(segment, components, offset_limit=segment.end_offset, known_end=segment.end_offset)


def find_active_spans(segment: Segment, components: Components, known_end: int) -> list[OverflowRange]:
    """Return the ranges that the active segment must be split into; empty if it needs no split.

    The result is also empty if the segment is damaged before the first offset that does not fit.

    The file is always read, but usually only the bytes after the position of the last index entry. ``known_end`` is the
    largest log end in a checkpoint: an overflowing offset below it is not damage.
    """
    return _spans(segment, components, offset_limit=None, known_end=known_end)


def _spans(
    segment: Segment, components: Components, *, offset_limit: int | None, known_end: int
) -> list[OverflowRange]:
    try:
        for _ in walk(segment, last_indexed_position(segment, components), components, offset_limit=offset_limit):
            pass
    except CorruptBatchError as error:
        return spans_at(error, segment, components, offset_limit=offset_limit, known_end=known_end)
    return []


def spans_at(
    error: CorruptBatchError, segment: Segment, components: Components, *, offset_limit: int | None, known_end: int
) -> list[OverflowRange]:
    """Return the ranges that a segment must be split into because of ``error``; empty if ``error`` is real damage.

    The CRC of a batch does not cover the offset, so an offset that is too high may be damage. The offset is correct if
    a good batch with a higher offset follows, or if no good batch follows and the offset is below ``known_end``.

    Args:
        error: the error that ended a walk through the segment; everything before its position is good.
        segment: the segment of this walk.
        components: the log's components.
        offset_limit: exclusive upper bound of the segment's offsets; None for the active segment.
        known_end: the largest exclusive end offset of the log that a checkpoint or the next segment proves.
    """
    if not isinstance(error, OffsetOverflowError) or not _is_believed(
        segment, error.position, components, offset_limit, known_end
    ):
        return []
    spans = list[OverflowRange]()
    start, base, position = 0, _first_offset(segment, 0, components), error.position
    while True:
        try:
            for _ in walk(segment, position, components, offset_limit=offset_limit, relative_to=base):
                pass
        except OffsetOverflowError as next_error:
            if _is_believed(segment, next_error.position, components, offset_limit, known_end):
                spans.append(OverflowRange(base, start, next_error.position))
                start = position = next_error.position
                base = _first_offset(segment, start, components)
                continue
        except CorruptBatchError:
            pass  # damaged bytes stay after the last good batch
        return [*spans, OverflowRange(base, start, segment.size_bytes)]


def _is_believed(
    segment: Segment, position: int, components: Components, offset_limit: int | None, known_end: int
) -> bool:
    good_batch = _read_good_batch(segment, position, components)
    if good_batch is None or (offset_limit is not None and good_batch[1][0].last_offset >= offset_limit):
        return False
    first = good_batch[1][0]
    next_batch = _read_good_batch(segment, position + first.size_bytes, components)
    return first.last_offset < known_end if next_batch is None else first.last_offset < next_batch[1][0].base_offset


def _first_offset(segment: Segment, position: int, components: Components) -> int:
    """Return the offset of the first record (or inner message, if compressed) of the good batch at ``position``."""
    good_batch = _read_good_batch(segment, position, components)
    assert good_batch is not None  # the caller's walk has passed this batch
    chunk, table = good_batch
    if table.magic < 2 and table.record_count[0] < 0:
        try:
            return next(decode(chunk, table, segment, components, Fields.OFFSET)).offset[0]
        except (CorruptionError, UnsupportedCompressionError):
            return table.last_offset[0]  # the inner messages are unreadable
    return table.base_offset[0]


def _read_good_batch(segment: Segment, position: int, components: Components) -> tuple[Chunk, BatchTable] | None:
    """Return the good batch at ``position`` as a table of one row, even if its offset is too high; None if damaged."""
    head = segment.read(position, FRAME_BYTES) if position < segment.size_bytes else b""
    if len(head) < FRAME_BYTES:
        return None
    try:
        relative_to: int = FRAME.unpack_from(head)[0]
        chunk = next(walk(segment, position, components, relative_to=relative_to, read_bytes=_PEEK_BYTES))
    except CorruptBatchError:
        return None
    return chunk, chunk.tables[0].take(0, 1)


# --- reading and splitting -------------------------------------------------------------------------------------------


def pieces_of(segment: Segment, spans: Sequence[OverflowRange], stack: ExitStack) -> list[Segment]:
    """Return the parts of an overflowed segment as segments over the same file; ``stack`` closes them."""
    name, ends = segment.file_name(LOG_SUFFIX), [*(span.base_offset for span in spans[1:]), segment.end_offset]
    pieces = list[Segment]()
    for span, end in zip(spans, ends, strict=True):
        piece = Segment(
            segment.files,
            span.base_offset,
            end,
            segment.components,
            segment.files.open_segment(name),
            size_bytes=span.end - span.start,
            names={**(segment.names if span.base_offset == segment.base_offset else {}), LOG_SUFFIX: name},
            start=segment.start + span.start,
        )
        stack.callback(piece.close)
        pieces.append(piece)
    return pieces


def open_pieces(
    files: LogFiles, components: Components, stack: ExitStack, *, names: list[str] | None = None
) -> list[Segment]:
    """Open the live segments of a folder read-only. The parts of an overflowed closed segment are separate segments."""
    segments = list[Segment]()
    for segment in open_segments(files, components, stack, writable=False, names=names):
        spans = find_closed_spans(segment, components) if segment.end_offset != UNKNOWN_END else []
        if spans:
            segment.close()
        segments += pieces_of(segment, spans, stack) if spans else [segment]
    return segments


def split_segment(segment: Segment, spans: Sequence[OverflowRange], config: TopicConfig) -> list[str]:
    """Replace an overflowed segment with its parts, which get their own indexes, and close the overflowed segment.

    The replacement is atomic, even in a crash. The bytes of the log do not change. Damaged bytes at the end of the
    segment stay at the end of the last part.

    Returns:
        The names of the segment's ``.deleted`` files, which the caller removes later.

    Raises:
        DiskFullError: the disk has no room for a second copy of the segment; nothing is changed.
        LogDirOfflineError: writing failed.
    """
    files, aborted = segment.files, _read_aborted(segment)
    modified_ms, new_segments = segment.file.modified_ms, list[BuiltSegment]()
    try:
        with ExitStack() as stack:
            for piece in pieces_of(segment, spans, stack):
                with SegmentBuilder(files, piece.base_offset, piece.components, config) as builder:
                    _copy(piece, builder, aborted or {})
                    new_segments.append(builder.finish(piece.end_offset, modified_ms))
                if aborted is None:  # without an offset index, the loader rebuilds all indexes
                    files.remove(new_segments[-1].names[piece.components.indexes[IndexRole.OFFSET].suffix])
    except BaseException:
        for new_segment in new_segments:
            new_segment.discard()
        raise
    finally:
        segment.close()
    keeps_snapshot = spans[0].base_offset == segment.base_offset
    return swap_in(files, new_segments, lambda _: set_aside(files, segment, keep_snapshot=keeps_snapshot))


def _read_aborted(segment: Segment) -> dict[int, AbortedTransaction] | None:
    """Return the aborted transactions in the segment's index, by marker offset; None if the indexes must be rebuilt."""
    has_offsets = segment.file_name(segment.components.indexes[IndexRole.OFFSET].suffix) in file_names(segment.files)
    if not has_offsets or not segment.is_sound(IndexRole.TRANSACTION):
        return None
    return {entry.last_offset: entry for entry in transaction_index(segment, segment.components)}


def _copy(piece: Segment, builder: SegmentBuilder, aborted: dict[int, AbortedTransaction]) -> None:
    """Write the valid batches of a part of a split segment, and then the bytes after them."""
    position = 0
    try:
        for chunk in walk(piece, 0, piece.components):
            builder.append(chunk.data[: chunk.end_position - chunk.position], aborted)
            position = chunk.end_position
    except CorruptBatchError:
        for start in range(position, piece.size_bytes, _COPY_BYTES):
            builder.append_damaged(piece.read(start, _COPY_BYTES))
