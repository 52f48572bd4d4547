"""Growing the active segment: bytes, index entries, when to roll.

Source: apache/kafka LogSegment.append, shouldRoll; the index rule per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stratalog.config.topic import TopicConfig
from stratalog.errors import ClosedError, OutOfResourcesError, StorageError
from stratalog.model.batches import BatchTable, Buffer, RecordBatch
from stratalog.model.offsets import TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.index_entries import appended, rebuilt_entries
from stratalog.segment.search import batch_at
from stratalog.segment.segment import MAX_FILE_BYTES, Segment
from stratalog.spi.indexes import Appended, IndexBuilder, IndexFormat, IndexRole
from stratalog.spi.segment_store import IndexFile


def roll_after_ms(config: TopicConfig) -> int:
    """How long records may go into one segment: ``segment.ms``, or less where they have to be compacted before that.

    Source: apache/kafka LogConfig.maxSegmentMs.
    """
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


class Appender:
    """Writes to one active segment. Used under the log's lock alone.

    An empty segment gets its index files at once: what there is no room for is told before anything depends on it. Those
    of one that was found are opened by the first append: of 10,000 logs that an engine opens, few are written to soon.

    Args:
        segment: the active segment; borrowed.
        config: of the topic, when the segment became active.
        jitter_ms: taken off ``segment.ms`` for this segment.
        is_idle: nothing will be appended: no index file is made.
    """

    __slots__ = (
        "_builders",
        "_config",
        "_created_ms",
        "_first_timestamp_ms",
        "_growing",
        "_is_full",
        "_is_ready",
        "_jitter_ms",
        "_latest_ms",
        "_parts",
        "_room_bytes",
        "segment",
    )

    def __init__(
        self, segment: Segment, parts: Components, config: TopicConfig, jitter_ms: int = 0, *, is_idle: bool = False
    ) -> None:
        self.segment, self._parts, self._config, self._jitter_ms = segment, parts, config, jitter_ms
        self._created_ms = parts.env.clock.now_ms()
        self._first_timestamp_ms: int | None = None
        self._latest_ms: int | None = None  # what goes into the segment is no newer; None: the clock says, or not known
        self._builders: tuple[IndexBuilder, ...] = ()  # one a role of ``parts.indexes``, in its order
        self._growing: tuple[tuple[IndexBuilder, IndexFile], ...] = ()  # of plain batches; empty: to be listed again
        self._is_full: bool | None = None  # whether any of them takes no further entry; None: one may have changed
        self._room_bytes = -1  # up to this size the segment takes what is no newer than _latest_ms; -1: not known
        self._is_ready = False  # whether all indexes are open
        if not segment.size_bytes and not is_idle:
            self._open_indexes()

    def _open_indexes(self) -> None:
        if self._is_ready:
            return
        builders = []
        for role, found in self._parts.indexes.items():
            entries = self._entries(role, found)
            builder, due = self._begun(role, found, entries)
            builders.append(builder)
            entries += due
            if role in self.segment.indexes():
                continue  # opened by a call that had no room for the next one
            if role is not IndexRole.TRANSACTION or entries:
                self._open_index(role, found, entries)
        self._builders, self._is_ready = tuple(builders), True
        self._changed()

    def prepare(self) -> None:
        """Open the indexes now and not with the first append: of a segment that was cut the closing entries are missing."""
        self._open_indexes()

    def should_roll(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Whether a set of this size, end and time must go to a new segment."""
        segment = self.segment
        if (
            segment.log.size_bytes + size_bytes <= self._room_bytes
            and max_timestamp_ms <= self._latest_ms  # type: ignore[operator]  # known where _room_bytes is
            and 0 <= last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        ):
            return False  # nearly always
        if not self._is_ready:
            self._open_indexes()
        if segment.size_bytes:
            if segment.size_bytes + size_bytes > self._config.segment_bytes or self._is_late(max_timestamp_ms):
                return True
            if self._latest_ms is not None and not self.is_full:
                self._room_bytes = self._config.segment_bytes
        return self.is_full or not 0 <= last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET

    @property
    def is_full(self) -> bool:
        """Whether an index takes no further entry."""
        if self._is_full is None:
            self._is_full = any(builder.full for builder in self._builders)
        return self._is_full

    def _changed(self) -> None:
        """Forget what was derived from settings, times and indexes: one of them may have changed."""
        self._is_full, self._room_bytes, self._growing = None, -1, ()

    def has_waited(self) -> bool:
        """Whether the segment holds something and ``segment.ms`` has passed, by the clock, since its first record."""
        now_ms = self._parts.env.clock.now_ms()
        return bool(self.segment.size_bytes) and self._waited_ms(now_ms) > self._roll_ms()

    def configure(self, config: TopicConfig) -> None:
        """Take new settings of the topic; the jitter stays as it was drawn."""
        self._config = config
        self._changed()
        if self._first_timestamp_ms is not None:
            self._begins_at(self._first_timestamp_ms)

    def append(
        self,
        parts: Sequence[Buffer],
        batches: Sequence[RecordBatch],
        aborted: Mapping[int, AbortedTransaction] | None = None,
    ) -> None:
        """Write batches behind each other; all or none.

        An index that is full takes no further entry: a search then scans a little further.

        Args:
            parts: the bytes.
            batches: their headers, positions relative to the first byte.
            aborted: transactions that abort markers among the batches end, by the marker's offset.

        Raises:
            DiskFullError: no space for the bytes or their index entries; nothing stays written.
            LogDirOfflineError: writing failed.
        """
        self._open_indexes()
        segment = self.segment
        largest = segment.largest
        start = segment.log.append(parts)
        try:
            self._index(start, batches, aborted or {})
        except StorageError:
            self._take_back(start)
            raise
        for batch in batches:
            if batch.max_timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(batch.max_timestamp_ms, batch.last_offset)
        if self._first_timestamp_ms is None:
            self._begins_at(batches[0].max_timestamp_ms)
        segment.largest = largest
        segment.end_offset = batches[-1].next_offset

    def append_batch(self, data: Buffer, base_offset: int, last_offset: int, max_timestamp_ms: int) -> None:
        """As ``append``, of one batch, with these offsets and this time, that ends no transaction."""
        if not self._is_ready:
            self._open_indexes()
        segment, size = self.segment, len(data)
        is_full = self.is_full if self._is_full is None else self._is_full
        growing = self._growing or self._grow()
        start = segment.log.append((data,))
        try:
            for builder, index in growing:
                if is_full and builder.full:
                    continue
                entries = builder.add_batch(start, size, base_offset, last_offset, max_timestamp_ms)
                if entries:
                    index.append(entries)
                    if builder.full:
                        self._is_full, self._room_bytes = True, -1
        except StorageError:
            self._take_back(start)
            raise
        if max_timestamp_ms > segment.largest.timestamp_ms:
            segment.largest = TimestampOffset(max_timestamp_ms, last_offset)
        if self._first_timestamp_ms is None:
            self._begins_at(max_timestamp_ms)
        segment.end_offset = last_offset + 1

    def _grow(self) -> tuple[tuple[IndexBuilder, IndexFile], ...]:
        """The indexes that plain batches have entries in, with their builders: a transaction index has none."""
        opened = self.segment.indexes()
        self._growing = tuple(
            (builder, opened[role])
            for role, builder in self._by_role()
            if role is not IndexRole.TRANSACTION and role in opened
        )
        return self._growing

    def append_table(self, data: Buffer, table: BatchTable) -> None:
        """As ``append``, of batches behind each other that end no transaction: ``table`` is a scan of ``data`` from 0."""
        self._open_indexes()
        segment = self.segment
        largest = segment.largest
        start = segment.log.append([data])
        try:
            for role, builder in self._by_role():
                if not builder.full:
                    self._write_index(role, builder.add_table(table, start))
            self._is_full, self._room_bytes = None, -1
        except StorageError:
            self._take_back(start)
            raise
        stamps = table.max_timestamp_ms
        top = max(stamps)
        if top > largest.timestamp_ms:
            largest = TimestampOffset(top, table.last_offset[stamps.tolist().index(top)])
        if self._first_timestamp_ms is None:
            self._begins_at(stamps[0])
        segment.largest = largest
        segment.end_offset = table.last_offset[-1] + 1

    def finish(self) -> None:
        """Write the closing entries and seal the segment; whoever left one that nothing was added to has done so.

        Who cut it has not, and is to ``prepare`` it.

        Raises:
            OutOfResourcesError: no space or no descriptors for the closing entries; the segment is not sealed.
            ClosedError: no descriptors to seal it; some of its indexes may be closed.
        """
        for role, builder in self._by_role() if self._is_ready else ():
            self._write_index(role, builder.finish())
        try:
            self.segment.seal()
        except OutOfResourcesError as error:
            raise ClosedError(f"a segment was closed in part, {error.reason}: open the log again") from error

    def _index(self, start: int, batches: Sequence[RecordBatch], aborted: Mapping[int, AbortedTransaction]) -> None:
        due: dict[IndexRole, list[bytes]] = {role: [] for role in self._parts.indexes}
        for batch in batches:
            told = appended(batch, start + batch.position, aborted.get(batch.last_offset))
            for role, builder in self._by_role():
                if not builder.full:
                    due[role].append(builder.add(told))
        for role, entries in due.items():
            self._write_index(role, b"".join(entries))
        self._is_full, self._room_bytes = None, -1

    def _take_back(self, start: int) -> None:
        """Cut what an append wrote from ``start`` on: its index entries did not go in.

        Builders have seen those batches, so they begin again after the entries that are left.

        Raises:
            ClosedError: the system lacked descriptors or space for that: the files hold more than the log counts.
        """
        try:
            self._cut_to(start)
        except OutOfResourcesError as error:
            reason = f"what an append wrote could not be taken back, {error.reason}: open the log again"
            raise ClosedError(f"{reason} path={self.segment.label}") from error

    def _cut_to(self, start: int) -> None:
        segment = self.segment
        segment.log.truncate(start)
        builders, opened = [], segment.indexes()
        for role, found in self._parts.indexes.items():
            index = opened.get(role)
            if index is not None:
                index.truncate(found.kept_bytes(index.view(), segment.base_offset, segment.end_offset))
            builders.append(self._begun(role, found, b"" if index is None else bytes(index.view()))[0])
        self._builders = tuple(builders)
        self._changed()

    def _by_role(self) -> Iterator[tuple[IndexRole, IndexBuilder]]:
        return zip(self._parts.indexes, self._builders, strict=True)

    def _entries(self, role: IndexRole, found: IndexFormat[Any]) -> bytes:
        """The entries to go on after: made again if a time index's last one is not true of the log.

        It passes for sound if it fits the segment's bounds, but no later entry could follow it.
        """
        segment, largest = self.segment, self.segment.largest
        entries = bytes(segment.index_entries(role))
        if role is IndexRole.TIME and entries:
            last: TimestampOffset = found.reader(entries, segment.base_offset)[-1]
            passed_over = last.timestamp_ms < largest.timestamp_ms and last.offset >= largest.offset
            if passed_over or last.timestamp_ms > largest.timestamp_ms:
                return rebuilt_entries(segment, role, self._parts)
        return entries

    def _begun(self, role: IndexRole, found: IndexFormat[Any], entries: bytes) -> tuple[IndexBuilder, bytes]:
        """The builder that goes on after ``entries``, and the entry bytes due at once.

        Entries may lack the segment's largest timestamp, which a time index has to know of before it says of later
        batches that nothing before them is newer.
        """
        segment, largest = self.segment, self.segment.largest
        builder = found.builder(segment.base_offset, self._config, entries=entries)
        if role is not IndexRole.TIME or largest.timestamp_ms < 0 or builder.full:
            return builder, b""
        return builder, builder.add(Appended(0, 0, largest.offset, largest.offset, largest.timestamp_ms))

    def _write_index(self, role: IndexRole, entries: bytes) -> None:
        if not entries:
            return
        index = self.segment.indexes().get(role) or self._open_index(role, self._parts.indexes[role], b"")
        index.append(entries)

    def _open_index(self, role: IndexRole, found: IndexFormat[Any], entries: bytes) -> IndexFile:
        name = self.segment.file_name(found.suffix)
        limit = self._config.segment_index_bytes // found.entry_bytes * found.entry_bytes
        reserve = role is not IndexRole.TRANSACTION  # its entries are never left out, and zeros would be some
        index = self.segment.files.open_index(
            name, max_bytes=max(limit, len(entries)) if reserve else MAX_FILE_BYTES, writable=True, reserve=reserve
        )
        if (
            index.size_bytes != len(entries) or bytes(index.view()) != entries
        ):  # it did not fit the log, or was left preallocated by a crash
            index.truncate(0)
            index.append(entries)
        self.segment.use_index(role, index)
        self._changed()
        return index

    def _roll_ms(self) -> int:
        return max(roll_after_ms(self._config) - self._jitter_ms, 0)  # settings may have changed since it was drawn

    def _waited_ms(self, max_timestamp_ms: int) -> int:
        first = self._first_timestamp_ms
        if first is None:
            first = self._stored_first_timestamp_ms()
            self._begins_at(first)
        return max_timestamp_ms - first if first >= 0 else self._parts.env.clock.now_ms() - self._created_ms

    def _begins_at(self, first_timestamp_ms: int) -> None:
        """Note the time of the segment's first batch, -1 if it has none."""
        self._first_timestamp_ms, self._room_bytes = first_timestamp_ms, -1
        self._latest_ms = first_timestamp_ms + self._roll_ms() if first_timestamp_ms >= 0 else None

    def _is_late(self, max_timestamp_ms: int) -> bool:
        """Whether it is time for a new segment before what has this time."""
        if self._latest_ms is None:
            return self._waited_ms(max_timestamp_ms) > self._roll_ms()
        return max_timestamp_ms > self._latest_ms

    def _stored_first_timestamp_ms(self) -> int:
        first = batch_at(self.segment, 0, self._parts)
        return -1 if first is None else first.max_timestamp_ms
