"""The offset index, ``.index``. For an offset, it contains the position in the ``.log`` file where a search starts.

An entry has 8 bytes: the last offset of a batch, relative to the segment's base offset (int32), and the position where
the batch starts (int32, bytes). A search uses the last entry at or below the target offset, and scans the log from the
position of this entry.

Source: apache/kafka OffsetIndex.
"""

from __future__ import annotations

from stratalog.spi import IndexBuilder, IndexRole, OffsetPosition
from stratalog_formats.indexes.entries import EntryIndex, EntryReader
from stratalog_formats.kernels.dispatch import KERNELS, Kernels
from stratalog_formats.kernels.entries import OFFSET_ENTRY


class OffsetReader(EntryReader[OffsetPosition]):
    """Reader that searches by offset. Only ``after`` searches by position."""

    layout, key, is_key_relative = OFFSET_ENTRY, (0, 4), True

    def after(self, target: int) -> OffsetPosition | None:
        """Return the first entry whose position (bytes) is at or above ``target``; None if all positions are below."""
        index = KERNELS.entries_up_to(self._entries, self.layout.size, 4, 4, target - 1)
        return self._entry(index) if index < len(self) else None

    def _entry(self, index: int) -> OffsetPosition:
        relative, position = self._fields(index)
        return OffsetPosition(self._base_offset + relative, position)

    def _offset(self, index: int) -> int:
        relative: int = self._fields(index)[0]
        return self._base_offset + relative

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


class OffsetIndex(EntryIndex[OffsetPosition]):
    """Index format whose entries are (offset, position)."""

    role = IndexRole.OFFSET
    suffix = ".index"
    entry_bytes = OFFSET_ENTRY.size
    reader_class = OffsetReader

    def __init__(self, kernels: Kernels = KERNELS) -> None:
        super().__init__(kernels)
        self.around = kernels.offsets_around  # type: ignore[assignment, method-assign]  # saves a call

    def _continue_index(
        self, base_offset: int, interval_bytes: int, max_entries: int, existing: EntryReader[OffsetPosition]
    ) -> IndexBuilder:
        last_offset = existing[-1].offset if len(existing) else -1
        return self._kernels.offset_entries(base_offset, interval_bytes, max_entries, len(existing), last_offset)
