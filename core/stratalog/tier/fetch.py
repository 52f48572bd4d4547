"""Reading tiered segments: ranged reads through bounded caches."""

from __future__ import annotations

from typing import Final

from stratalog.config.engine import Limits
from stratalog.errors import CorruptObjectError
from stratalog.model.batches import Buffer
from stratalog.model.segments import FileKind, FileSlice, SegmentInfo
from stratalog.segment.cache import ByteCache, CacheMetrics
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.layers import TierStore
from stratalog.tier.layouts import LayoutTable

_INDEX_KINDS: Final = {
    IndexRole.OFFSET: FileKind.OFFSET_INDEX,
    IndexRole.TIME: FileKind.TIME_INDEX,
    IndexRole.TRANSACTION: FileKind.TRANSACTION_INDEX,
}


class Fetcher:
    """What the segments of a tier share: the store, the layouts, and two caches. Thread-safe.

    Objects are read in chunks aligned to ``limits.fetch.chunk.bytes`` of the object, so that readers of neighbouring
    offsets share them. Indexes are fetched whole and kept as the original bytes.
    """

    def __init__(self, store: TierStore, layouts: LayoutTable, limits: Limits) -> None:
        self.layouts = layouts
        self._store, self._chunk_bytes = store, limits.fetch_chunk_bytes
        self._chunks, self._indexes = ByteCache(limits.chunk_cache_bytes), ByteCache(limits.index_cache_bytes)

    def read_log(self, stored: StoredSegment, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the original ``.log`` file, all of them.

        Raises:
            CorruptObjectError: the object is shorter than the manifest says, or not what its layout stored.
            ObjectNotFoundError: it is gone.
            UnknownComponentError: its layout is not installed.
        """
        ends = _known_ends(stored)

        def fetch(key: str, position: int, end_position: int) -> bytes:
            return self._read_chunked(key, position, end_position, ends.get(key, end_position))

        pieces = list(self.layouts.by_label(stored.layout).read(stored, start, end, fetch))
        size_bytes = sum(len(piece) for piece in pieces)
        if size_bytes != end - start:
            raise CorruptObjectError(
                f"{stored.layout} gave {size_bytes} of {end - start} bytes", log_key(stored), start
            )
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def read_index(self, stored: StoredSegment, kind: FileKind) -> bytes:
        """The original bytes of a small file of the segment, ``b""`` if it has none; errors as ``read_log``."""

        def load() -> bytes:
            layout = self.layouts.by_label(stored.layout)
            return layout.read_index(stored, kind, self._store.read_exactly) or b""

        return self._indexes.get_or_load((log_key(stored), stored.info.base_offset, kind), load)

    def forget(self, stored: StoredSegment) -> None:
        """Drop what is cached of a segment, because it turned out to be damaged: the next read asks the store."""
        keys = stored.keys
        self._chunks.drop(lambda cached: isinstance(cached, tuple) and cached[0] in keys)
        self._indexes.drop(lambda cached: isinstance(cached, tuple) and cached[0] in keys)

    @property
    def chunk_metrics(self) -> CacheMetrics:
        """Of the cache of chunks."""
        return self._chunks.metrics()

    @property
    def index_metrics(self) -> CacheMetrics:
        """Of the cache of indexes."""
        return self._indexes.metrics()

    def _read_chunked(self, key: str, start: int, end: int, known_end: int) -> bytes:
        """Bytes [start, end) of an object that is known to reach to ``known_end``, from aligned chunks."""
        if end > known_end:
            return self._store.read_exactly(key, start, end)
        parts: list[Buffer] = []
        while start < end:
            chunk_start = start - start % self._chunk_bytes
            chunk_end = min(chunk_start + self._chunk_bytes, known_end)
            chunk = self._chunk(key, chunk_start, chunk_end)
            stop = min(end, chunk_end)
            parts.append(memoryview(chunk)[start - chunk_start : stop - chunk_start])
            start = stop
        return b"".join(parts)

    def _chunk(self, key: str, start: int, end: int) -> bytes:
        return self._chunks.get_or_load((key, start, end), lambda: self._store.read_exactly(key, start, end))


class RemoteSegment:
    """A ``ReadableSegment`` whose bytes are in the tier. Batch CRCs are the reader's to check, sizes are checked here."""

    __slots__ = ("_fetcher", "stored")

    def __init__(self, stored: StoredSegment, fetcher: Fetcher) -> None:
        self.stored, self._fetcher = stored, fetcher

    @property
    def info(self) -> SegmentInfo:
        """What the manifest says of it."""
        return self.stored.info

    @property
    def base_offset(self) -> int:
        """The first offset it may hold."""
        return self.stored.info.base_offset

    @property
    def end_offset(self) -> int:
        """The first offset after it."""
        return self.stored.info.end_offset

    @property
    def size_bytes(self) -> int:
        """Of the original ``.log`` file."""
        return self.stored.info.size_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if no record has one."""
        return self.stored.info.max_timestamp_ms

    @property
    def age_from_ms(self) -> int:
        """What retention by time goes by: the largest timestamp, or when the file was last written."""
        info = self.stored.info
        return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms

    @property
    def label(self) -> str:
        """The key of the object with the ``.log`` file's bytes."""
        return log_key(self.stored)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``, fewer at the end; errors as ``Fetcher.read_log``."""
        end = min(position + size_bytes, self.size_bytes)
        return self._fetcher.read_log(self.stored, position, end) if position < end else memoryview(b"")

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same; bytes in memory need no pinning."""
        return FileSlice.of(self.read(position, size_bytes), position)

    def index_entries(self, role: IndexRole) -> Buffer:
        """The entries of an index as bytes; empty if the segment has none of this role."""
        kind = _INDEX_KINDS.get(role)
        return self.read_file(kind) if kind is not None else b""

    def read_file(self, kind: FileKind) -> bytes:
        """The original bytes of a small file (an index, the snapshot, the epochs); empty if there is none."""
        return self._fetcher.read_index(self.stored, kind)

    def forget(self) -> bool:
        """Drop cached bytes that turned out to be damaged; the next read asks the store again."""
        self._fetcher.forget(self.stored)
        return True


def log_key(stored: StoredSegment) -> str:
    """The object with the ``.log`` file's bytes; manifests without one are refused when they are read."""
    return stored.slices[FileKind.LOG].key


def _known_ends(stored: StoredSegment) -> dict[str, int]:
    """How far each object of the segment reaches at least."""
    ends: dict[str, int] = {}
    for place in stored.slices.values():
        ends[place.key] = max(ends.get(place.key, 0), place.position + place.size_bytes)
    return ends
