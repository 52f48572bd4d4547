"""The time index, ``.timeindex``: from a timestamp to an offset from which on to look for it.

An entry is 12 bytes: a timestamp (int64, ms) and an offset relative to the segment's base (int32). It says that no
record up to the offset is newer than the timestamp. The offset is the last one of the first batch that has the
timestamp as its maximum; writers before Kafka 3.8 stored the record's own.

Source: apache/kafka TimeIndex.
"""

from __future__ import annotations

from itertools import accumulate
from struct import Struct
from typing import Final

from stratalog.spi import (
    NO_TIMESTAMP,
    BatchTable,
    Buffer,
    IndexBuilder,
    IndexFormat,
    IndexReader,
    IndexRole,
    TimestampOffset,
    TopicConfig,
)
from stratalog_formats.indexes.entries import EntryReader, IntervalBuilder, not_ascending

LAYOUT: Final = Struct(">qi")


class TimeReader(EntryReader[TimestampOffset]):
    """Searches by timestamp (ms)."""

    layout, key = LAYOUT, (0, 8)

    def _entry(self, index: int) -> TimestampOffset:
        timestamp_ms, relative = self._fields(index)
        return TimestampOffset(timestamp_ms, self._base_offset + relative)

    def _offset(self, index: int) -> int:
        relative: int = self._fields(index)[1]
        return self._base_offset + relative

    def _fault(self, end_offset: int, size_bytes: int) -> tuple[int, str] | None:
        del size_bytes
        end = end_offset - self._base_offset
        last_timestamp_ms, last_relative = NO_TIMESTAMP, 0
        for index, (timestamp_ms, relative) in enumerate(self._all_fields()):
            if timestamp_ms <= last_timestamp_ms:
                return index, f"timestamp {timestamp_ms} is out of order"
            if not last_relative <= relative < end:
                return index, f"offset {self._base_offset + relative} is out of order or outside the segment"
            last_timestamp_ms, last_relative = timestamp_ms, relative
        return None


class TimeBuilder(IntervalBuilder):
    """One entry an interval, and one at the end: the largest timestamp so far, if it has grown since the last entry."""

    __slots__ = ("_largest_ms", "_largest_offset", "_last_ms", "_last_offset")

    def __init__(self, base_offset: int, config: TopicConfig, entries: Buffer) -> None:
        written = TimeReader(entries, base_offset)
        max_entries = config.segment_index_bytes // LAYOUT.size
        super().__init__(base_offset, config.index_interval_bytes, len(written), max_entries)
        self._last_ms, self._last_offset = written[-1] if len(written) else (NO_TIMESTAMP, base_offset)
        self._largest_ms, self._largest_offset = self._last_ms, self._last_offset

    @property
    def full(self) -> bool:
        """Whether only the closing entry still fits ``segment.index.bytes``."""
        return self._count >= self._max_entries - 1

    def add_batch(
        self, position: int, size_bytes: int, base_offset: int, last_offset: int, max_timestamp_ms: int
    ) -> bytes:
        """The entry for the batches so far, if one is due, there is room and it says something new.

        Raises:
            CorruptBatchError: the offset is outside the segment, or below the last entry's.
        """
        del base_offset
        due = self._due(position, size_bytes, last_offset)
        if max_timestamp_ms > self._largest_ms:
            if last_offset < self._last_offset:
                raise not_ascending("offset", last_offset, self._last_offset, position)
            self._largest_ms, self._largest_offset = max_timestamp_ms, last_offset
        return self._pair() if due and self._count < self._max_entries - 1 else b""

    def add_table(self, table: BatchTable, position: int) -> bytes:
        """The same for many batches; where one is refused, as ``add`` does. A full index learns the maximum still."""
        if not len(table):
            return b""
        if not self._are_good(table) or table.last_offset[0] < self._last_offset:
            return super().add_table(table, position)
        stamps, lasts, made, at = table.max_timestamp_ms.tolist(), table.last_offset, list[bytes](), 0
        tops = list(accumulate(stamps, max))
        rows = self._due_rows(table)
        for row in (*rows, len(stamps) - 1):
            if tops[row] > self._largest_ms:
                at = stamps.index(tops[row], at)  # the first batch that has it
                self._largest_ms, self._largest_offset = tops[row], lasts[at]
            if len(made) < len(rows):
                made.append(b"" if self.full else self._pair())
        return b"".join(made)

    def finish(self) -> bytes:
        """The closing entry: the slot kept for it is used."""
        return self._pair() if self._count < self._max_entries else b""

    def _pair(self) -> bytes:
        if self._largest_ms <= self._last_ms:
            return b""
        self._last_ms, self._last_offset = self._largest_ms, self._largest_offset
        self._count += 1
        return LAYOUT.pack(self._last_ms, self._last_offset - self._base_offset)


class TimeIndex(IndexFormat[TimestampOffset]):
    """Entries are (timestamp, offset)."""

    role = IndexRole.TIME
    suffix = ".timeindex"
    entry_bytes = LAYOUT.size

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """A builder that goes on after ``entries``, whose last one holds the largest timestamp."""
        return TimeBuilder(base_offset, config, entries)

    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[TimestampOffset]:
        """A reader over ``entries``."""
        return TimeReader(entries, base_offset)

    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """The size of the entries with an offset below ``end_offset``."""
        return TimeReader(entries, base_offset).kept_bytes(end_offset)
