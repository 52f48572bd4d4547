"""Reads of tiered segments: ranged reads through bounded caches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from stratalog.config.engine_settings import Limits
from stratalog.env.byte_cache import ByteCache, CacheMetrics
from stratalog.env.memory import reuse_large_blocks
from stratalog.errors import CorruptionError, CorruptObjectError, ObjectNotFoundError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.readable import ReadOn
from stratalog.segment.segment_identity import Identity
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.read.cache_admission import TwoQueues
from stratalog.tier.read.chunk_reader import ChunkReader, Course, Successor, known_ends, no_successor
from stratalog.tier.read.disk_cache import CacheFolder
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore

_INDEX_KINDS: Final = {
    IndexRole.OFFSET: FileKind.OFFSET_INDEX,
    IndexRole.TIME: FileKind.TIME_INDEX,
    IndexRole.TRANSACTION: FileKind.TRANSACTION_INDEX,
}
_GAP_BYTES: Final = 64 << 10  # between files that are read together


class Fetcher:
    """The store, the layouts and the caches of chunks and indexes that the segments of a tier share. Thread-safe.

    Objects are read in chunks aligned to ``limits.fetch.chunk.bytes`` of the object, which lets readers of neighbouring
    offsets share them. Indexes are cached whole, as the original bytes. Indexes that are stored side by side are
    fetched together.

    Args:
        store: holds the objects.
        layouts: the layouts that may be needed.
        limits: of memory.
        threads: the number of chunks to prefetch at a time.
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
        self._store, self._folder, self._limits = store, folder, limits
        self._chunks = ChunkReader(store, limits, threads=threads, disk=folder.chunks if folder else None)
        self._last: tuple[Course, Mapping[str, int]] | None = (
            None  # of the last read segment; after a lost race it is computed again
        )
        self._indexes = ByteCache(limits.index_cache_bytes, TwoQueues(limits.index_cache_bytes))

    def read_log(
        self,
        stored: StoredSegment,
        start: int,
        end: int,
        successor: Successor = no_successor,
        into: memoryview | None = None,
    ) -> memoryview:
        """Return all bytes [start, end) of the original ``.log`` file; prefetches for a sequential reader.

        ``into``, if given, has room for all of them. They are written there if that avoids a copy.

        Raises:
            CorruptObjectError: the object is shorter than the manifest says, or does not have the bytes that its layout
                stored.
            ObjectNotFoundError: the object does not exist.
            UnknownComponentError: the segment's layout is not installed.
        """
        course, ends = self._way(stored, successor)
        room = into

        def fetch(key: str, position: int, end_position: int) -> bytes | memoryview:
            nonlocal room
            mine, room = room, None  # used once: the layout may still use the earlier bytes
            if end_position > ends.get(key, 0):
                return self._store.read_exactly(key, position, end_position)
            return self._chunks.read(key, position, end_position, ends[key], course, mine)

        pieces = list(self.layouts.by_label(stored.layout).read(stored, start, end, fetch))
        size_bytes = sum(len(piece) for piece in pieces)
        if size_bytes != end - start:
            raise CorruptObjectError(
                f"{stored.layout} gave {size_bytes} of {end - start} bytes", log_key(stored), start
            )
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def read_index(self, stored: StoredSegment, kind: FileKind) -> bytes:
        """Return the bytes of a small file of the segment, ``b""`` if it has none; raises the errors of ``read_log``."""
        if kind not in stored.slices:
            return b""
        return self._indexes.get_or_load(_index_key(stored, kind), lambda: self._load_index(stored, kind))

    def forget(self, stored: StoredSegment) -> None:
        """Drop the cached bytes of a damaged segment: the next read asks the store."""
        keys = stored.keys
        self._chunks.drop(keys)
        self._indexes.drop(lambda cached: isinstance(cached, tuple) and cached[0] in keys)
        if self._folder is not None:
            self._folder.indexes.drop(self._group(stored))

    def forget_objects(self, keys: Collection[str]) -> None:
        """Drop the cached bytes of objects, in memory and on disk."""
        self._chunks.drop(keys)

    def close(self) -> None:
        """End the prefetching threads, and release the caches on disk. A second call does nothing."""
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

    def _way(self, stored: StoredSegment, successor: Successor) -> tuple[Course, Mapping[str, int]]:
        """Return a segment's course and the known sizes of its objects; cached, as most reads are of one segment."""
        course, ends = self._last or (None, {})
        if course is None or course.stored is not stored or course.successor != successor:
            course, ends = Course(stored, successor, self._chunks.chunk_bytes), known_ends(stored)
            self._last = course, ends
        return course, ends

    def _load_index(self, stored: StoredSegment, kind: FileKind) -> bytes:
        found = self._folder.indexes.get(self._group(stored), _index_item(stored, kind)) if self._folder else None
        if found is not None:
            return found
        layout, key = self.layouts.by_label(stored.layout), stored.slices[kind].key
        beside = [
            other
            for other in _INDEX_KINDS.values()
            if kind in _INDEX_KINDS.values()
            and other is not kind
            and other in stored.slices
            and stored.slices[other].key == key
            and _index_key(stored, other) not in self._indexes
        ]
        together = _Together(stored, [kind, *beside], self._read_small, self._limits.index_cache_bytes)
        data = layout.read_index(stored, kind, together.fetch) or b""
        self._keep_index(stored, kind, data)
        for other in beside if together.came else ():
            with contextlib.suppress(CorruptObjectError):  # a read of that index raises the error
                more = layout.read_index(stored, other, together.fetch) or b""
                self._keep_index(stored, other, more)
                self._indexes.put(_index_key(stored, other), more)
        return data

    def _keep_index(self, stored: StoredSegment, kind: FileKind, data: bytes) -> None:
        if self._folder is not None:
            self._folder.indexes.put(self._group(stored), _index_item(stored, kind), data)

    def _read_small(self, stored: StoredSegment, key: str, start: int, end: int) -> bytes:
        """Read from a chunk that is in memory, as small segments often are; otherwise by a separate request."""
        known_end = known_ends(stored).get(key, 0)
        found = self._chunks.peek(key, start, end, known_end) if end <= known_end else None
        return self._store.read_exactly(key, start, end) if found is None else found

    def _group(self, stored: StoredSegment) -> str:
        return f"{self._store.uri}\n{log_key(stored)}"


