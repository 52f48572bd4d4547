"""The offset index, ``.index``: from an offset to where in the ``.log`` file to look for it.

An entry is 8 bytes: the last offset of a batch, relative to the segment's base (int32), and the position where the
batch starts (int32, bytes). A search takes the greatest entry at or below its target and scans from there.

Source: apache/kafka OffsetIndex.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

from stratalog.spi import (
    BatchTable,
    Buffer,
    IndexBuilder,
    IndexFormat,
    IndexReader,
    IndexRole,
    OffsetPosition,
    TopicConfig,
)
from stratalog_formats.indexes.entries import EntryReader, IntervalBuilder, not_ascending
from stratalog_formats.kernels.choice import KERNELS

LAYOUT: Final = Struct(">ii")


class OffsetReader(EntryReader[OffsetPosition]):
    """Searches by offset, ``after`` by position."""

    layout, key, is_key_relative = LAYOUT, (0, 4), True

    def after(self, target: int) -> OffsetPosition | None:
        """The first entry whose position (bytes) is at or above ``target``."""
        index = bisect_left(range(len(self)), target, key=self._position)
        return self._entry(index) if index < len(self) else None

    def _entry(self, index: int) -> OffsetPosition:
        relative, position = self._fields(index)
        return OffsetPosition(self._base_offset + relative, position)

    def _offset(self, index: int) -> int:
        relative: int = self._fields(index)[0]
        return self._base_offset + relative

    def _position(self, index: int) -> int:
        position: int = self._fields(index)[1]
        return position

    def _fault(self, end_offset: int, size_bytes: int) -> tuple[int, str] | None:
        end = end_offset - self._base_offset
        last_relative = last_position = -1
        for index, (relative, position) in enumerate(self._all_fields()):
            if not last_relative < relative < end:
                return index, f"offset {self._base_offset + relative} is out of order or outside the segment"
            if not last_position < position < size_bytes:
                return index, f"position {position} is out of order or outside the segment"
            last_relative, last_position = relative, position
        return None


class OffsetBuilder(IntervalBuilder):
    """One entry an interval: last offset and position of the batch that comes after it."""

    __slots__ = ("_last_offset",)

    def __init__(self, base_offset: int, config: TopicConfig, entries: Buffer) -> None:
        written = OffsetReader(entries, base_offset)
        max_entries = config.segment_index_bytes // LAYOUT.size
        super().__init__(base_offset, config.index_interval_bytes, len(written), max_entries)
        self._last_offset = written[-1].offset if len(written) else -1

    @property
    def full(self) -> bool:
        """Whether ``segment.index.bytes`` holds no further entry."""
        return self._count >= self._max_entries

    def add_batch(
        self, position: int, size_bytes: int, base_offset: int, last_offset: int, max_timestamp_ms: int
    ) -> bytes:
        """The entry for a batch, if one is due and there is room.

        Raises:
            CorruptBatchError: the offset is outside the segment, or not above the last entry's.
        """
        del base_offset, max_timestamp_ms
        if not self._due(position, size_bytes, last_offset) or self._count >= self._max_entries:
            return b""
        if last_offset <= self._last_offset:
            raise not_ascending("offset", last_offset, self._last_offset, position)
        self._last_offset = last_offset
        self._count += 1
        return LAYOUT.pack(last_offset - self._base_offset, position)

    def add_table(self, table: BatchTable, position: int) -> bytes:
        """The same for many batches; where one is refused, as ``add`` does."""
        if not len(table):
            return b""
        lasts, starts = table.last_offset, table.position
        if not self._are_good(table) or lasts[0] <= self._last_offset:
            return super().add_table(table, position)
        due = self._due_rows(table)[: max(self._max_entries - self._count, 0)]
        if not due:
            return b""
        self._last_offset = lasts[due[-1]]
        self._count += len(due)
        base = self._base_offset
        return b"".join([LAYOUT.pack(lasts[row] - base, position + starts[row]) for row in due])

    def finish(self) -> bytes:
        """Nothing: a closed segment's offset index has no closing entry."""
        return b""


class OffsetIndex(IndexFormat[OffsetPosition]):
    """Entries are (offset, position)."""

    role = IndexRole.OFFSET
    suffix = ".index"
    entry_bytes = LAYOUT.size

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """A builder that goes on after ``entries``."""
        return OffsetBuilder(base_offset, config, entries)

    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[OffsetPosition]:
        """A reader over ``entries``."""
        return OffsetReader(entries, base_offset)

    def around(
        self, entries: Buffer, base_offset: int, target: int
    ) -> tuple[OffsetPosition | None, OffsetPosition | None, OffsetPosition | None]:
        """The last entry at or below an offset, and the two after it."""
        return KERNELS.offsets_around(entries, base_offset, target)

    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """The size of the entries with an offset below ``end_offset``."""
        return OffsetReader(entries, base_offset).kept_bytes(end_offset)
