"""Lookup of raw batches by an offset. The index entry is a hint: it is checked against the batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.batches import BatchTable
from stratalog.model.offsets import OffsetPosition
from stratalog.model.segment_info import FileSlice
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME_BYTES, MAX_RELATIVE_OFFSET, ascending, scan
from stratalog.segment.readable import ReadableSegment, ReadOn
from stratalog.segment.search import WINDOW_BYTES, agrees, find_batch
from stratalog.spi.indexes import IndexRole

_APART_BYTES: Final = 8 << 10  # entries further apart usually belong to large batches, one entry each
_Wanted: TypeAlias = tuple[int, int, int, bool]
"""Offset, maximal bytes, bound, and True if CRCs are checked: the arguments of ``read_batches``."""
LARGEST_BYTES: Final = (1 << 31) - 1  # of a segment
_FIRST: Final = Struct(">q")  # first offset of an entry, as its header has it


def read_batches(
    segment: ReadableSegment, offset: int, parts: Components, *, max_bytes: int, bound: int, check_crc: bool
) -> tuple[FileSlice, int] | None:
    """Read whole batches from the first whose last offset is at or above ``offset``; one read if the index is right.

    Args:
        segment: local or in a tier.
        offset: the first wanted offset.
        parts: the log's components.
        max_bytes: maximal size of the result; at least one batch is read.
        bound: only batches that end below it are returned.
        check_crc: True to compare each batch with its CRC.

    Returns:
        The batches, pinned, and the last offset in them; an empty piece if the first batch reaches the bound. None if the
        segment ends below ``offset``.

    Raises:
        CorruptBatchError: there is a bad entry where the first batch should be, or a batch reaches past its segment.
    """
    wanted = offset, max(0, min(max_bytes, LARGEST_BYTES)), bound, check_crc
    for place in places(segment, offset, parts):
        found = _read_at(segment, place, wanted, parts)
        if found is not None:
            _check_end(segment, *found, bound)
            if max_bytes > WINDOW_BYTES and isinstance(segment, ReadOn):  # a smaller read is not sequential
                segment.left_at = OffsetPosition(found[1] + 1, found[0].position + len(found[0].data))
            return found
    careful = find_batch(segment, offset, parts)
    if careful is None:
        return None
    position, first = careful
    found = _read_at(segment, Place(position, 0, first.size_bytes, first.last_offset), wanted, parts)
    if found is None:
        raise CorruptBatchError("the batch is damaged", segment.label, position)
    _check_end(segment, *found, bound)
    return found


def _check_end(segment: ReadableSegment, piece: FileSlice, last_offset: int, bound: int) -> None:
    """Raise CorruptBatchError if a batch reaches past the segment's end: no CRC covers its offsets."""
    end, position = segment.end_offset, piece.position
    if last_offset >= end or (not piece.size_bytes and end <= bound):
        piece.release()
        raise CorruptBatchError(f"the batch reaches past the end of its segment, {end}", segment.label, position)


def _read_at(
    segment: ReadableSegment, place: Place, wanted: _Wanted, parts: Components
) -> tuple[FileSlice, int] | None:
    """Read once at a place; return None if the read does not hold the batch, or the index entry is wrong."""
    position, lead_bytes, batch_bytes, told, _ = place
    piece = segment.slice(position, lead_bytes + max(wanted[1], batch_bytes))
    try:
        data = piece.data
        found = _picked(data, segment, told, wanted, parts)
        start, end, last_offset = found or (0, 0, -1)
        if found is None or not shows(data, start, place, wanted[0]):
            piece.release()
            return None
        piece.data, piece.position = data[start:end], position + start
    except BaseException:
        piece.release()
        raise
    return piece, last_offset


def shows(data: memoryview, start: int, place: Place, offset: int) -> bool:
    """Return True if the batch at ``start`` of ``data``, read at a place, holds the offset and is not one after it."""
    return start <= place.lead_bytes and not (place.is_guess and _FIRST.unpack_from(data, start)[0] > offset)


