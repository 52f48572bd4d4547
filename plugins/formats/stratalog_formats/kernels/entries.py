"""Builders of the entries of Kafka's offset and time indexes, in pure Python.

An entry is due for a batch if the batch starts more than ``interval_bytes`` bytes after the start of the last batch for
which an entry was due. When a segment is created or opened again, the count of bytes starts with 0, so no entry is due
for the next batch. Kafka has the same rules.

Source: apache/kafka LogSegment.append, recover.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from struct import Struct
from typing import Final

from stratalog.errors import CorruptBatchError
from stratalog.spi import AbortedTransaction, BatchTable, IndexBuilder, PreparedBatches

OFFSET_ENTRY: Final = Struct(">ii")  # last offset, relative to the base offset; position
TIME_ENTRY: Final = Struct(">qi")  # timestamp; offset, relative to the base offset
_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_MAX_POSITION: Final = (1 << 31) - 1


class _Entries(IndexBuilder):
    """Base class of ``OffsetEntries`` and ``TimeEntries``.

    Args:
        max_entries: number of entries that fit ``segment.index.bytes``.
        count: number of existing entries.
        last_offset: offset of the last existing entry. If there is none: -1, or for ``TimeEntries`` the base offset.
    """

    __slots__ = ("_base_offset", "_bytes_since", "_count", "_interval_bytes", "_last_offset", "_max_entries")

    def __init__(self, base_offset: int, interval_bytes: int, max_entries: int, count: int, last_offset: int) -> None:
        self._base_offset, self._interval_bytes, self._max_entries = base_offset, interval_bytes, max_entries
        self._count, self._last_offset = count, last_offset
        self._bytes_since = 0

    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        """Add batches, and return the bytes of their entries, which are often b"". ``aborted`` is ignored.

        Raises:
            CorruptBatchError: an offset cannot be in the segment, or does not follow the offset of the last entry. If
                the index is full, offsets may not be checked.
        """
        del aborted
        new_entries, table = list[bytes](), batches.table
        columns = (table.position, table.size_bytes, table.last_offset, table.max_timestamp_ms)
        has_good_offsets = self._has_good_offsets(table)
        for start, size_bytes, last_offset, max_timestamp_ms in zip(*columns, strict=True):
            if not has_good_offsets and self.full:
                break  # a full index needs no error for the remaining batches
            new_entries.append(self._entry(position + start, size_bytes, last_offset, max_timestamp_ms))
        return b"".join(new_entries)

    @abstractmethod
    def _entry(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bytes:
        """Add a batch, and return the bytes of its entry; b"" if it has none. Raises the errors of ``add``."""

    def _due(self, position: int, size_bytes: int, last_offset: int) -> bool:
        """Add a batch to the count of bytes since the last due entry. Return True if an entry is due for this batch.

        Raise CorruptBatchError if the batch's last offset is below the base offset, or more than 2^31 - 1 above it.
        """
        if not 0 <= last_offset - self._base_offset <= _MAX_RELATIVE_OFFSET:
            raise CorruptBatchError(
                f"offset {last_offset} cannot be in a segment that begins at {self._base_offset}", "", position
            )
        if self._bytes_since > self._interval_bytes:
            self._bytes_since = size_bytes
            return True
        self._bytes_since += size_bytes
        return False

    def _has_good_offsets(self, table: BatchTable) -> bool:
        """Return True if the offsets of the batches can follow the last entry in this segment.

        The offsets must ascend.
        """
        first, last = table.last_offset[0], table.last_offset[-1]
        is_inside = self._base_offset <= first and last - self._base_offset <= _MAX_RELATIVE_OFFSET
        return is_inside and first >= self._last_offset


class OffsetEntries(_Entries):
    """Builder of an offset index. An entry is the last offset and the position of a batch."""

    __slots__ = ()

    @property
    def full(self) -> bool:
        """True if ``segment.index.bytes`` has no room for another entry."""
        return self._count >= self._max_entries

    def _entry(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bytes:
        del max_timestamp_ms
        if not self._due(position, size_bytes, last_offset) or self._count >= self._max_entries:
            return b""
        if last_offset <= self._last_offset:
            raise not_ascending("offset", last_offset, self._last_offset, position)
        if not 0 <= position <= _MAX_POSITION:
            raise OverflowError(f"position {position} is no int32")
        self._last_offset = last_offset
        self._count += 1
        return OFFSET_ENTRY.pack(last_offset - self._base_offset, position)

    def finish(self) -> bytes:
        """Return b"": an offset index has no entry for the end of the segment."""
        return b""


class TimeEntries(_Entries):
    """Builder of a time index.

    An entry contains the largest timestamp so far, and the last offset of the first batch with this timestamp. When an
    entry is due, and at the end of the segment, an entry is added only if the largest timestamp has grown since the
    last entry.

    Args:
        last_ms: timestamp (ms) of the last entry; if there is none, -1.
        Others: see ``_Entries``.
    """

    __slots__ = ("_largest_ms", "_largest_offset", "_last_ms")

    def __init__(
        self, base_offset: int, interval_bytes: int, max_entries: int, count: int, last_offset: int, last_ms: int
    ) -> None:
        super().__init__(base_offset, interval_bytes, max_entries, count, last_offset)
        self._last_ms = self._largest_ms = last_ms
        self._largest_offset = last_offset

    @property
    def full(self) -> bool:
        """True if the index has no room for another entry before the entry of ``finish`` (``segment.index.bytes``)."""
        return self._count >= self._max_entries - 1

    def _entry(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bytes:
        due = self._due(position, size_bytes, last_offset)
        if max_timestamp_ms > self._largest_ms:
            if last_offset < self._last_offset:
                raise not_ascending("offset", last_offset, self._last_offset, position)
            self._largest_ms, self._largest_offset = max_timestamp_ms, last_offset
        return self._pair() if due and self._count < self._max_entries - 1 else b""

    def finish(self) -> bytes:
        """Return the last entry.

        Return b"" if the largest timestamp has not grown since the last entry, or there is no room.
        """
        return self._pair() if self._count < self._max_entries else b""

    def _pair(self) -> bytes:
        if self._largest_ms <= self._last_ms:
            return b""
        self._last_ms, self._last_offset = self._largest_ms, self._largest_offset
        self._count += 1
        return TIME_ENTRY.pack(self._last_ms, self._last_offset - self._base_offset)


def not_ascending(kind: str, value: int, last: int, position: int) -> CorruptBatchError:
    """Return the error for a batch at ``position`` whose ``value`` does not follow ``last``."""
    return CorruptBatchError(f"{kind} {value} does not follow {last}", "", position)
