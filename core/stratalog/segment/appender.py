"""Appends to the active segment: bytes, index entries, and the decision when to roll.

Source: apache/kafka LogSegment.append, shouldRoll; the index rule per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from stratalog.config.topic import TopicConfig
from stratalog.errors import ClosedError, OutOfResourcesError, StorageError
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER, BatchTable, ScanStop
from stratalog.model.offsets import TimestampOffset
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.index_entries import NONE_ABORTED, rebuild_entries
from stratalog.segment.search import batch_at
from stratalog.segment.segment import MAX_FILE_BYTES, Segment
from stratalog.spi.indexes import IndexBuilder, IndexFormat, IndexRole
from stratalog.spi.segment_store import IndexFile


def roll_after_ms(config: TopicConfig) -> int:
    """Return the age (ms) at which a segment is rolled: ``segment.ms``, or less if compaction is due earlier.

    Source: apache/kafka LogConfig.maxSegmentMs.
    """
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def _batch_without_bytes(largest: TimestampOffset) -> PreparedBatches:
    """Return a batch without bytes, which gives a TIME index builder the largest timestamp of the earlier batches."""
    stamp, offset = largest
    row = (0, 0, offset, offset, stamp, stamp, NO_EPOCH, NO_PRODUCER, -1, -1, 1, 0, 0)
    return PreparedBatches(BatchTable.from_rows(2, [row], ScanStop.END, 0))


class Appender:
    """Writer of one active segment. It is used only under the log's lock.

    The index files of an empty segment are created at once: on a full disk, this fails early. The transaction index
    gets its file with its first entry. The first append opens the index files of an existing segment, because an engine
    may open 10,000 logs and write to few of them.

    Args:
        segment: the active segment. The log closes it, not the appender.
        components: the log's components.
        config: settings of the topic when the segment became active.
        jitter_ms: subtracted from ``segment.ms`` for this segment.
        is_idle: True if nothing will be appended: no index file is created.
        is_rebuilt: True if recovery rebuilt the index files, which are not synced yet.

    Attributes:
        room_bytes: maximum size of batches that need no call of ``should_roll``, if they also keep the limits
            ``unchecked_to_ms`` and ``unchecked_to_offset``; negative if the limit is not known.
        unchecked_to_ms: largest timestamp of batches that need no call of ``should_roll``.
        unchecked_to_offset: largest offset of batches that need no call of ``should_roll``.
    """

    __slots__ = (
        "_builders",
        "_components",
        "_config",
        "_created_ms",
        "_first_timestamp_ms",
        "_growing",
        "_has_full_index",
        "_index_config",
        "_is_rebuilt",
        "_largest_ms",
        "_latest_ms",
        "jitter_ms",
        "room_bytes",
        "segment",
        "unchecked_to_ms",
        "unchecked_to_offset",
    )

    def __init__(
        self,
        segment: Segment,
        components: Components,
        config: TopicConfig,
        jitter_ms: int = 0,
        *,
        is_idle: bool = False,
        is_rebuilt: bool = False,
    ) -> None:
        self.segment, self._components, self._config, self.jitter_ms = segment, components, config, jitter_ms
        self._created_ms, self._is_rebuilt = components.env.clock.now_ms(), is_rebuilt
        self._index_config = config  # settings with which the open index files were opened
        self._first_timestamp_ms: int | None = None
        self._largest_ms = -2  # at most the segment's largest timestamp, which is looked up when a batch is later
        self._latest_ms: int | None = None  # latest timestamp before a roll; None: decided by the clock, or not known
        self._builders: tuple[
            IndexBuilder, ...
        ] = ()  # one for each role of ``components.indexes``; empty: no index is open
        self._growing: tuple[
            tuple[IndexBuilder, IndexFile], ...
        ] = ()  # indexes that get entries of any batch, not only of markers; empty: not known
        self._has_full_index: bool | None = (
            None  # True if an index accepts no further entry; None: an index may have changed
        )
        self.room_bytes, self.unchecked_to_ms, self.unchecked_to_offset = (
            -1,
            -1,
            segment.base_offset + MAX_RELATIVE_OFFSET,
        )
        if not segment.size_bytes and not is_idle:
            self.prepare()

    def prepare(self) -> None:
        """Open the index files, unless they are open. If this method is not called, the first append opens them.

        After a truncation, call ``prepare`` before ``finish``: the truncation removed the closing index entries.
        """
        if self._builders:
            return
        if not self.segment.indexes():
            self._index_config = self._config
        builders = []
        for role, index_format in self._components.indexes.items():
            entries = self._read_entries(role, index_format)
            builder, due = self._begin_builder(role, index_format, entries)
            builders.append(builder)
            entries += due
            if role in self.segment.indexes():  # by an earlier call that failed, or before ``complete_indexes``
                self._write_index(role, due)
                continue
            if role is not IndexRole.TRANSACTION or entries:
                self._open_index(role, index_format, entries)
        self._builders = tuple(builders)
        self._discard_derived()

    def should_roll(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Return True if batches with this size, last offset and largest timestamp must go to a new segment.

        The call opens the index files if necessary, and may update ``room_bytes`` and ``unchecked_to_ms``.
        """
        if not self._builders:
            self.prepare()
        held_bytes, limit_bytes = self.segment.size_bytes, self._config.segment_bytes
        if held_bytes:
            if held_bytes + size_bytes > limit_bytes or self._is_late(max_timestamp_ms):
                return True
            if self._latest_ms is not None and not self.has_full_index:
                self.room_bytes, self.unchecked_to_ms = limit_bytes - held_bytes, self._latest_ms
        return self.has_full_index or not self.segment.base_offset <= last_offset <= self.unchecked_to_offset

    @property
    def has_full_index(self) -> bool:
        """True if an open index accepts no further entry; False while no index is open."""
        if self._has_full_index is None:
            self._has_full_index = any(builder.full for builder in self._builders)
        return self._has_full_index

    def _discard_derived(self) -> None:
        """Discard values derived from settings, times and indexes, because one of these may have changed."""
        self._has_full_index, self.room_bytes, self._growing = None, -1, ()

    def is_overdue(self) -> bool:
        """Return True if the segment has records and must be rolled because of its age by the clock.

        The age counts from the largest timestamp of the first batch. If that batch has no timestamp, the age counts
        from the creation of the appender. The limit is ``roll_after_ms`` minus the jitter.
        """
        now_ms = self._components.env.clock.now_ms()
        return bool(self.segment.size_bytes) and self._age_at(now_ms) > self._roll_ms()

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic; the jitter stays the same. Open indexes keep their settings, as in Kafka."""
        self._config = config
        self._discard_derived()
        if self._first_timestamp_ms is not None:
            self._begins_at(self._first_timestamp_ms)

    def append(self, batches: PreparedBatches, aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED) -> None:
        """Write batches that have their offsets: either all, or none.

        A full offset or time index gets no further entry; a search then reads more of the log. ``aborted`` contains the
        transactions that the batches abort, by the offset of their marker.

        Raises:
            OutOfResourcesError: no space or no descriptors for the bytes or their index entries; the append was undone.
            ClosedError: the append failed for lack of space or descriptors, and could not be undone.
            StorageError: writing failed for another reason; part of the append may be in the files.
        """
        if not self._builders:
            self.prepare()
        segment = self.segment
        start = segment.file.append(batches.data)
        try:
            for builder, index in self._growing or self._growing_indexes():
                entries = builder.add(batches, start, aborted)
                if entries:
                    index.append(entries)
                    if builder.full:
                        self._has_full_index, self.room_bytes = True, -1
            if aborted:
                self._index_aborted(batches, start, aborted)
        except StorageError:
            self._take_back(start)
            raise
        self.room_bytes -= batches.size_bytes
        if batches.largest_ms > self._largest_ms:
            if batches.largest_ms > segment.largest.timestamp_ms:
                segment.largest = TimestampOffset(batches.largest_ms, batches.largest_offset)
            self._largest_ms = segment.largest.timestamp_ms
        if self._first_timestamp_ms is None:
            self._begins_at(batches.table.max_timestamp_ms[0])
        segment.end_offset = batches.last_offset + 1

    def _index_aborted(self, batches: PreparedBatches, start: int, aborted: Mapping[int, AbortedTransaction]) -> None:
        for role, builder in self._iter_builders():
            if role is IndexRole.TRANSACTION:
                self._write_index(role, builder.add(batches, start, aborted))

    def _growing_indexes(self) -> tuple[tuple[IndexBuilder, IndexFile], ...]:
        """Return and store the builders and files of the open indexes, without the transaction index."""
        index_files = self.segment.indexes()
        self._growing = tuple(
            (builder, index_files[role])
            for role, builder in self._iter_builders()
            if role is not IndexRole.TRANSACTION and role in index_files
        )
        return self._growing

    def complete_indexes(self) -> None:
        """Write the closing index entries, release the reserved space, and sync. The index files stay open.

        If nothing was appended since the segment was opened, its closing entries are already in the files. After a
        truncation, the closing entries are missing: call ``prepare`` first. The next append begins new builders, which
        continue after the stored entries.

        Raises:
            OutOfResourcesError: no space or no descriptors for the closing entries. A later call writes them.
            StorageError: writing or syncing an index failed.
        """
        if self.segment.indexes():
            self.prepare()  # after a failed call
        elif self._is_rebuilt:
            self._sync_files()
        try:
            for role, builder in self._iter_builders() if self._builders else ():
                self._write_index(role, builder.finish())
        finally:
            self._builders = ()
            self._discard_derived()
        for index in self.segment.indexes().values():
            index.trim()
            index.sync()
        self._is_rebuilt = False

    def _sync_files(self) -> None:
        """Sync the index files that exist. They are not open, because nothing was appended since the recovery."""
        files = self.segment.files
        existing = {file.name for file in files.list()}
        for index_format in self._components.indexes.values():
            name = self.segment.file_name(index_format.suffix)
            if name in existing:
                with closing(files.open_index(name, max_bytes=MAX_FILE_BYTES, writable=True, reserve=False)) as index:
                    index.sync()

    def finish(self) -> None:
        """Complete the indexes and close their files; raise the errors of ``complete_indexes`` and ``seal``."""
        self.complete_indexes()
        self.seal()

    def seal(self) -> None:
        """Close the index files. Call ``complete_indexes`` first.

        Raises:
            ClosedError: no descriptors or no space to seal the segment; some of its indexes may be closed.
            StorageError: closing an index failed.
        """
        try:
            self.segment.seal()
        except OutOfResourcesError as error:
            raise ClosedError(f"closing a segment failed, {error.reason}: open the log again") from error

    def _take_back(self, start: int) -> None:
        """Undo a failed append: truncate the ``.log`` file to ``start``, and remove the index entries of the append.

        Raise ClosedError if there is no space or descriptor for that: the files then contain bytes that the log does
        not count.
        """
        try:
            self._cut_to(start)
        except OutOfResourcesError as error:
            reason = f"a failed append could not be undone, {error.reason}: open the log again"
            raise ClosedError(f"{reason} path={self.segment.label}") from error

    def _cut_to(self, start: int) -> None:
        segment = self.segment
        segment.file.truncate(start)
        builders, index_files = [], segment.indexes()
        for role, index_format in self._components.indexes.items():
            index = index_files.get(role)
            if index is not None:
                index.truncate(index_format.kept_bytes(index.view(), segment.base_offset, segment.end_offset))
            builders.append(self._begin_builder(role, index_format, b"" if index is None else bytes(index.view()))[0])
        self._builders = tuple(builders)
        self._discard_derived()

    def _iter_builders(self) -> Iterator[tuple[IndexRole, IndexBuilder]]:
        return zip(self._components.indexes, self._builders, strict=True)

    def _read_entries(self, role: IndexRole, index_format: IndexFormat[Any]) -> bytes:
        """Return the stored entries of an index; rebuild them if the last entry of a time index contradicts the log."""
        segment, largest = self.segment, self.segment.largest
        entries = bytes(segment.index_entries(role))
        if role is IndexRole.TIME and entries:
            last: TimestampOffset = index_format.reader(entries, segment.base_offset)[-1]
            is_passed_over = last.timestamp_ms < largest.timestamp_ms and last.offset >= largest.offset
            if is_passed_over or last.timestamp_ms > largest.timestamp_ms:
                return rebuild_entries(segment, role, self._components)
        return entries

    def _begin_builder(
        self, role: IndexRole, index_format: IndexFormat[Any], entries: bytes
    ) -> tuple[IndexBuilder, bytes]:
        """Return the builder that continues after ``entries``, and the entry bytes that must be written at once.

        A time index must have the segment's largest timestamp before it gets an entry of a later batch.
        """
        segment, largest = self.segment, self.segment.largest
        builder = index_format.builder(segment.base_offset, self._index_config, entries=entries)
        if role is not IndexRole.TIME or largest.timestamp_ms < 0 or builder.full:
            return builder, b""
        return builder, builder.add(_batch_without_bytes(largest), 0, NONE_ABORTED)

    def _write_index(self, role: IndexRole, entries: bytes) -> None:
        if not entries:
            return
        index = self.segment.indexes().get(role) or self._open_index(role, self._components.indexes[role], b"")
        index.append(entries)

    def _open_index(self, role: IndexRole, index_format: IndexFormat[Any], entries: bytes) -> IndexFile:
        name = self.segment.file_name(index_format.suffix)
        limit = self._index_config.segment_index_bytes // index_format.entry_bytes * index_format.entry_bytes
        # a transaction index omits no entry, and reserved zeros would be entries
        reserve = role is not IndexRole.TRANSACTION
        index = self.segment.files.open_index(
            name, max_bytes=max(limit, len(entries)) if reserve else MAX_FILE_BYTES, writable=True, reserve=reserve
        )
        # The file did not fit the log, or still has reserved space after a crash.
        if index.size_bytes != len(entries) or bytes(index.view()) != entries:
            index.truncate(0)
            index.append(entries)
        self.segment.use_index(role, index)
        self._discard_derived()
        return index

    def _roll_ms(self) -> int:
        return max(roll_after_ms(self._config) - self.jitter_ms, 0)  # the jitter may exceed changed settings

    def _age_at(self, max_timestamp_ms: int) -> int:
        first = self._first_timestamp_ms
        if first is None:
            batch = batch_at(self.segment, 0, self._components)
            first = -1 if batch is None else batch.max_timestamp_ms
            self._begins_at(first)
        return max_timestamp_ms - first if first >= 0 else self._components.env.clock.now_ms() - self._created_ms

    def _begins_at(self, first_timestamp_ms: int) -> None:
        """Store the timestamp of the segment's first batch; -1 if the batch has none."""
        self._first_timestamp_ms, self.room_bytes = first_timestamp_ms, -1
        self._latest_ms = first_timestamp_ms + self._roll_ms() if first_timestamp_ms >= 0 else None

    def _is_late(self, max_timestamp_ms: int) -> bool:
        """Return True if a batch with this timestamp must go to a new segment because of ``segment.ms``."""
        if self._latest_ms is None:
            return self._age_at(max_timestamp_ms) > self._roll_ms()
        return max_timestamp_ms > self._latest_ms