def _picked(
    data: memoryview, segment: ReadableSegment, told: int | None, wanted: _Wanted, parts: Components
) -> tuple[int, int, int] | None:
    """Return the wanted batches of ``data`` as ``RecordFormat.pick``; scan all batches if ``pick`` returns None."""
    offset, max_bytes, bound, check_crc = wanted
    base_offset = segment.base_offset
    if len(data) >= FRAME_BYTES:
        known = parts.formats.get(data[FRAME_BYTES - 1])
        if known is not None:
            found = known.pick(
                data,
                base_offset=base_offset,
                offset=offset,
                max_bytes=max_bytes,
                bound=bound,
                told=told,
                check_crc=check_crc,
            )
            if found is not None:
                return found
    scanned = scan(parts.formats, data, 0, len(data), check_crc=check_crc)
    tables, _, _ = ascending(scanned.tables, base_offset - 1, base_offset + MAX_RELATIVE_OFFSET + 1)
    place = _place_of(tables, offset) if told is None or agrees(tables, told) else None
    return None if place is None else _cut(tables, *place, max_bytes, bound)


def _place_of(tables: Sequence[BatchTable], offset: int) -> tuple[int, int] | None:
    """Return table and row of the first batch whose last offset is at or above ``offset``."""
    for number, table in enumerate(tables):
        row = bisect_left(table.last_offset, offset)
        if row < len(table):
            return number, row
    return None


def _cut(tables: Sequence[BatchTable], number: int, row: int, max_bytes: int, bound: int) -> tuple[int, int, int]:
    """Return start and end (bytes) and last offset of the batches that fit below ``bound``; the first one always fits."""
    start = end = tables[number].position[row]
    last_offset = -1
    for table in tables[number:]:
        starts, sizes = table.position, table.size_bytes
        below = bisect_left(table.last_offset, bound, row)
        after = bisect_right(starts, start + max_bytes, row, below)
        if after > row and starts[after - 1] + sizes[after - 1] > start + max_bytes:
            after -= 1
        if after == row < below and end == start:
            after = row + 1
        if after > row:
            end, last_offset = starts[after - 1] + sizes[after - 1], table.last_offset[after - 1]
        if after < len(table):
            break
        row = 0
    return start, end, last_offset


class Place(NamedTuple):
    """Bytes to read according to an index: from the start of a batch, enough for the whole wanted batch."""

    position: int
    lead_bytes: int
    """Maximal distance from the position to the wanted batch."""
    batch_bytes: int
    """Maximal size of the wanted batch."""
    told: int | None
    """The last offset of a batch near the position; None at the segment's start."""
    is_guess: bool = False
    """True if the wanted batch may begin before the position."""


_FIRST_BATCH: Final = Place(0, 0, WINDOW_BYTES, None)
_NEAR_START: Final = Place(0, WINDOW_BYTES, 0, None)


def places(segment: ReadableSegment, offset: int, parts: Components) -> Iterator[Place]:
    """Yield places to look for an offset; use the next place if the one before was wrong."""
    base_offset = segment.base_offset
    if offset <= base_offset:
        yield _FIRST_BATCH
        return
    if isinstance(segment, ReadOn) and (left := segment.left_at) is not None and left.offset == offset:
        yield Place(left.position, 0, WINDOW_BYTES, None, is_guess=True)
    try:
        entries = segment.index_entries(IndexRole.OFFSET)
        floor, after, beyond = parts.indexes[IndexRole.OFFSET].around(entries, base_offset, offset)
    except CorruptIndexError:
        yield _NEAR_START
        return
    size_bytes = segment.size_bytes
    position, told = (0, None) if floor is None else (floor.position, floor.offset)
    if not 0 <= position < size_bytes:
        yield _NEAR_START
        return
    if after is not None and position < after.position < size_bytes:
        lead_bytes, batch_bytes, limit_bytes = after.position - position, WINDOW_BYTES, parts.limits.read_bytes
        if beyond is not None and beyond.position > after.position:
            batch_bytes = min(beyond.position - after.position, limit_bytes)
        if told == offset:
            yield Place(position, 0, min(lead_bytes, limit_bytes), told)
        elif lead_bytes <= _APART_BYTES:
            yield Place(position, lead_bytes, batch_bytes, told)
        else:
            yield Place(after.position, 0, batch_bytes, after.offset, is_guess=True)
    yield Place(position, WINDOW_BYTES, 0, told)
