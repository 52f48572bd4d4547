"""Search for timestamps in a segment, local or in a tier. An index entry is a hint that is always checked.

Source: apache/kafka LogSegment.findOffsetByTimestamp; TimeIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from stratalog.errors import CorruptIndexError
from stratalog.model.batches import NO_TIMESTAMP, BatchTable
from stratalog.model.matching import first_late_row
from stratalog.model.offsets import TimestampOffset
from stratalog.model.records import Fields
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME_BYTES, MAX_RELATIVE_OFFSET, Chunk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import WINDOW_BYTES, chunks_from, decode, find_batch
from stratalog.spi.indexes import IndexRole

_PLACE_FIELDS: Final = Fields.OFFSET | Fields.TIMESTAMP


def find_timestamp(
    segment: ReadableSegment,
    timestamp_ms: int,
    min_offset: int,
    components: Components,
    *,
    offset_limit: int | None = None,
) -> TimestampOffset | None:
    """Return timestamp and offset of the first record from ``min_offset`` on that is not older than ``timestamp_ms``.

    The result is None if there is no such record. As in Kafka, records of control batches count. ``offset_limit`` is
    the exclusive upper bound of the segment's offsets; None for the active segment. Raises the same errors as ``walk``
    and ``decode``.
    """
    entry = _time_floor(segment, timestamp_ms, components)
    if entry is not None and entry.offset > min_offset:
        timestamp_offset = _select_record(segment, timestamp_ms, entry, components, offset_limit)
        if timestamp_offset is not None:
            return timestamp_offset
        chunks = chunks_from(segment, entry.offset, components, offset_limit=offset_limit, read_bytes=WINDOW_BYTES)
        is_entry_right, timestamp_offset = _find_first_late(
            chunks, segment, timestamp_ms, min_offset, components, entry
        )
        if is_entry_right:
            return timestamp_offset
    first_offset = max(segment.base_offset, min_offset)
    chunks = chunks_from(segment, first_offset, components, offset_limit=offset_limit, read_bytes=WINDOW_BYTES)
    return _find_first_late(chunks, segment, timestamp_ms, min_offset, components, None)[1]


def _select_record(
    segment: ReadableSegment,
    timestamp_ms: int,
    entry: TimestampOffset,
    components: Components,
    offset_limit: int | None,
) -> TimestampOffset | None:
    """Return the first record that is not older than ``timestamp_ms``, with one read; None if a walk must find it."""
    try:
        entries = segment.index_entries(IndexRole.OFFSET)
        place, _, after_next = components.indexes[IndexRole.OFFSET].around(entries, segment.base_offset, entry.offset)
    except CorruptIndexError:
        return None
    if place is None or place.offset != entry.offset or not 0 < place.position < segment.size_bytes:
        return None
    # The record is usually before the second next entry, but a batch whose timestamp is not larger gets no time entry.
    entry_bytes = 0 if after_next is None else min(after_next.position - place.position, components.limits.read_bytes)
    data = segment.read(place.position, max(entry_bytes, WINDOW_BYTES))
    if len(data) < FRAME_BYTES or (record_format := components.formats.get(data[FRAME_BYTES - 1])) is None:
        return None
    selected = record_format.select(
        data,
        base_offset=segment.base_offset,
        offset=entry.offset + 1,
        max_bytes=0,
        bound=segment.base_offset + MAX_RELATIVE_OFFSET + 1 if offset_limit is None else offset_limit,
        indexed_offset=place.offset,
        check_crc=True,
        since_ms=timestamp_ms,
        indexed_ms=entry.timestamp_ms,
    )
    if selected is None or selected[0] == selected[1]:
        return None
    start, end, _ = selected
    chunk = Chunk(data, place.position, (record_format.scan(data, start, end, check_crc=False),))
    return _late_record(chunk, chunk.tables[0], 0, segment, components, timestamp_ms, entry.offset)


def _find_first_late(
    chunks: Iterator[Chunk],
    segment: ReadableSegment,
    timestamp_ms: int,
    min_offset: int,
    components: Components,
    entry: TimestampOffset | None,
) -> tuple[bool, TimestampOffset | None]:
    """Return True if ``entry`` is right or None, and the first record that is not older than ``timestamp_ms``."""
    is_checked = entry is None
    for chunk in chunks:
        for table in chunk.tables:
            for row, latest in enumerate(table.max_timestamp_ms):
                if not is_checked and entry is not None and table.last_offset[row] >= entry.offset:
                    is_checked = True
                    if latest != entry.timestamp_ms:
                        return False, None
                if latest < timestamp_ms or not is_checked:
                    continue
                timestamp_offset = _late_record(chunk, table, row, segment, components, timestamp_ms, min_offset)
                if timestamp_offset is not None:
                    return True, timestamp_offset
    return is_checked, None


def _late_record(
    chunk: Chunk,
    table: BatchTable,
    row: int,
    segment: ReadableSegment,
    components: Components,
    timestamp_ms: int,
    min_offset: int,
) -> TimestampOffset | None:
    """Return the first record of one batch with at least this timestamp and offset; None if there is none."""
    batch = table if len(table) == 1 else table.take(row, row + 1)
    for columns in decode(chunk, batch, segment, components, _PLACE_FIELDS):
        late = first_late_row(columns, timestamp_ms, min_offset)
        if late is not None:
            return TimestampOffset(columns.timestamp_ms[late], columns.offset[late])
    return None


def _time_floor(segment: ReadableSegment, timestamp_ms: int, components: Components) -> TimestampOffset | None:
    """Return the last time index entry with a timestamp below ``timestamp_ms``; None if there is none.

    If the time index is damaged, or the offset of the entry is outside of the segment, the result is None. An entry
    with exactly this timestamp is not used: if its offset were wrong, the search could miss an earlier record.
    """
    try:
        entries = segment.index_entries(IndexRole.TIME)
        entry, *_ = components.indexes[IndexRole.TIME].around(entries, segment.base_offset, timestamp_ms - 1)
    except CorruptIndexError:
        return None
    if entry is None or entry.timestamp_ms >= timestamp_ms:
        return None
    return entry if segment.base_offset <= entry.offset < segment.end_offset else None


def largest_timestamp(segment: ReadableSegment, components: Components) -> TimestampOffset:
    """Return the largest batch timestamp, and an offset in the first batch that has it.

    If no batch has a timestamp, the result is -1 and the segment's base offset. The batches after the last time index
    entry are read. Raises the same errors as ``walk``.
    """
    largest, from_offset = TimestampOffset(NO_TIMESTAMP, segment.base_offset), segment.base_offset
    try:
        entries = segment.index_entries(IndexRole.TIME)
        reader = components.indexes[IndexRole.TIME].reader(entries, segment.base_offset)
        last_entry: TimestampOffset | None = reader[-1] if len(reader) else None
    except CorruptIndexError:
        last_entry = None
    if last_entry is not None and segment.base_offset <= last_entry.offset < segment.end_offset:
        position_and_batch = find_batch(segment, last_entry.offset, components)
        if position_and_batch is not None and position_and_batch[1].max_timestamp_ms == last_entry.timestamp_ms:
            largest, from_offset = last_entry, last_entry.offset
    for chunk in chunks_from(segment, from_offset, components, check_crc=False):
        for table in chunk.tables:
            table_largest_ms = max(table.max_timestamp_ms)
            if table_largest_ms > largest.timestamp_ms:
                largest = TimestampOffset(
                    table_largest_ms, table.last_offset[list(table.max_timestamp_ms).index(table_largest_ms)]
                )
    return largest


def largest_timestamp_from(segment: ReadableSegment, offset: int, components: Components) -> int:
    """Return the largest timestamp of a segment's records from ``offset`` on; -1 if none has a timestamp.

    The segment contains ``offset``. All batches from ``offset`` on are read. Raises the same errors as ``walk`` and
    ``decode``.
    """
    largest_ms, is_past = NO_TIMESTAMP, False
    for chunk in chunks_from(segment, offset, components, check_crc=False):
        for table in chunk.tables:
            for row in range(bisect_left(table.last_offset, offset), len(table)):
                if is_past:
                    largest_ms = max(largest_ms, table.max_timestamp_ms[row])
                    continue
                is_past = True  # only the first batch may have records below ``offset``
                for columns in decode(chunk, table.take(row, row + 1), segment, components, _PLACE_FIELDS):
                    stamps = columns.timestamp_ms[bisect_left(columns.offset, offset) :]
                    largest_ms = max(largest_ms, max(stamps, default=NO_TIMESTAMP))
    return largest_ms
