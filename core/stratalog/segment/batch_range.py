"""Lookup of the byte range of wanted batches by their headers; the bytes between the first and the last are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.offsets import OffsetPosition
from stratalog.segment.batch_lookup import LARGEST_BYTES, places, shows
from stratalog.segment.components import Components
from stratalog.segment.framing import FRAME_BYTES, walk
from stratalog.segment.readable import ReadableSegment, ReadOn
from stratalog.segment.search import NEAR_BYTES, WINDOW_BYTES, batch_at, find_batch
from stratalog.spi.indexes import IndexRole

_HEAD_BYTES: Final = 64  # more than the header of any batch
_FIRST_BYTES: Final = 4096  # read after the expected position of the first batch


class BatchRange(NamedTuple):
    """Whole batches in bytes [``position``, ``end_position``) of a segment, and the last offset in them.

    ``is_complete`` is True if the header that follows was read and its batch is not wanted.
    """

    position: int
    end_position: int
    last_offset: int
    is_complete: bool = False


def find_range(
    segment: ReadableSegment, offset: int, parts: Components, *, max_bytes: int, bound: int
) -> BatchRange | None:
    """Return the range that ``read_batches`` would read, found by the index and checked by headers in the segment.

    Args:
        segment: local or in a tier.
        offset: the first wanted offset.
        parts: the log's components.
        max_bytes: maximal size of the range; it has at least one batch.
        bound: only batches that end below it are in the range.

    Returns:
        The range; None if ``read_batches`` would return no batch, or raise an error.

    Raises:
        CorruptBatchError: there is a bad entry where the first batch should be.
    """
    heads = _Heads(segment, parts, bound)
    most_bytes = max(0, min(max_bytes, LARGEST_BYTES))
    found = heads.first(offset, most_bytes)
    if found is None or found.last_offset >= min(bound, segment.end_offset):
        return None
    limit = min(heads.size_bytes, found.position + most_bytes)
    if not found.is_complete and found.end_position < limit:
        end_position, last_offset = heads.last(found, limit)
        found = BatchRange(found.position, end_position, last_offset)
    if most_bytes > WINDOW_BYTES and isinstance(segment, ReadOn):  # a smaller read is not sequential
        segment.left_at = OffsetPosition(found.last_offset + 1, found.end_position)
    return found


class _Heads:
    """Reader of the headers of one segment; batches that are appended meanwhile are above the bound."""

    def __init__(self, segment: ReadableSegment, parts: Components, bound: int) -> None:
        self.size_bytes = segment.size_bytes
        self._segment, self._parts, self._bound = segment, parts, bound
        self._picks = True  # False after the format's ``pick`` returned None or the index was wrong

    def first(self, offset: int, most_bytes: int) -> BatchRange | None:
        """Return the first wanted batch, and the batches after it whose headers were in the same read."""
        segment, parts = self._segment, self._parts
        behind_bytes = most_bytes + _HEAD_BYTES if most_bytes <= NEAR_BYTES else _FIRST_BYTES
        for place in places(segment, offset, parts):
            data = segment.read(place.position, place.lead_bytes + behind_bytes)
            found = self._picked(data, place.position, offset, most_bytes, place.told)
            if found is not None and shows(data, found[0], place, offset):
                return self._range(place.position, found, len(data))
            if not place.is_guess:
                break  # the index is wrong, or the format's ``pick`` returns None
        self._picks = False
        careful = find_batch(segment, offset, parts, read_bytes=NEAR_BYTES)
        if careful is None:
            return None
        position, batch = careful
        return BatchRange(position, position + batch.size_bytes, batch.last_offset)

    def last(self, begun: BatchRange, limit: int) -> tuple[int, int]:
        """Return the end position and last offset of the last batch that ends at or below ``limit`` (bytes)."""
        end, last_offset = begun.end_position, begun.last_offset
        near = self._indexed_before(limit)
        if not self._picks:
            return self._walked(end, last_offset, limit, near)
        if near is not None and near.position > end:
            found = self._at(near.position, limit, near.offset)
            if found is not None and end < found.end_position <= limit:
                _, end, last_offset, is_complete = found
                if is_complete:
                    return end, last_offset
        while end < limit:
            found = self._at(end, limit, None)
            if found is None:
                return self._walked(end, last_offset, limit, near)
            if not end < found.end_position <= limit:
                break
            _, end, last_offset, is_complete = found
            if is_complete:
                break
        return end, last_offset

    def _at(self, position: int, limit: int, told: int | None) -> BatchRange | None:
        """Return the range of batches from a position on; ``told`` is the last offset in the index entry, if any."""
        data = self._segment.read(position, min(NEAR_BYTES, limit - position + _HEAD_BYTES))
        first = self._segment.base_offset if told is None else told
        found = self._picked(data, position, first, limit - position, told)
        return None if found is None else self._range(position, found, len(data))

    def _picked(
        self, data: memoryview, position: int, offset: int, max_bytes: int, told: int | None
    ) -> tuple[int, int, int] | None:
        known = self._parts.formats.get(data[FRAME_BYTES - 1]) if len(data) >= FRAME_BYTES else None
        if known is None:
            return None
        return known.pick(
            data,
            base_offset=self._segment.base_offset,
            offset=offset,
            max_bytes=max_bytes,
            bound=self._bound,
            told=told,
            beyond_bytes=max(0, self.size_bytes - position - len(data)),
        )

    def _range(self, position: int, found: tuple[int, int, int], read_bytes: int) -> BatchRange:
        start, end, last_offset = found
        if start == end:  # the first batch reaches the bound
            last_offset = self._bound
        return BatchRange(position + start, position + end, last_offset, end + _HEAD_BYTES <= read_bytes)

    def _indexed_before(self, limit: int) -> OffsetPosition | None:
        """Return the index entry before the last one below ``limit`` and the bound; the last one if it is the first."""
        segment, index = self._segment, self._parts.indexes[IndexRole.OFFSET]
        base_offset = segment.base_offset
        try:
            entries = segment.index_entries(IndexRole.OFFSET)
            beyond: OffsetPosition | None = index.reader(entries, base_offset).after(limit)
            end = self._bound if beyond is None else min(self._bound, beyond.offset)
            last: OffsetPosition | None = index.around(entries, base_offset, end - 1)[0]
            before: OffsetPosition | None = (
                None if last is None else index.around(entries, base_offset, last.offset - 1)[0]
            )
        except CorruptIndexError:
            return None
        return before or last

    def _walked(self, end: int, last_offset: int, limit: int, near: OffsetPosition | None) -> tuple[int, int]:
        """Find the last batch like ``last``, but batch by batch: for formats without ``pick``, and after an error."""
        start = end
        if near is not None and near.position > end:
            batch = batch_at(self._segment, near.position, self._parts)
            if batch is not None and batch.last_offset < self._bound and near.position + batch.size_bytes <= limit:
                start = near.position
        for batch_end, batch_last in self._batches(start):
            if batch_end > limit or batch_last >= self._bound:
                break
            end, last_offset = batch_end, batch_last
        return end, last_offset

    def _batches(self, position: int) -> Iterator[tuple[int, int]]:
        try:
            for chunk in walk(self._segment, position, self._parts, check_crc=False, read_bytes=NEAR_BYTES):
                for batch in chunk.batches():
                    yield chunk.position + batch.position + batch.size_bytes, batch.last_offset
        except CorruptBatchError:
            return  # a reader that continues there gets this error
