"""The time index, ``.timeindex``. For a timestamp, it contains the offset where a search starts.

An entry has 12 bytes: a timestamp (int64, ms), and an offset relative to the segment's base offset (int32). No record
up to the offset is newer than the timestamp. The offset is the last offset of the first batch whose largest timestamp
is the entry's timestamp. Kafka before 3.8 stored the offset of the record with this timestamp.

Source: apache/kafka TimeIndex.
"""

from __future__ import annotations

from stratalog.spi import NO_TIMESTAMP, Buffer, IndexBuilder, IndexRole, TimestampOffset
from stratalog_formats.indexes.entries import EntryIndex, EntryReader
from stratalog_formats.kernels.entries import TIME_ENTRY


class TimeReader(EntryReader[TimestampOffset]):
    """Reader that searches by timestamp (ms)."""

    layout, key = TIME_ENTRY, (0, 8)

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


class TimeIndex(EntryIndex[TimestampOffset]):
    """Index format whose entries are (timestamp, offset)."""

    role = IndexRole.TIME
    suffix = ".timeindex"
    entry_bytes = TIME_ENTRY.size
    reader_class = TimeReader

    def _continue_index(
        self, base_offset: int, interval_bytes: int, max_entries: int, existing: EntryReader[TimestampOffset]
    ) -> IndexBuilder:
        last_ms, last_offset = existing[-1] if len(existing) else (NO_TIMESTAMP, base_offset)
        return self._kernels.time_entries(base_offset, interval_bytes, max_entries, len(existing), last_offset, last_ms)

    def around(
        self, entries: Buffer, base_offset: int, target: int
    ) -> tuple[TimestampOffset | None, TimestampOffset | None, TimestampOffset | None]:
        """Return (entry, None, None) with the last entry whose timestamp is at or below ``target`` (ms).

        The entry is None if all timestamps are above ``target``. Unlike other index formats, this format never returns
        the next two entries.
        """
        index = self._kernels.entries_up_to(entries, TIME_ENTRY.size, *TimeReader.key, target)
        if not index:
            return None, None, None
        timestamp_ms, relative = TIME_ENTRY.unpack_from(entries, (index - 1) * TIME_ENTRY.size)
        return TimestampOffset(timestamp_ms, base_offset + relative), None, None
