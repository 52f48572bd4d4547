"""Construction of a segment from batches: its ``.log`` file and its indexes.

Readers see no file before it is published.

Source: apache/kafka UnifiedLog.createNewCleanedSegment, LogSegment.append, onBecomeInactiveSegment.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.errors import CorruptionError, OffsetsOutOfOrderError, StorageError, UnsupportedCompressionError
from stratalog.model.batches import BatchTable, Buffer
from stratalog.model.names import CLEANED_SUFFIX, EXTRA_SUFFIX, LOG_SUFFIX, SPOOL_SUFFIX, segment_file
from stratalog.model.offsets import TimestampOffset
from stratalog.model.records import Fields
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.file_chunks import file_chunks
from stratalog.segment.framing import MAX_RELATIVE_OFFSET, Chunk, scan, walk
from stratalog.segment.index_entries import NONE_ABORTED, IndexEntries
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode, transaction_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles

_HASHED_BYTES: Final = 1 << 20

Transform: TypeAlias = Callable[[Chunk, BatchTable], Iterable[Buffer]]
"""Function that returns the batches to write instead of the batches of a table."""


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """A finished segment that is not published yet. It is a ``ByteSource`` of its batches.

    Attributes:
        files: the folder of its files.
        components: the log's components.
        base_offset: base offset of the segment.
        end_offset: first offset after the segment.
        modified_ms: time of the last write to the segment (ms since 1970).
        names: present names of its files, by suffix, the log first. An empty transaction index has no file.
        size_bytes: size of the batches.
        largest: largest timestamp, and the last offset of the first batch that has it.
        entries: contents of the indexes.
    """

    files: LogFiles
    components: Components
    base_offset: int
    end_offset: int
    modified_ms: int
    names: Mapping[str, str]
    size_bytes: int
    largest: TimestampOffset
    entries: Mapping[IndexRole, bytes]

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the bytes of the batches in pieces of at most ``chunk_bytes``.

        Raises the same errors as ``file_chunks``.
        """
        with contextlib.closing(self.reader()) as segment:
            yield from file_chunks(segment, self.files, self.components, chunk_bytes)

    def sha256(self) -> str:
        """Return the SHA-256 of the batches, as hex digits."""
        digest = hashlib.sha256()
        for piece in self.chunks(_HASHED_BYTES):
            digest.update(piece)
        return digest.hexdigest()

    def reader(self) -> Segment:
        """Open the segment for reading, with the index entries in memory; the caller closes it."""
        log_name = self.names[LOG_SUFFIX]
        names = {EXTRA_SUFFIX: log_name + EXTRA_SUFFIX, **self.names}  # the usual name may belong to a replaced segment
        log = self.files.open_segment(log_name)
        segment = Segment(
            self.files,
            self.base_offset,
            self.end_offset,
            self.components,
            log,
            names=names,
            index_entries=self.entries,
        )
        segment.largest = self.largest
        return segment

    def discard(self) -> None:
        """Remove the files, if the disk allows it; otherwise the next opening of the log removes them."""
        _remove(self.files, self.names)


