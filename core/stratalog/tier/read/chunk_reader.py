"""Reads of objects of a tier in aligned chunks: from memory, from disk, from prefetched bytes, or from the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from stratalog.config.engine_settings import Limits
from stratalog.env.byte_cache import ByteCache, CacheMetrics, TwoQueues
from stratalog.model.segment_info import FileKind
from stratalog.segment.read_buffers import BufferPool
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.objects import Capability
from stratalog.tier.manifest.entry_tree import object_ends
from stratalog.tier.read.disk_cache import DiskCache
from stratalog.tier.read.prefetch import ObjectRange, Prefetcher
from stratalog.tier.store.store import TierStore

_BESIDE_BYTES: Final = 64 << 10  # a fetch may read this many more bytes to find its first batch

Successor: TypeAlias = Callable[[StoredSegment], StoredSegment | None]
"""Function that returns the segment after a given segment, or None if there is none yet.

It may send requests to the store.
"""


def no_successor(stored: StoredSegment) -> None:
    """Return None: a ``Successor`` for reads without prefetching of the next segment."""
    del stored


class ReadPath:
    """The chunks that a sequential reader of a log reads: those of one segment, then those of the next segments.

    Args:
        stored: the segment.
        successor: returns the segment after a given segment.
        chunk_bytes: size of a chunk.

    Attributes:
        stored: same as the argument.
        successor: same as the argument.
        ends: the least size of each object of the segment, by key (``object_ends``).
    """

    __slots__ = ("_chunk_bytes", "_log_end", "_place", "ends", "stored", "successor")

    def __init__(self, stored: StoredSegment, successor: Successor, chunk_bytes: int) -> None:
        self.stored, self.successor, self.ends = stored, successor, object_ends(stored)
        self._place, self._chunk_bytes = stored.slices[FileKind.LOG], chunk_bytes
        self._log_end = self._place.position + self._place.size_bytes

    def spans(self, key: str, start: int, end: int) -> Iterator[ObjectRange]:
        """Yield the chunks that have the bytes [start, end) of an object of the segment."""
        object_end = self.ends[key]
        for begin in range(start - start % self._chunk_bytes, end, self._chunk_bytes):
            yield ObjectRange(key, begin, min(begin + self._chunk_bytes, object_end))

    def covers(self, span: ObjectRange) -> bool:
        """Return True if a range of an object contains bytes of the segment's ``.log`` file."""
        return span.key == self._place.key and span.start < self._log_end and span.end > self._place.position

    def here(self, span: ObjectRange) -> tuple[Hashable, ...]:
        """Return the ids of a chunk, one of which ``following`` returns for the previous chunk of a sequential reader.

        One id consists of object and position. The first chunk of a segment also has an id of log and base offset.
        """
        at, info = (span.key, span.start), self.stored.info
        return (at, (info.topic_id.text, info.log, info.base_offset)) if span.start <= self._place.position else (at,)

    def following(self, span: ObjectRange) -> Hashable:
        """Return an id (``here``) of the chunk after ``span``, which may be the first chunk of the next segment."""
        next_start, info = span.start + self._chunk_bytes, self.stored.info
        return (span.key, next_start) if next_start < self._log_end else (info.topic_id.text, info.log, info.end_offset)

    def after(self, span: ObjectRange) -> Iterator[ObjectRange]:
        """Yield the chunks after ``span``, also those of later segments; raise the errors of ``successor``."""
        yield from self.spans(self._place.key, span.start + self._chunk_bytes, self._log_end)
        following = self.successor(self.stored)
        while following is not None:
            path = ReadPath(following, self.successor, self._chunk_bytes)
            yield from path.spans(path._place.key, path._place.position, path._log_end)
            following = self.successor(following)


