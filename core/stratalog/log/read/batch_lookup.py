"""Lookup of whole batches by an offset. An index entry is a hint: it is checked against the batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.batches import BatchTable
from stratalog.model.offsets import OffsetPosition
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME_BYTES, MAX_RELATIVE_OFFSET, ascending, scan, walk
from stratalog.segment.readable import KeepsReadPosition, ReadableSegment
from stratalog.segment.search import NEAR_BYTES, WINDOW_BYTES, agrees, batch_at, find_batch
from stratalog.spi.indexes import IndexRole

_LARGEST_BYTES: Final = (1 << 31) - 1  # maximum size of a segment
_HEAD_BYTES: Final = 64  # more than the header of any batch
_FIRST_BYTES: Final = 4096  # read after the expected position of the first batch, if only headers are wanted
_APART_BYTES: Final = 8 << 10  # index entries further apart usually belong to large batches, one entry each
_BASE_OFFSET: Final = Struct(">q")  # first field of a batch
_OFFSETS: Final = IndexRole.OFFSET  # looked up at each search
_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class
_Request: TypeAlias = tuple[int, int, int, bool, bool]
"""The arguments ``offset``, ``max_bytes``, ``bound``, ``needs_data`` and ``check_crc`` of ``find_batches``."""
_Place: TypeAlias = tuple[int, int, int, int | None, bool]
"""Bytes to read according to an index: from the start of a batch, enough for the whole wanted batch.

