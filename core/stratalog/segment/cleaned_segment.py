"""A new segment under ``.cleaned`` names, which no reader sees until it replaces other segments.

Source: apache/kafka UnifiedLog.createNewCleanedSegment, LogSegment.append, onBecomeInactiveSegment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import ClassVar

from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.model.batches import NO_TIMESTAMP, BatchTable, Buffer
from stratalog.model.names import CLEANED_SUFFIX, EXTRA_SUFFIX, LOG_SUFFIX, SPOOL_SUFFIX, segment_file
from stratalog.model.offsets import TimestampOffset
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.segment.index_entries import NONE_ABORTED
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles


class CleanedSegment:
    """Writer of a segment that replaces others. For one thread, without the log's lock.

    Index entries are collected in memory, at most ``segment.index.bytes`` of each kind except for aborted transactions.

    Args:
        files: the log's folder.
        base_offset: base offset of the first segment that it replaces.
        parts: the log's components.
        config: settings of the topic.
    """

    state: ClassVar[str] = CLEANED_SUFFIX  # end of its file names

    def __init__(self, files: LogFiles, base_offset: int, parts: Components, config: TopicConfig) -> None:
        self.base_offset, self._files, self._parts = base_offset, files, parts
        self._suffixes = {role: found.suffix for role, found in parts.indexes.items()}
        self.largest = TimestampOffset(NO_TIMESTAMP, base_offset)
        self.entries = {role: bytearray() for role in self._suffixes}
        self._builders = {role: found.builder(base_offset, config) for role, found in parts.indexes.items()}
        for suffix in self.suffixes:
            files.remove(self.name(suffix))
        self._log = files.open_segment(self.name(LOG_SUFFIX), create=True)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, the log first."""
        return (LOG_SUFFIX, *self._suffixes.values())

    def name(self, suffix: str) -> str:
        """Return the name of one of its files before it is published."""
        return segment_file(self.base_offset, suffix) + self.state

    @property
    def size_bytes(self) -> int:
        """Size of the records written so far."""
        return self._log.size_bytes

    def append(self, data: Buffer, aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED) -> None:
        """Write whole batches of any magic.

        Args:
            data: the batches.
            aborted: the transactions that end with abort markers among the batches, by the marker's offset.

        Raises:
            DiskFullError: no space for them.
            LogDirOfflineError: writing failed.
        """
        start = self._log.append(data)
        for table in scan(self._parts.formats, data, 0, memoryview(data).nbytes, check_crc=False).tables:
            self._index(table, start, aborted)

    def append_damaged(self, data: Buffer) -> None:
        """Write bytes that are no good batches, to preserve them for a later inspection; errors as ``append``."""
        self._log.append(data)

    def _index(self, table: BatchTable, start: int, aborted: Mapping[int, AbortedTransaction]) -> None:
        batches = PreparedBatches(table)
        for role, builder in self._builders.items():
            self.entries[role] += builder.add(batches, start, aborted)
        if batches.largest_ms > self.largest.timestamp_ms:
            self.largest = TimestampOffset(batches.largest_ms, batches.largest_offset)

    def reopened(self, end_offset: int) -> Segment:
        """Return what was written so far as a segment, for reading before it is published; the caller closes it."""
        names = {suffix: self.name(suffix) for suffix in (*self.suffixes, EXTRA_SUFFIX)}
        log = self._files.open_segment(names[LOG_SUFFIX])
        return Segment(self._files, self.base_offset, end_offset, self._parts, log, names=names)

    def finish(self, modified_ms: int) -> None:
        """Write the indexes; make files and names durable, with the modification time of the replaced segments.

        Raises:
            DiskFullError, LogDirOfflineError: as ``append``.
        """
        self._log.sync()
        self._log.close()
        self._files.set_modified(self.name(LOG_SUFFIX), modified_ms)
        self._end_indexes()
        for role, entries in self.entries.items():
            if role is not IndexRole.TRANSACTION or entries:
                self._write_index(role, entries, modified_ms)
        self._files.sync()

    def _end_indexes(self) -> None:
        for role, builder in self._builders.items():
            self.entries[role] += builder.finish()

    def _write_index(self, role: IndexRole, entries: Buffer, modified_ms: int) -> None:
        name = self.name(self._suffixes[role])
        index = self._files.open_index(name, max_bytes=memoryview(entries).nbytes, writable=True, reserve=False)
        try:
            index.append(entries)
            index.sync()
        finally:
            index.close()
        self._files.set_modified(name, modified_ms)

    def discard(self) -> None:
        """Remove what was written, if the disk allows it; otherwise the next opening of the log removes it."""
        with contextlib.suppress(StorageError):
            self._log.close()
        for suffix in self.suffixes:
            with contextlib.suppress(StorageError):
                self._files.remove(self.name(suffix))


class SpooledSegment(CleanedSegment):
    """A new segment for a tier (a ``ByteSource``): its bytes stay beside the log until ``discard`` or a new opening."""

    state: ClassVar[str] = SPOOL_SUFFIX

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the bytes of the records from the start."""
        for position in range(0, self.size_bytes, chunk_bytes):
            yield self._log.read(position, chunk_bytes)

    def finish(self, modified_ms: int) -> None:
        """Finish the indexes, which stay in memory; nothing needs to be durable here."""
        del modified_ms
        self._end_indexes()
