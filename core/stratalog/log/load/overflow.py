"""Segments whose offsets reach further above their base than 31 bits can say, as Kafka before 2.0 made them.

No index can name such offsets. Who opens a log for writing gets each of these segments split, by the protocol that puts
cleaned segments in place; so the cleaner and the tier never meet one. A reader sees the same pieces as parts of the one
file, which stays as it is. Kafka splits a segment when recovery or the cleaner stumbles over it.

Source: apache/kafka LocalLog.splitOverflowedSegment, LogSegment.appendFromFile, LogLoader.retryOnOffsetOverflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.log.folder.folder import UNKNOWN_END, file_names, open_segments, set_aside
from stratalog.log.folder.swap_files import rename_to_live, rename_to_swap
from stratalog.model.batches import BatchTable
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.records import Fields
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME, FRAME_BYTES, MAX_RELATIVE_OFFSET, Chunk, OffsetOverflowError, walk
from stratalog.segment.search import decode, last_indexed_position, transaction_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles

_COPY_BYTES: Final = 1 << 20
_PEEK_BYTES: Final = 4096  # a look at one batch should not read a megabyte


@dataclass(frozen=True, slots=True)
class Span:
    """What becomes one segment: its base, which is the first offset in it as Kafka has it, and [start, end) in bytes."""

    base_offset: int
    start: int
    end: int


class SegmentOverflow(Exception):  # noqa: N818 - no error: loading begins anew with other segments
    """Loading met a segment that must be split."""

    def __init__(self, segment: Segment, spans: Sequence[Span]) -> None:
        super().__init__(segment, spans)
        self.segment, self.spans = segment, spans


# --- finding them ----------------------------------------------------------------------------------------------------


def closed_spans(segment: Segment, parts: Components) -> list[Span]:
    """What a closed segment must be split into; nothing if it is as it should be.

    Only of segments whose offsets might reach so far anything is read: from the last index entry on, as a rule.
    """
    if segment.end_offset - segment.base_offset <= MAX_RELATIVE_OFFSET + 1:
        return []
    return _spans(segment, parts, below=segment.end_offset, known_end=segment.end_offset)


def active_spans(segment: Segment, parts: Components, known_end: int) -> list[Span]:
    """The same of a log's last segment, whose end is looked at in any case; ``known_end`` as in ``spans_at``."""
    return _spans(segment, parts, below=None, known_end=known_end)


def _spans(segment: Segment, parts: Components, *, below: int | None, known_end: int) -> list[Span]:
    try:
        for _ in walk(segment, last_indexed_position(segment, parts), parts, below=below):
            pass
    except CorruptBatchError as error:
        return spans_at(error, segment, parts, below=below, known_end=known_end)
    return []


def spans_at(
    error: CorruptBatchError, segment: Segment, parts: Components, *, below: int | None, known_end: int
) -> list[Span]:
    """What a segment must be split into because of what a walk through it found; nothing if that is damage.

    No CRC covers an offset. One that lies so far ahead is believed if another batch follows in order, or if it lies below
    ``known_end``.

    Args:
        error: what ended the walk; all before it is good.
        segment: which.
        parts: the log's components.
        below: the offset that no batch may reach, None for the active segment.
        known_end: up to where the log goes by what else is known, a checkpoint or the next segment.
    """
    if not isinstance(error, OffsetOverflowError) or not _is_believed(segment, error.position, parts, below, known_end):
        return []
    spans = list[Span]()
    start, base, position = 0, _first_offset(segment, 0, parts), error.position
    while True:
        try:
            for _ in walk(segment, position, parts, below=below, relative_to=base):
                pass
        except OffsetOverflowError as further:
            if _is_believed(segment, further.position, parts, below, known_end):
                spans.append(Span(base, start, further.position))
                start = position = further.position
                base = _first_offset(segment, start, parts)
                continue
        except CorruptBatchError:
            pass  # what is damaged stays behind the last good batch
        return [*spans, Span(base, start, segment.size_bytes)]


def _is_believed(segment: Segment, position: int, parts: Components, below: int | None, known_end: int) -> bool:
    found = _good_at(segment, position, parts)
    if found is None or (below is not None and found[1][0].last_offset >= below):
        return False
    first = found[1][0]
    behind = _good_at(segment, position + first.size_bytes, parts)
    return first.last_offset < known_end if behind is None else first.last_offset < behind[1][0].base_offset


def _first_offset(segment: Segment, position: int, parts: Components) -> int:
    """The offset of the first record of the good batch at a position; of a compressed message of V0 or V1 an inner one."""
    found = _good_at(segment, position, parts)
    assert found is not None  # who asks has walked past it
    chunk, table = found
    if table.magic < 2 and table.record_count[0] < 0:
        try:
            return next(decode(chunk, table, segment, parts, Fields.OFFSET)).offset[0]
        except CorruptBatchError:
            return table.last_offset[0]  # nobody can read the records in it
    return table.base_offset[0]