class ChunkReader:
    """Reads ranges of objects in chunks of ``chunk_bytes``, with caches and prefetching. Thread-safe.

    Call ``close`` at the end.

    Args:
        store: contains the objects.
        limits: sizes of the caches and of a chunk.
        threads: the number of chunks to prefetch at the same time.
        disk: cache of chunks on local disk; None if there is none.
    """

    def __init__(self, store: TierStore, limits: Limits, *, threads: int, disk: DiskCache | None) -> None:
        self.chunk_bytes = limits.fetch_chunk_bytes
        self._store, self._disk = store, disk
        self._memory = ByteCache(limits.chunk_cache_bytes, TwoQueues(limits.chunk_cache_bytes))
        self._ahead = Prefetcher(self._load, self._is_there, limits.prefetch_bytes, threads)
        self._noted: ObjectRange | None = None  # last chunk that was read; without a lock: a wrong value costs a check
        self._is_near = disk is None and Capability.NEAR in store.capabilities
        self._buffers = BufferPool(limits.read_bytes + _BESIDE_BYTES)
        # A log is read in steps of this many bytes. If the cache has room for two chunks, the first read also fetches
        # the next chunk, and does not end at a border between chunks.
        self._look_bytes = limits.read_bytes if limits.chunk_cache_bytes >= 2 * self.chunk_bytes else 0

    def read(self, path: ReadPath, key: str, start: int, end: int, into: memoryview | None) -> bytes | memoryview:
        """Return bytes [start, end) of an object.

        The method does not check bytes that it reads from files: the reader of a log must check the CRCs of batches.

        Args:
            path: the segment and the next ones, for prefetching.
            key: key of an object of the segment.
            start: start position of the range.
            end: exclusive end position of the range; above ``start``, and at most ``path.ends[key]``.
            into: memory that may be used for the result; None if there is none.

        Returns:
            The bytes, possibly as a view of a cached chunk or of ``into``.

        Raises:
            CorruptObjectError: the object is shorter.
            StoreError: the store failed or refused. It is an ObjectNotFoundError if the object does not exist.
        """
        spans = list(path.spans(key, start, end))
        self._note(spans, path)
        if self._is_near or self._disk is not None:
            found = self._from_files(spans, start, end, into)
            if found is not None:
                return found
        parts: list[bytes | memoryview] = []
        beside: dict[ObjectRange, bytes] = {}  # chunks that were fetched together with another chunk
        until = max(end, min(start + self._look_bytes, path.ends[key]))
        for span in spans:
            if self._is_near and self._is_beside(span, start, end):
                parts.append(self._store.read_exactly(key, max(start, span.start), min(end, span.end)))
                continue
            chunk = beside.pop(span, None)
            if chunk is None:
                chunk = self._chunk(span, partial(self._load_until, span, until, path, beside))
            first, last = max(start - span.start, 0), min(end, span.end) - span.start
            parts.append(chunk if last - first == len(chunk) else memoryview(chunk)[first:last])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, path: ReadPath, key: str, start: int, end: int) -> bytes | None:
        """Return bytes [start, end) of an object if all of them are cached in memory, otherwise None."""
        if end > path.ends.get(key, 0):
            return None
        parts: list[memoryview] = []
        for span in path.spans(key, start, end):
            chunk = self._memory.peek(span)
            if chunk is None:
                return None
            parts.append(memoryview(chunk)[max(start - span.start, 0) : min(end, span.end) - span.start])
        return b"".join(parts)

    def drop(self, keys: Collection[str], *, refuse: bool = False) -> None:
        """Remove all cached bytes of some objects, also on disk. With ``refuse``, do not cache them on disk again."""
        self._ahead.drop(keys)
        self._memory.drop(lambda cached: isinstance(cached, ObjectRange) and cached.key in keys)
        if self._disk is not None:
            for key in keys:
                self._disk.drop(self._group(key), refuse=refuse)

    def metrics(self) -> CacheMetrics:
        """Return the metrics of the cache of chunks in memory."""
        return self._memory.metrics()

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are being prefetched, or were prefetched and not read yet."""
        return self._ahead.held_bytes

    def close(self) -> None:
        """Stop prefetching, and wait for the prefetches in progress. A second call does nothing."""
        self._ahead.close()

    def _note(self, spans: Sequence[ObjectRange], path: ReadPath) -> None:
        """Report a read of chunks to the prefetcher, unless it is in the same chunk as the read before."""
        if spans == [self._noted]:
            return
        self._noted = spans[-1]
        covered = [span for span in spans if path.covers(span)]
        if covered:
            here, current = [name for span in covered for name in path.here(span)], covered[-1]
            self._ahead.passed(here, path.following(current), current, lambda: path.after(current))

    def _chunk(self, span: ObjectRange, load: Callable[[], bytes]) -> bytes:
        """Return a chunk from memory, or its prefetched bytes, or else the result of ``load``."""

        def missing() -> bytes:
            found = self._ahead.take(span)
            return load() if found is None else found

        return self._memory.get_or_load(span, missing)

    def _from_files(
        self, spans: Sequence[ObjectRange], start: int, end: int, into: memoryview | None
    ) -> memoryview | None:
        """Return bytes [start, end) from files of the disk cache or of a NEAR store, without a check of checksums.

        Return None if all bytes are in memory, or if the files do not have all bytes: then read whole chunks.
        """
        held = [self._is_held(span) for span in spans]
        if all(held):
            return None
        room = into[: end - start] if into is not None else self._buffers.take(end - start)
        if room is None or len(room) < end - start:  # a layout may read more bytes than it returns
            return None
        if self._is_near and not any(held):
            return room.toreadonly() if self._store.read_cached(spans[0].key, start, room) else None
        done = 0
        for span, is_held in zip(spans, held, strict=True):
            first, last = max(start - span.start, 0), min(end, span.end) - span.start
            if not self._fill(span, first, room[done : done + last - first], is_held=is_held):
                return None
            done += last - first
        return room.toreadonly()

    def _fill(self, span: ObjectRange, first: int, into: memoryview, *, is_held: bool) -> bool:
        """Fill ``into`` with bytes of a chunk from position ``first`` on; return False if no file has the chunk."""
        if is_held:
            chunk = self._chunk(span, partial(self._load, span))
            into[:] = memoryview(chunk)[first : first + len(into)]
            return True
        if self._disk is None:
            return self._store.read_cached(span.key, span.start + first, into)
        return self._disk.read_part(self._group(span.key), _item(span), first, into)

    def _is_there(self, span: ObjectRange) -> bool:
        """Return True if a chunk needs no prefetch, because it is cached by this reader or by the operating system."""
        if span in self._memory:
            return True
        if self._disk is not None:
            return self._disk.is_cached(self._group(span.key), _item(span))
        return self._is_near and self._store.is_cached(*span)

    def _is_beside(self, span: ObjectRange, start: int, end: int) -> bool:
        """Return True if the bytes of a chunk in [start, end) are in the system's page cache, and not in our cache."""
        return not self._is_held(span) and self._store.is_cached(span.key, max(start, span.start), min(end, span.end))

    def _is_held(self, span: ObjectRange) -> bool:
        """Return True if a chunk is in our cache in memory, was prefetched, or is being fetched."""
        return span in self._memory or self._ahead.holds(span)

    def _need_not_ask(self, span: ObjectRange) -> bool:
        """Return True if no request is necessary for a chunk, because it is in memory, on disk, or being fetched."""
        on_disk = self._disk is not None and self._disk.has(self._group(span.key), _item(span))
        return on_disk or self._is_held(span)

    def _load(self, span: ObjectRange) -> bytes:
        if self._disk is None:
            return self._store.read_exactly(*span)
        data = self._disk.get(self._group(span.key), _item(span))
        if data is None:
            data = self._store.read_exactly(*span)
            self._disk.put(self._group(span.key), _item(span), data)
        return data

    def _load_until(self, span: ObjectRange, until: int, path: ReadPath, beside: dict[ObjectRange, bytes]) -> bytes:
        """Return the chunk ``span``. If ``until`` is above its end, fetch the next chunk by the same request.

        The next chunk is added to ``beside``. It is not fetched if it needs no request, or if ``span`` is on disk.
        """
        if until <= span.end:
            return self._load(span)
        (following,) = path.spans(span.key, span.end, span.end + 1)
        if self._need_not_ask(following):
            return self._load(span)
        if self._disk is not None:
            data = self._disk.get(self._group(span.key), _item(span))
            if data is not None:
                return data
        both = self._store.read_exactly(span.key, span.start, following.end)
        border = span.end - span.start
        data, beside[following] = both[:border], both[border:]
        if self._disk is not None:
            self._disk.put(self._group(span.key), _item(span), data)
            self._disk.put(self._group(span.key), _item(following), beside[following])
        self._memory.put(following, beside[following])
        return data

    def _group(self, key: str) -> str:
        return f"{self._store.uri}\n{key}"


def _item(span: ObjectRange) -> str:
    return f"{span.start}-{span.end}"