class SegmentBuilder:
    """Builder of one segment. As a context manager, it removes the segment's files after an error.

    One thread at a time may use it, without the log's lock. Existing files with the names of the segment's files are
    removed first. Index entries are collected in memory: at most ``segment.index.bytes`` for each index, and without a
    limit for the transaction index.

    Args:
        files: folder for the files.
        components: the log's components.
        config: settings of the topic.
        names: names of the files to write, by suffix. None means the ``.cleaned`` names of the log and of all indexes.
            Indexes without a name stay in memory.
        durable: True to make the finished files durable, with the modification time of the segment.
    """

    def __init__(
        self,
        files: LogFiles,
        base_offset: int,
        components: Components,
        config: TopicConfig,
        *,
        names: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> None:
        self.base_offset, self._files, self._components, self._is_durable = base_offset, files, components, durable
        self._names = {**names} if names is not None else _cleaned_names(base_offset, components)
        self._entries = IndexEntries(components.indexes, base_offset, config)
        for name in self._names.values():
            files.remove(name)
        self._log = files.open_segment(self._names[LOG_SUFFIX], create=True)

    @classmethod
    def for_upload(cls, files: LogFiles, base_offset: int, components: Components, config: TopicConfig) -> Self:
        """Return the builder of a segment for a tier: batches go into a temporary file, and indexes stay in memory."""
        names = {LOG_SUFFIX: segment_file(base_offset, LOG_SUFFIX) + SPOOL_SUFFIX}
        return cls(files, base_offset, components, config, names=names, durable=False)

    @property
    def size_bytes(self) -> int:
        """Size of the batches so far."""
        return self._log.size_bytes

    def append(self, data: Buffer, aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED) -> None:
        """Write whole batches of any magic.

        Args:
            data: the batches.
            aborted: the transactions that the batches abort, by the offset of their marker.

        Raises:
            OutOfResourcesError: no space for the batches; none of them was written.
            LogDirError: writing failed for another reason.
        """
        start = self._log.append(data)
        for table in scan(self._components.formats, data, 0, memoryview(data).nbytes, check_crc=False).tables:
            self._entries.add(table, start, aborted)

    def append_damaged(self, data: Buffer) -> None:
        """Write damaged bytes, to preserve them for a later inspection; raise the same errors as ``append``."""
        self._log.append(data)

    def finish(self, end_offset: int, modified_ms: int) -> BuiltSegment:
        """Write the indexes and return the finished segment.

        Args:
            end_offset: first offset after the segment.
            modified_ms: modification time (ms since 1970): the time of the replaced segments, or the current time.

        Raises:
            LogDirError: a file could not be written or synced.
        """
        size_bytes = self._log.size_bytes
        if self._is_durable:
            self._log.sync()
        self._log.close()
        names = {LOG_SUFFIX: self._names[LOG_SUFFIX]}
        entries = self._entries.finish()
        for role, index_format in self._components.indexes.items():
            name = self._names.get(index_format.suffix)
            if name is not None and (entries[role] or role is not IndexRole.TRANSACTION):
                self._write_index(name, entries[role])
                names[index_format.suffix] = name
        if self._is_durable:
            for name in names.values():
                self._files.set_modified(name, modified_ms)
            self._files.sync()
        return BuiltSegment(
            self._files,
            self._components,
            self.base_offset,
            end_offset,
            modified_ms,
            names,
            size_bytes,
            self._entries.largest,
            entries,
        )

    def _write_index(self, name: str, entries: bytes) -> None:
        index = self._files.open_index(name, max_bytes=len(entries), writable=True, reserve=False)
        try:
            index.append(entries)
            index.sync()
        finally:
            index.close()

    def discard(self) -> None:
        """Remove the written files, if the disk allows it; otherwise the next opening of the log removes them."""
        with contextlib.suppress(StorageError):
            self._log.close()
        _remove(self._files, self._names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()


class RollingBuilder:
    """Builder of adjacent segments: each is finished before it would be too large. One thread at a time may use it.

    Args:
        begin: returns the builder of a segment with the given base offset.
        on_finished: receives each finished segment, and owns its files unless it raises an error.
        clock: returns the modification time of a finished segment.
        base_offset: base offset of the first segment.
        limit_bytes: maximum size of a segment, unless a single write is larger.

    Attributes:
        next_offset: offset after the last batch.
    """

    def __init__(
        self,
        begin: Callable[[int], SegmentBuilder],
        on_finished: Callable[[BuiltSegment], None],
        clock: Clock,
        base_offset: int,
        limit_bytes: int,
    ) -> None:
        self._begin, self._on_finished, self._clock, self._limit_bytes = begin, on_finished, clock, limit_bytes
        self._base = self.next_offset = base_offset
        self._builder: SegmentBuilder | None = None
        self._has_failed = False

    def append(self, data: Buffer, first: int, last: int) -> None:
        """Write whole batches with the offsets ``first`` to ``last``, both inclusive.

        Raises:
            OffsetsOutOfOrderError: ``first`` is below ``next_offset``.
            StorageError: an earlier segment was not finished, so its records are missing; see ``discard``.
            The errors of ``SegmentBuilder.append``, ``begin`` and ``on_finished``.
        """
        self._check_complete()
        if first < self.next_offset:
            raise OffsetsOutOfOrderError(f"offset {first} comes after offset {self.next_offset - 1}")
        builder = self._builder
        if builder is not None and builder.size_bytes:
            is_full = builder.size_bytes + memoryview(data).nbytes > self._limit_bytes
            if is_full or last - self._base > MAX_RELATIVE_OFFSET:
                self._finish(first)
        if self._builder is None:
            self._builder = self._begin(self._base)
        self._builder.append(data)
        self.next_offset = last + 1

    def finish(self, end_offset: int | None = None) -> None:
        """Finish the last segment at ``end_offset`` (exclusive); None means the offset after the last batch.

        A segment without offsets is not created.

        Raises:
            OffsetsOutOfOrderError: ``end_offset`` is below ``next_offset``.
            StorageError: any other error of ``append``.
        """
        self._check_complete()
        end = self.next_offset if end_offset is None else end_offset
        if end < self.next_offset:
            raise OffsetsOutOfOrderError(f"the end offset {end} is not above the last offset {self.next_offset - 1}")
        if end > self._base:
            self._finish(end)

    def discard(self) -> None:
        """Remove the unfinished segment, and continue after the last finished one.

        The next batch may have the offsets of the removed batches.
        """
        if self._builder is not None:
            self._builder.discard()
            self._builder = None
        self.next_offset, self._has_failed = self._base, False

    def _finish(self, end_offset: int) -> None:
        builder = self._builder or self._begin(self._base)
        self._builder, self._has_failed = None, True
        with builder:
            built_segment = builder.finish(end_offset, self._clock.now_ms())
        try:
            self._on_finished(built_segment)
        except BaseException:
            built_segment.discard()
            raise
        self._base, self.next_offset, self._has_failed = end_offset, end_offset, False

    def _check_complete(self) -> None:
        if self._has_failed:
            raise StorageError(f"the segment from offset {self._base} on could not be finished: write it again")


def _cleaned_names(base_offset: int, components: Components) -> dict[str, str]:
    suffixes = (LOG_SUFFIX, *(index_format.suffix for index_format in components.indexes.values()))
    return {suffix: segment_file(base_offset, suffix) + CLEANED_SUFFIX for suffix in suffixes}


def _remove(files: LogFiles, names: Mapping[str, str]) -> None:
    for name in names.values():
        with contextlib.suppress(StorageError):
            files.remove(name)


# --- copying ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Number of bytes and of records that were read.

    The records of a compressed message of magic 0 or 1 are not counted if the message cannot be decompressed.
    """

    bytes_read: int
    records: int


def unchanged(chunk: Chunk, table: BatchTable) -> Iterable[Buffer]:
    """Return the batches of a table without changes. The function is a ``Transform``."""
    return [chunk.data[table.position[0] : table.position[-1] + table.size_bytes[-1]]]


def copy_batches(
    segment: ReadableSegment, builder: SegmentBuilder, components: Components, transform: Transform = unchanged
) -> CopyCounts:
    """Write all batches of a closed segment into a new one, and check their CRCs.

    Args:
        segment: the closed segment, with its transaction index.
        builder: builder of the new segment.
        components: the log's components.
        transform: changes the batches. It must keep the offsets of abort markers.

    Raises:
        CorruptBatchError: a batch is damaged.
        The errors of ``SegmentBuilder.append`` and ``ReadableSegment.read``.
    """
    aborted = {entry.last_offset: entry for entry in transaction_index(segment, components)}
    bytes_read = records = 0
    for chunk in walk(segment, 0, components, offset_limit=segment.end_offset):
        bytes_read += chunk.data.nbytes
        for table in chunk.tables:
            records += _count_of(chunk, table, segment, components)
            for data in transform(chunk, table):
                builder.append(data, aborted)
    return CopyCounts(bytes_read, records)


def _count_of(chunk: Chunk, table: BatchTable, segment: ReadableSegment, components: Components) -> int:
    """Return the number of records of a table. A compressed message of magic 0 or 1 does not store the number."""
    count = 0
    for row, record_count in enumerate(table.record_count):
        if record_count >= 0:
            count += record_count
            continue
        with contextlib.suppress(CorruptionError, UnsupportedCompressionError):
            decoded = decode(chunk, table.take(row, row + 1), segment, components, Fields.OFFSET)
            count += sum(columns.count for columns in decoded)
    return count
