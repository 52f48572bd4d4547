"""Reads of segments in a tier: range requests through caches of limited size."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stratalog.config.engine_settings import Limits
from stratalog.env.allocator import reuse_large_blocks
from stratalog.env.cache import Cache, CacheMetrics, TwoQueues
from stratalog.errors import CorruptObjectError
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import INDEX_KINDS, RangeReader, StoredSegment, TierLayout
from stratalog.tier.read.chunk_reader import ChunkReader, Successor, no_successor
from stratalog.tier.read.disk_cache import CacheFolder
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

_GAP_BYTES: Final = 64 << 10  # largest number of unneeded bytes in a combined read


class Fetcher:
    """Reads the files of all segments of a tier, with caches of chunks and indexes. Thread-safe.

    Objects are read in chunks of ``limits.fetch.chunk.bytes``, whose borders are multiples of this size. Indexes are
    cached whole. Indexes that are stored next to each other are fetched by one request.

    Args:
        store: contains the objects.
        layouts: the installed layouts.
        limits: sizes of the caches.
        threads: the number of chunks to prefetch at the same time.
        folder: the caches on disk, closed by ``close``; None if there are none.
    """

    def __init__(
        self,
        store: TierStore,
        layouts: LayoutTable,
        limits: Limits,
        *,
        threads: int = 1,
        folder: CacheFolder | None = None,
    ) -> None:
        reuse_large_blocks()
        self.layouts = layouts
        self._readers: dict[str, TierLayout] = {}  # layouts that were used before, by label
        self._store, self._folder, self._limits = store, folder, limits
        self._chunks = ChunkReader(store, limits, threads=threads, disk=folder.chunks if folder else None)
        self._indexes = Cache[bytes](limits.index_cache_bytes, TwoQueues(limits.index_cache_bytes))

    def read_log(
        self,
        entry: StoredSegment,
        start: int,
        end: int,
        successor: Successor = no_successor,
        buffer: memoryview | None = None,
    ) -> memoryview:
        """Return exactly the bytes [start, end) of the ``.log`` file; prefetch chunks if reads are sequential.

        Args:
            entry: the manifest entry of the segment.
            start: start position of the range.
            end: exclusive end position of the range.
            successor: returns the next segment, for prefetching.
            buffer: memory in which the result may be stored, with room for all bytes; None if there is none.

        Raises:
            CorruptObjectError: the object is shorter than the manifest states, or its layout detected damage.
            StoreError: the store failed or refused. It is an ObjectNotFoundError if the object does not exist.
            PluginError: the layout failed. It is an UnknownComponentError if the layout is not installed.
            StorageError: another error of the layout, such as ConfigError if a key is missing.
        """
        fetch = self._range_reader(entry, successor, buffer)
        pieces = list(self._reader(entry).read(entry, start, end, fetch))
        size_bytes = sum(map(len, pieces))
        if size_bytes != end - start:
            raise CorruptObjectError(
                f"{entry.layout} returned {size_bytes} of {end - start} bytes", entry.log_key, start
            )
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def read_arrow(
        self, entry: StoredSegment, start: int, end: int, columns: Sequence[str] | None, successor: Successor
    ) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the records with offsets in [start, end) as Arrow batches; None if the layout does not support that.

        ``columns`` are the names of the columns to return; None returns all. The call, and the iteration over the
        result, raise the errors of ``read_log``.
        """
        fetch = self._range_reader(entry, successor, None)
        return self._reader(entry).read_arrow(entry, start, end, columns, fetch)

    def _reader(self, entry: StoredSegment) -> TierLayout:
        reader = self._readers.get(entry.layout)
        if reader is None:
            reader = self._readers[entry.layout] = self.layouts.by_label(entry.layout).reader
        return reader

    def _range_reader(self, entry: StoredSegment, successor: Successor, buffer: memoryview | None) -> RangeReader:
        """Return a function that reads ranges through the caches and prefetches; its first range may use ``buffer``."""
        unused_buffer = buffer

        def fetch(key: str, position: int, end_position: int) -> bytes | memoryview:
            nonlocal unused_buffer
            target, unused_buffer = unused_buffer, None  # used once: the layout may still use the earlier bytes
            return self._chunks.read(entry, successor, key, position, end_position, target)

        return fetch

    def read_index(self, entry: StoredSegment, kind: FileKind) -> bytes:
        """Return an index or another small file of the segment, from the caches or the store; ``b""`` if there is none.

        Raises the errors of ``read_log``.
        """
        if kind not in entry.slices:
            return b""
        return self._indexes.get_or_load(_index_key(entry, kind), lambda: self._load_index(entry, kind))

    def forget(self, entry: StoredSegment) -> None:
        """Drop the cached bytes of a segment, after damage was found. The next read requests them from the store."""
        keys = entry.keys
        self._chunks.drop(keys)
        self._indexes.drop(lambda cached: isinstance(cached, tuple) and cached[0] in keys)
        if self._folder is not None:
            self._folder.indexes.drop(self._group(entry))

    def forget_objects(self, keys: Collection[str]) -> None:
        """Drop the cached chunks of the objects with these keys, in memory and on disk.

        Reads in progress may read the objects again, but the cache on disk no longer stores their bytes.
        """
        self._chunks.drop(keys, refuse=True)

    def close(self) -> None:
        """End the prefetching threads, and close the caches on disk. A second call does nothing."""
        self._chunks.close()
        if self._folder is not None:
            self._folder.close()

    @property
    def chunk_metrics(self) -> CacheMetrics:
        """The metrics of the cache of chunks in memory."""
        return self._chunks.metrics()

    @property
    def index_metrics(self) -> CacheMetrics:
        """The metrics of the cache of indexes in memory."""
        return self._indexes.metrics()

    def _load_index(self, entry: StoredSegment, kind: FileKind) -> bytes:
        """Return an index or another small file from disk or from the store.

        If other indexes are stored next to an index, one request to the store reads all of them, and they are cached.
        """
        cached = self._folder.indexes.get(self._group(entry), _index_item(entry, kind)) if self._folder else None
        if cached is not None:
            return cached
        layout, place = self._reader(entry), entry.slices[kind]
        other_kinds: list[FileKind] = []
        first, last, file_bytes = place.position, place.position + place.size_bytes, place.size_bytes
        for other_kind in INDEX_KINDS.values() if kind in INDEX_KINDS.values() else ():
            other = entry.slices.get(other_kind)
            if other is None or other.key != place.key or other_kind is kind:
                continue
            if _index_key(entry, other_kind) not in self._indexes:
                other_kinds.append(other_kind)
                first, last = min(first, other.position), max(last, other.position + other.size_bytes)
                file_bytes += other.size_bytes
        are_close = last - first <= min(file_bytes + _GAP_BYTES, self._limits.index_cache_bytes)
        combined: bytes | None = None  # bytes [first, last) of the object, if they were read by one request

        def fetch(key: str, start: int, end: int) -> bytes:
            nonlocal combined
            if not are_close or key != place.key or start < first or end > last:
                return self._chunks.read_small(entry, key, start, end)
            if combined is None:
                combined = self._chunks.read_small(entry, key, first, last)
            return combined[start - first : end - first]

        data = layout.read_index(entry, kind, fetch) or b""
        self._keep_index(entry, kind, data)
        for other_kind in other_kinds if combined is not None else ():
            with contextlib.suppress(CorruptObjectError):  # a read of that index raises the error
                other_data = layout.read_index(entry, other_kind, fetch) or b""
                self._keep_index(entry, other_kind, other_data)
                self._indexes.put(_index_key(entry, other_kind), other_data)
        return data

    def _keep_index(self, entry: StoredSegment, kind: FileKind, data: bytes) -> None:
        if self._folder is not None:
            self._folder.indexes.put(self._group(entry), _index_item(entry, kind), data)

    def _group(self, entry: StoredSegment) -> str:
        return f"{self._store.uri}\n{entry.log_key}"


def _index_key(entry: StoredSegment, kind: FileKind) -> tuple[str, int, FileKind]:
    return entry.slices[kind].key, entry.info.base_offset, kind


def _index_item(entry: StoredSegment, kind: FileKind) -> str:
    return f"{entry.info.base_offset} {kind}"