1. The position.
2. The maximum distance (bytes) from the position to the wanted batch.
3. The maximum size (bytes) of the wanted batch.
4. The last offset of a batch near the position, according to the index; None if no index entry has the position.
5. True if the place is a guess: the wanted batch may begin before the position.
"""
_FIRST_BATCH: Final[_Place] = (0, 0, WINDOW_BYTES, None, False)
_NEAR_START: Final[_Place] = (0, WINDOW_BYTES, 0, None, False)


class BatchRange(NamedTuple):
    """Whole batches in bytes [``position``, ``end_position``) of a segment, and the last offset in them.

    If the first wanted batch reaches the bound, the range is empty, and ``last_offset`` is -1. ``data`` has the bytes
    if they were read.
    """

    position: int
    end_position: int
    last_offset: int
    data: memoryview | None = None
    is_complete: bool = True
    """False if the range may be longer: the batch after it was not read."""


def find_batches(
    segment: ReadableSegment,
    offset: int,
    components: Components,
    *,
    max_bytes: int,
    bound: int,
    needs_data: bool,
    check_crc: bool = False,
) -> BatchRange | None:
    """Return the range of batches from the first one whose last offset is at or above ``offset``.

    Args:
        segment: the segment, local or in a tier.
        offset: the first wanted offset.
        components: the log's components.
        max_bytes: maximum size of the range. The first batch is in the range even if it is larger.
        bound: exclusive end offset; only batches whose last offset is below it are in the range.
        needs_data: True to read all bytes, with one read if the index is right. False to read only headers near both
            ends.
        check_crc: True to compare each batch with its CRC; this is possible only if ``needs_data`` is True.

    Returns:
        The range; None if the segment has no batch whose last offset is at or above ``offset``.

    Raises:
        CorruptBatchError: the first batch is damaged, or a batch reaches past its segment.
        The errors of ``ReadableSegment.read``.
    """
    if not 0 <= max_bytes <= _LARGEST_BYTES:
        max_bytes = max(0, min(max_bytes, _LARGEST_BYTES))
    request = offset, max_bytes, bound, needs_data, check_crc
    last_read, batch_range = segment.next_read if isinstance(segment, KeepsReadPosition) else None, None
    if last_read is not None and last_read.offset == offset:
        batch_range = _read_at(segment, (last_read.position, 0, WINDOW_BYTES, None, True), components, request)
    if batch_range is None:
        for place in _list_places(segment, offset, components):
            batch_range = _read_at(segment, place, components, request)
            if batch_range is not None:
                break
        else:
            batch_range = _search(segment, components, request)
            if batch_range is None:
                return None
    if not batch_range.is_complete:
        batch_range = _extend(segment, components, request, batch_range)
    position, end_position, last_offset, _, _ = batch_range
    end = segment.end_offset
    if last_offset >= end or (position == end_position and end <= bound):  # no CRC covers the offsets
        raise CorruptBatchError(f"the batch reaches past the end of its segment, {end}", segment.label, position)
    if max_bytes > WINDOW_BYTES and isinstance(segment, KeepsReadPosition):  # a smaller read is not sequential
        segment.next_read = OffsetPosition(last_offset + 1, end_position)
    return batch_range


def _search(segment: ReadableSegment, components: Components, request: _Request) -> BatchRange | None:
    """Return the range with the first wanted batch, by a search that checks the index.

    If all bytes are read, the range also has the batches after this batch.
    """
    offset, max_bytes, bound, needs_data, _ = request
    position_and_batch = find_batch(segment, offset, components, read_bytes=0 if needs_data else NEAR_BYTES)
    if position_and_batch is None:
        return None
    position, batch = position_and_batch
    if needs_data:
        batch_range = _read_at(segment, (position, 0, batch.size_bytes, batch.last_offset, False), components, request)
        if batch_range is None:
            raise CorruptBatchError("the batch is damaged", segment.label, position)
        return batch_range
    if batch.last_offset >= bound:
        return BatchRange(position, position, -1)
    return BatchRange(position, position + batch.size_bytes, batch.last_offset, None, batch.size_bytes >= max_bytes)


def _read_at(segment: ReadableSegment, place: _Place, components: Components, request: _Request) -> BatchRange | None:
    """Return the range by one read at ``place``; None if the read lacks the batch, or the index entry is wrong."""
    position, lead_bytes, batch_bytes, indexed_offset, is_guess = place
    offset, max_bytes, bound, needs_data, check_crc = request
    if needs_data:
        behind_bytes = max(max_bytes, batch_bytes)
    else:
        behind_bytes = max_bytes + _HEAD_BYTES if max_bytes <= NEAR_BYTES else _FIRST_BYTES
    data = segment.read(position, lead_bytes + behind_bytes)
    base_offset, read_bytes = segment.base_offset, len(data)
    selected = None
    if (
        read_bytes >= FRAME_BYTES
        and (record_format := components.formats.opened_by_magic.get(data[FRAME_BYTES - 1])) is not None
    ):
        selected = record_format.select(
            data,
            base_offset=base_offset,
            offset=offset,
            max_bytes=max_bytes,
            bound=bound,
            indexed_offset=indexed_offset,
            check_crc=check_crc,
            beyond_bytes=0 if needs_data else max(0, segment.size_bytes - position - read_bytes),
        )
    is_scanned = selected is None  # a scan finds only batches that were read completely
    selected = selected or _scan(data, base_offset, indexed_offset, components, request)
    if selected is None:
        return None
    start, end, last_offset = selected
    if start > lead_bytes or (is_guess and _BASE_OFFSET.unpack_from(data, start)[0] > offset):
        return None  # the batch at ``start`` is after the wanted one
    if needs_data:
        return _new_tuple(BatchRange, (position + start, position + end, last_offset, data[start:end], True))
    is_complete = start == end or end - start >= max_bytes or (not is_scanned and end + _HEAD_BYTES <= read_bytes)
    return BatchRange(position + start, position + end, last_offset, None, is_complete)


def _scan(
    data: memoryview, base_offset: int, indexed_offset: int | None, components: Components, request: _Request
) -> tuple[int, int, int] | None:
    """Return the same result as ``RecordFormat.select``, by a scan of all complete batches in ``data``."""
    offset, max_bytes, bound, _, check_crc = request
    scanned = scan(components.formats, data, 0, len(data), check_crc=check_crc)
    tables, _, _ = ascending(scanned.tables, base_offset - 1, base_offset + MAX_RELATIVE_OFFSET + 1)
    if indexed_offset is not None and not agrees(tables, indexed_offset):
        return None
    for table_index, table in enumerate(tables):
        row = bisect_left(table.last_offset, offset)
        if row < len(table):
            return _limit_batches(tables, table_index, row, max_bytes, bound)
    return None


def _limit_batches(
    tables: Sequence[BatchTable], table_index: int, row: int, max_bytes: int, bound: int
) -> tuple[int, int, int]:
    """Return start and end (bytes), and last offset, of the batches from ``row`` on that fit and are below ``bound``.

    Batches fit if they have at most ``max_bytes`` together; the first batch fits in any case. If it reaches the bound,
    the range is empty, and the last offset is -1.
    """
    start = end = tables[table_index].position[row]
    last_offset = -1
    for table in tables[table_index:]:
        starts, sizes = table.position, table.size_bytes
        bound_row = bisect_left(table.last_offset, bound, row)
        end_row = bisect_right(starts, start + max_bytes, row, bound_row)
        if end_row > row and starts[end_row - 1] + sizes[end_row - 1] > start + max_bytes:
            end_row -= 1
        if end_row == row < bound_row and end == start:
            end_row = row + 1
        if end_row > row:
            end, last_offset = starts[end_row - 1] + sizes[end_row - 1], table.last_offset[end_row - 1]
        if end_row < len(table):
            break
        row = 0
    return start, end, last_offset


def _list_places(segment: ReadableSegment, offset: int, components: Components) -> tuple[_Place, ...]:
    """Return the places where the batch with ``offset`` may be, according to the index, in the order to try them."""
    base_offset = segment.base_offset
    if offset <= base_offset:
        return (_FIRST_BATCH,)
    try:
        entries = segment.index_entries(_OFFSETS)
        floor, after, after_next = components.indexes[_OFFSETS].around(entries, base_offset, offset)
    except CorruptIndexError:
        return (_NEAR_START,)
    size_bytes = segment.size_bytes
    indexed_offset, position = (None, 0) if floor is None else floor
    if not 0 <= position < size_bytes:
        return (_NEAR_START,)
    floor_place = position, WINDOW_BYTES, 0, indexed_offset, False
    if after is None or not position < after[1] < size_bytes:
        return (floor_place,)
    after_offset, after_position = after
    lead_bytes, batch_bytes, limit_bytes = after_position - position, WINDOW_BYTES, components.limits.read_bytes
    if after_next is not None and after_next[1] > after_position:
        batch_bytes = min(after_next[1] - after_position, limit_bytes)
    if indexed_offset == offset:
        return (position, 0, min(lead_bytes, limit_bytes), indexed_offset, False), floor_place
    if lead_bytes <= _APART_BYTES:
        return (position, lead_bytes, batch_bytes, indexed_offset, False), floor_place
    both_bytes = lead_bytes + batch_bytes
    if floor is None and (offset - base_offset) * both_bytes < (after_offset - base_offset) * lead_bytes:
        return (0, 0, min(lead_bytes, limit_bytes), None, False), floor_place  # no index entry has the first batch
    return (after_position, 0, batch_bytes, after_offset, True), floor_place


# --- the end of a range, by headers ----------------------------------------------------------------------------------


def _extend(segment: ReadableSegment, components: Components, request: _Request, first_range: BatchRange) -> BatchRange:
    """Return the range from ``first_range`` to the last batch that fits the maximum size and is below the bound."""
    _, max_bytes, bound, _, _ = request
    limit = min(segment.size_bytes, first_range.position + max_bytes)
    end, last_offset = first_range.end_position, first_range.last_offset
    entry = _find_entry_before(segment, components, limit, bound)
    if entry is not None and entry.position > end:
        batch_range = _read_headers(segment, components, entry.position, limit, bound, entry.offset)
        if batch_range is not None and end < batch_range.end_position <= limit:
            _, end, last_offset, _, is_complete = batch_range
            if is_complete:
                return BatchRange(first_range.position, end, last_offset)
    while end < limit:
        batch_range = _read_headers(segment, components, end, limit, bound, None)
        if batch_range is None:
            end, last_offset = _walk_batches(segment, components, (end, last_offset), limit, bound, entry)
            break
        if not end < batch_range.end_position <= limit:
            break
        _, end, last_offset, _, is_complete = batch_range
        if is_complete:
            break
    return BatchRange(first_range.position, end, last_offset)


def _read_headers(
    segment: ReadableSegment, components: Components, position: int, limit: int, bound: int, indexed_offset: int | None
) -> BatchRange | None:
    """Return the range of batches from ``position`` on, by one small read; None if a walk must find them."""
    data = segment.read(position, min(NEAR_BYTES, limit - position + _HEAD_BYTES))
    record_format = components.formats.get(data[FRAME_BYTES - 1]) if len(data) >= FRAME_BYTES else None
    if record_format is None:
        return None
    selected = record_format.select(
        data,
        base_offset=segment.base_offset,
        offset=segment.base_offset if indexed_offset is None else indexed_offset,
        max_bytes=limit - position,
        bound=bound,
        indexed_offset=indexed_offset,
        beyond_bytes=max(0, segment.size_bytes - position - len(data)),
    )
    if selected is None:
        return None
    start, end, last_offset = selected
    return BatchRange(position + start, position + end, last_offset, None, end + _HEAD_BYTES <= len(data))


def _find_entry_before(
    segment: ReadableSegment, components: Components, limit: int, bound: int
) -> OffsetPosition | None:
    """Return the second-last index entry below ``limit`` (bytes) and ``bound``; the last one if there is only one.

    The result is None if there is no such entry, or if the index is damaged.
    """
    index, base_offset = components.indexes[IndexRole.OFFSET], segment.base_offset
    try:
        entries = segment.index_entries(IndexRole.OFFSET)
        entry_at_limit: OffsetPosition | None = index.reader(entries, base_offset).after(limit)
        end = bound if entry_at_limit is None else min(bound, entry_at_limit.offset)
        last_entry: OffsetPosition | None = index.around(entries, base_offset, end - 1)[0]
        earlier_entry: OffsetPosition | None = (
            None if last_entry is None else index.around(entries, base_offset, last_entry.offset - 1)[0]
        )
    except CorruptIndexError:
        return None
    return earlier_entry or last_entry


def _walk_batches(
    segment: ReadableSegment,
    components: Components,
    range_end: tuple[int, int],
    limit: int,
    bound: int,
    entry: OffsetPosition | None,
) -> tuple[int, int]:
    """Return the end position and last offset of a range, by a walk over its batches.

    The walk is for formats without ``select``, and for damaged batches.
    """
    end, last_offset = start, _ = range_end
    if entry is not None and entry.position > end:
        batch = batch_at(segment, entry.position, components)
        if batch is not None and batch.last_offset < bound and entry.position + batch.size_bytes <= limit:
            start = entry.position
    try:
        for chunk in walk(segment, start, components, check_crc=False, read_bytes=NEAR_BYTES):
            for batch in chunk.batches():
                batch_end = chunk.position + batch.position + batch.size_bytes
                if batch_end > limit or batch.last_offset >= bound:
                    return end, last_offset
                end, last_offset = batch_end, batch.last_offset
    except CorruptBatchError:
        pass  # a reader that continues there gets this error
    return end, last_offset
