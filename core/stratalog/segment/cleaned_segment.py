"""A segment in the making, under ``.cleaned`` names: nobody reads it until it takes the place of others.

Source: apache/kafka UnifiedLog.createNewCleanedSegment, LogSegment.append, onBecomeInactiveSegment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.model.batches import NO_TIMESTAMP, BatchTable, Buffer
from stratalog.model.names import CLEANED_SUFFIX, EXTRA_SUFFIX, LOG_SUFFIX, SPOOL_SUFFIX, segment_file
from stratalog.model.offsets import TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.segment.index_entries import appended
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles

NONE_ABORTED: Final[Mapping[int, AbortedTransaction]] = {}


class CleanedSegment:
    """Written by one thread, without the log's lock.

    Index entries are collected in memory, at most ``segment.index.bytes`` of each kind but for aborted transactions.

    Args:
        files: the log's folder.
        base_offset: of the first segment whose place it takes.
        parts: the log's components.
        config: of the topic.
    """

    state: ClassVar[str] = CLEANED_SUFFIX  # what its names end with

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
        """Of all files that it may have, the log first."""
        return (LOG_SUFFIX, *self._suffixes.values())

    def name(self, suffix: str) -> str:
        """The name of a file of it, until it is published."""
        return segment_file(self.base_offset, suffix) + self.state

    @property
    def size_bytes(self) -> int:
        """Of the records written so far."""
        return self._log.size_bytes

    def append(self, data: Buffer, aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED) -> None:
        """Write whole batches of any magic.

        Args:
            data: the batches.
            aborted: the transactions that abort markers among them end, by the marker's offset.

        Raises:
            DiskFullError: no space for them.
            LogDirOfflineError: writing failed.
        """
        start = self._log.append([data])
        for table in scan(self._parts.formats, data, 0, memoryview(data).nbytes, check_crc=False).tables:
            self._index(table, start, aborted)

    def append_damaged(self, data: Buffer) -> None:
        """Write bytes that are no good batches, so that who looks at them finds what was there; errors as ``append``."""
        self._log.append([data])

    def _index(self, table: BatchTable, start: int, aborted: Mapping[int, AbortedTransaction]) -> None:
        for role, builder in self._builders.items():
            if builder.full:
                continue
            if not aborted:
                self.entries[role] += builder.add_table(table, start)
                continue
            for batch in table:
                if not builder.full:
                    told = appended(batch, start + batch.position, aborted.get(batch.last_offset))
                    self.entries[role] += builder.add(told)
        top = max(table.max_timestamp_ms)
        if top > self.largest.timestamp_ms:
            row = table.max_timestamp_ms.tolist().index(top)
            self.largest = TimestampOffset(top, table.last_offset[row])

    def reopened(self, end_offset: int) -> Segment:
        """What was written so far, to be read before it is published; the caller closes it."""
        names = {suffix: self.name(suffix) for suffix in (*self.suffixes, EXTRA_SUFFIX)}
        log = self._files.open_segment(names[LOG_SUFFIX])
        return Segment(self._files, self.base_offset, end_offset, self._parts, log, names=names)

    def finish(self, modified_ms: int) -> None:
        """Write the indexes; make all of it durable, names included, with the time of the segments that it replaces.

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
        """Remove what was written, as far as the disk allows: opening the log removes the rest."""
        with contextlib.suppress(StorageError):
            self._log.close()
        for suffix in self.suffixes:
            with contextlib.suppress(StorageError):
                self._files.remove(self.name(suffix))


class SpooledSegment(CleanedSegment):
    """One that goes to a tier: its bytes stand beside the log until it is discarded, or the log is opened. A ``ByteSource``."""

    state: ClassVar[str] = SPOOL_SUFFIX

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """The records, from the start."""
        for position in range(0, self.size_bytes, chunk_bytes):
            yield self._log.read(position, chunk_bytes)

    def finish(self, modified_ms: int) -> None:
        """End the indexes, which stay in memory; nothing needs to be durable here."""
        del modified_ms
        self._end_indexes()