class _Together:
    """Reads files that are stored side by side in an object by one request, if few other bytes are between them."""

    def __init__(
        self,
        stored: StoredSegment,
        kinds: Sequence[FileKind],
        read: Callable[[StoredSegment, str, int, int], bytes],
        limit_bytes: int,
    ) -> None:
        places = [stored.slices[kind] for kind in kinds]
        self._stored, self._read, self._key = stored, read, places[0].key
        self._start = min(place.position for place in places)
        self._end = max(place.position + place.size_bytes for place in places)
        asked_bytes = sum(place.size_bytes for place in places)
        self._is_worth = self._end - self._start <= min(asked_bytes + _GAP_BYTES, limit_bytes)
        self._data: bytes | None = None

    @property
    def came(self) -> bool:
        """True if the files were read together."""
        return self._data is not None

    def fetch(self, key: str, start: int, end: int) -> bytes:
        """Return bytes of an object, as a ``RangeReader``."""
        if not self._is_worth or key != self._key or start < self._start or end > self._end:
            return self._read(self._stored, key, start, end)
        if self._data is None:
            self._data = self._read(self._stored, key, self._start, self._end)
        return self._data[start - self._start : end - self._start]


class RemoteSegment(ReadOn):
    """A ``ReadableSegment`` whose bytes are in the tier. It checks sizes; the reader checks the CRCs of batches."""

    __slots__ = ("_fetcher", "_successor", "stored")

    def __init__(self, stored: StoredSegment, fetcher: Fetcher, successor: Successor = no_successor) -> None:
        super().__init__()
        self.stored, self._fetcher, self._successor = stored, fetcher, successor

    @property
    def info(self) -> SegmentInfo:
        """The segment's facts in the manifest."""
        return self.stored.info

    @property
    def base_offset(self) -> int:
        """The first offset that the segment may hold."""
        return self.stored.info.base_offset

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self.stored.info.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the original ``.log`` file."""
        return self.stored.info.size_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if no record has one."""
        return self.stored.info.max_timestamp_ms

    @property
    def age_from_ms(self) -> int:
        """The segment's time for retention: the largest timestamp, or the time when the file was last written."""
        info = self.stored.info
        return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms

    @property
    def label(self) -> str:
        """The key of the object with the ``.log`` file's bytes."""
        return log_key(self.stored)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, fewer at the end; raises the errors of ``Fetcher.read_log``."""
        end = min(position + size_bytes, self.size_bytes)
        if position >= end:
            return memoryview(b"")
        return self._fetcher.read_log(self.stored, position, end, self._successor)

    def read_over(self, position: int, into: memoryview) -> memoryview:
        """Return as many bytes as ``into`` has room for; they are in ``into`` if they come from the cache on disk."""
        end = min(position + len(into), self.size_bytes)
        if position >= end:
            return into[:0]
        return self._fetcher.read_log(self.stored, position, end, self._successor, into)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index as bytes; empty if the segment has none of this role."""
        kind = _INDEX_KINDS.get(role)
        return self.read_file(kind) if kind is not None else b""

    def extra_index(self, label: str) -> bytes:
        """Return an EXTRA index by ``name@version``; ``b""`` if none fits, or if it is empty.

        One request fetches all EXTRA indexes of a segment, which stay in the cache of indexes.
        """
        try:
            data = memoryview(self.read_file(FileKind.EXTRA))
        except (CorruptionError, ObjectNotFoundError):  # the records are read instead
            return b""

        def read(position: int, size_bytes: int) -> memoryview:
            return data[position : position + size_bytes]

        found = unpack_extras(read, len(data))
        if found is None or found.identity != Identity.in_tier(self.stored.info):
            return b""
        return found.index(label, read) or b""

    def read_file(self, kind: FileKind) -> bytes:
        """Return the original bytes of a small file (an index, the snapshot, the epochs); empty if there is none."""
        return self._fetcher.read_index(self.stored, kind)

    def forget(self) -> bool:
        """Drop cached bytes that are damaged, and return True; the next read asks the store again."""
        self._fetcher.forget(self.stored)
        return True


def log_key(stored: StoredSegment) -> str:
    """Return the key of the object with the ``.log`` file's bytes, which every accepted manifest entry has."""
    return stored.slices[FileKind.LOG].key


def _index_key(stored: StoredSegment, kind: FileKind) -> tuple[str, int, FileKind]:
    return log_key(stored), stored.info.base_offset, kind


def _index_item(stored: StoredSegment, kind: FileKind) -> str:
    return f"{stored.info.base_offset} {kind}"