def _good_at(segment: Segment, position: int, parts: Components) -> tuple[Chunk, BatchTable] | None:
    """The good batch at a position, as a table of one row, wherever above the segment's base it lies; None if there is none."""
    head = segment.read(position, FRAME_BYTES) if position < segment.size_bytes else b""
    if len(head) < FRAME_BYTES:
        return None
    try:
        told: int = FRAME.unpack_from(head)[0]
        chunk = next(walk(segment, position, parts, relative_to=told, read_bytes=_PEEK_BYTES))
    except CorruptBatchError:
        return None
    return chunk, chunk.tables[0].take(0, 1)


# --- reading and splitting them --------------------------------------------------------------------------------------


def pieces_of(segment: Segment, spans: Sequence[Span], opened: ExitStack) -> list[Segment]:
    """The pieces as segments over the one file; ``opened`` is told to close them."""
    name, ends = segment.file_name(LOG_SUFFIX), [*(span.base_offset for span in spans[1:]), segment.end_offset]
    pieces = list[Segment]()
    for span, end in zip(spans, ends, strict=True):
        piece = Segment(
            segment.files,
            span.base_offset,
            end,
            segment.parts,
            segment.files.open_segment(name),
            size_bytes=span.end - span.start,
            names={**(segment.names if span.base_offset == segment.base_offset else {}), LOG_SUFFIX: name},
            start=segment.start + span.start,
        )
        opened.callback(piece.close)
        pieces.append(piece)
    return pieces


def open_pieces(
    files: LogFiles, parts: Components, opened: ExitStack, *, names: list[str] | None = None
) -> list[Segment]:
    """As ``open_segments``, for reading alone; each closed segment that should be split as its pieces."""
    segments = list[Segment]()
    for segment in open_segments(files, parts, opened, writable=False, names=names):
        spans = closed_spans(segment, parts) if segment.end_offset != UNKNOWN_END else []
        if spans:
            segment.close()
        segments += pieces_of(segment, spans, opened) if spans else [segment]
    return segments


def split_segment(segment: Segment, spans: Sequence[Span], config: TopicConfig) -> list[str]:
    """Put the pieces, indexes included, in the place of a segment, which is closed; a crash does this or undoes it as a whole.

    Not a byte of the log changes; what is damaged at its end stays at the end of the last piece.

    Returns:
        The ``.deleted`` files of the segment, to be removed later.

    Raises:
        DiskFullError: there must be room for the segment once more; nothing is changed.
        LogDirOfflineError: writing failed.
    """
    files, aborted = segment.files, _aborted(segment)
    modified_ms, made = segment.log.modified_ms, list[CleanedSegment]()
    try:
        with ExitStack() as opened:
            for piece in pieces_of(segment, spans, opened):
                made.append(CleanedSegment(files, piece.base_offset, piece.parts, config))
                _copy(piece, made[-1], aborted or {})
                made[-1].finish(modified_ms)
                if aborted is None:  # then all indexes are made again, by who knows the producers
                    files.remove(made[-1].name(piece.parts.indexes[IndexRole.OFFSET].suffix))
    except BaseException:
        for one in made:
            one.discard()
        raise
    finally:
        segment.close()
    rename_to_swap(
        files, made
    )  # if this fails, no .cleaned file may go before the .swap files: the next opening sees to that
    left = set_aside(files, segment, keep_snapshot=spans[0].base_offset == segment.base_offset)
    files.sync()
    rename_to_live(files, made)
    return left


def _aborted(segment: Segment) -> dict[int, AbortedTransaction] | None:
    """The aborted transactions that the segment's index names, by their markers' offsets; None if indexes must be made again."""
    has_offsets = segment.file_name(segment.parts.indexes[IndexRole.OFFSET].suffix) in file_names(segment.files)
    if not has_offsets or not segment.is_sound(IndexRole.TRANSACTION):
        return None
    return {entry.last_offset: entry for entry in transaction_index(segment, segment.parts)}


def _copy(piece: Segment, made: CleanedSegment, aborted: dict[int, AbortedTransaction]) -> None:
    """Write a piece, good batches and what follows them."""
    position = 0
    try:
        for chunk in walk(piece, 0, piece.parts):
            made.append(chunk.data[: chunk.end_position - chunk.position], aborted)
            position = chunk.end_position
    except CorruptBatchError:
        for start in range(position, piece.size_bytes, _COPY_BYTES):
            made.append_damaged(piece.read(start, _COPY_BYTES))
