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

_EXTRA_BYTES: Final = 64 << 10  # a fetch may read this many more bytes to find its first batch

Successor: TypeAlias = Callable[[StoredSegment], StoredSegment | None]
"""Function that returns the segment after a given segment, or None if there is none yet.

It may send requests to the store.
"""


def no_successor(entry: StoredSegment) -> None:
    """Return None: a ``Successor`` for reads without prefetching of the next segment."""
    del entry


class ReadPath:
    """The chunks that a sequential reader of a log reads: those of one segment, then those of the next segments.

    Args:
        entry: the manifest entry of the segment.
        successor: returns the segment after a given segment.
        chunk_bytes: size of a chunk.

    Attributes:
        entry: same as the argument.
        successor: same as the argument.
        ends: the least size of each object of the segment, by key (``object_ends``).
    """

    __slots__ = ("_chunk_bytes", "_log_end", "_place", "ends", "entry", "successor")

    def __init__(self, entry: StoredSegment, successor: Successor, chunk_bytes: int) -> None:
        self.entry, self.successor, self.ends = entry, successor, object_ends(entry)
        self._place, self._chunk_bytes = entry.slices[FileKind.LOG], chunk_bytes
        self._log_end = self._place.position + self._place.size_bytes

    def spans(self, key: str, start: int, end: int) -> Iterator[ObjectRange]:
        """Yield the chunks that have the bytes [start, end) of an object of the segment."""
        object_end = self.ends[key]
        for begin in range(start - start % self._chunk_bytes, end, self._chunk_bytes):
            yield ObjectRange(key, begin, min(begin + self._chunk_bytes, object_end))

    def covers(self, span: ObjectRange) -> bool:
        """Return True if a range of an object contains bytes of the segment's ``.log`` file."""
        return span.key == self._place.key and span.start < self._log_end and span.end > self._place.position

    def ids_of(self, span: ObjectRange) -> tuple[Hashable, ...]:
        """Return the ids of a chunk, one of which ``next_id`` returns for the previous chunk of a sequential reader.

        One id consists of object and position. The first chunk of a segment also has an id of log and base offset.
        """
        position_id, info = (span.key, span.start), self.entry.info
        return (
            (position_id, (info.topic_id.text, info.log, info.base_offset))
            if span.start <= self._place.position
            else (position_id,)
        )

    def next_id(self, span: ObjectRange) -> Hashable:
        """Return an id (``ids_of``) of the chunk after ``span``, which may be the first chunk of the next segment."""
        next_start, info = span.start + self._chunk_bytes, self.entry.info
        return (span.key, next_start) if next_start < self._log_end else (info.topic_id.text, info.log, info.end_offset)

    def spans_after(self, span: ObjectRange) -> Iterator[ObjectRange]:
        """Yield the chunks after ``span``, also those of later segments; raise the errors of ``successor``."""
        yield from self.spans(self._place.key, span.start + self._chunk_bytes, self._log_end)
        following = self.successor(self.entry)
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
        self._prefetcher = Prefetcher(self._load, self._is_cached, limits.prefetch_bytes, threads)
        self._last_span: ObjectRange | None = None  # the last chunk read; no lock: a wrong value costs a check
        self._is_near = disk is None and Capability.NEAR in store.capabilities
        self._buffers = BufferPool(limits.read_bytes + _EXTRA_BYTES)
        # A log is read in steps of this many bytes. If the cache has room for two chunks, the first read also fetches
        # the next chunk, and does not end at a border between chunks.
        self._read_ahead_bytes = limits.read_bytes if limits.chunk_cache_bytes >= 2 * self.chunk_bytes else 0

    def read(self, path: ReadPath, key: str, start: int, end: int, buffer: memoryview | None) -> bytes | memoryview:
        """Return bytes [start, end) of an object.

        The method does not check bytes that it reads from files: the reader of a log must check the CRCs of batches.

        Args:
            path: the segment and the next ones, for prefetching.
            key: key of an object of the segment.
            start: start position of the range.
            end: exclusive end position of the range; above ``start``, and at most ``path.ends[key]``.
            buffer: memory that may be used for the result; None if there is none.

        Returns:
            The bytes, possibly as a view of a cached chunk or of ``buffer``.

        Raises:
            CorruptObjectError: the object is shorter.
            StoreError: the store failed or refused. It is an ObjectNotFoundError if the object does not exist.
        """
        spans = list(path.spans(key, start, end))
        self._note(spans, path)
        if self._is_near or self._disk is not None:
            data = self._read_files(spans, start, end, buffer)
            if data is not None:
                return data
        parts: list[bytes | memoryview] = []
        extra_chunks: dict[ObjectRange, bytes] = {}  # chunks that were fetched together with another chunk
        fetch_end = max(end, min(start + self._read_ahead_bytes, path.ends[key]))
        for span in spans:
            if self._is_near and self._is_in_page_cache(span, start, end):
                parts.append(self._store.read_exactly(key, max(start, span.start), min(end, span.end)))
                continue
            chunk = extra_chunks.pop(span, None)
            if chunk is None:
                chunk = self._chunk(span, partial(self._load_until, span, fetch_end, path, extra_chunks))
            first, last = max(start - span.start, 0), min(end, span.end) - span.start
            parts.append(chunk if last - first == len(chunk) else memoryview(chunk)[first:last])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, path: ReadPath, key: str, start: int, end: int) -> bytes | None:
        """Return bytes [start, end) of an object if all of them are cached in memory, otherwise None."""
        if not start < end <= path.ends.get(key, 0):
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
        self._prefetcher.drop(keys)
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
        return self._prefetcher.held_bytes

    def close(self) -> None:
        """Stop prefetching, and wait for the prefetches in progress. A second call does nothing."""
        self._prefetcher.close()

    def _note(self, spans: Sequence[ObjectRange], path: ReadPath) -> None:
        """Report a read of chunks to the prefetcher, unless it is in the same chunk as the read before."""
        if spans == [self._last_span]:
            return
        self._last_span = spans[-1]
        log_spans = [span for span in spans if path.covers(span)]
        if log_spans:
            span_ids, current = [name for span in log_spans for name in path.ids_of(span)], log_spans[-1]
            self._prefetcher.note_read(span_ids, path.next_id(current), current, lambda: path.spans_after(current))

    def _chunk(self, span: ObjectRange, load: Callable[[], bytes]) -> bytes:
        """Return a chunk from memory, or its prefetched bytes, or else the result of ``load``."""

        def load_missing() -> bytes:
            prefetched = self._prefetcher.take(span)
            return load() if prefetched is None else prefetched

        return self._memory.get_or_load(span, load_missing)

    def _read_files(
        self, spans: Sequence[ObjectRange], start: int, end: int, buffer: memoryview | None
    ) -> memoryview | None:
        """Return bytes [start, end) from files of the disk cache or of a NEAR store, without a check of checksums.

        Return None if all bytes are in memory, or if the files do not have all bytes: then read whole chunks.
        """
        in_memory = [self._is_in_memory(span) for span in spans]
        if all(in_memory):
            return None
        output = buffer[: end - start] if buffer is not None else self._buffers.take(end - start)
        if output is None or len(output) < end - start:  # a layout may read more bytes than it returns
            return None
        if self._is_near and not any(in_memory):
            return output.toreadonly() if self._store.read_cached(spans[0].key, start, output) else None
        filled_bytes = 0
        for span, is_in_memory in zip(spans, in_memory, strict=True):
            first, last = max(start - span.start, 0), min(end, span.end) - span.start
            if not self._fill(
                span, first, output[filled_bytes : filled_bytes + last - first], is_in_memory=is_in_memory
            ):
                return None
            filled_bytes += last - first
        return output.toreadonly()

    def _fill(self, span: ObjectRange, first: int, buffer: memoryview, *, is_in_memory: bool) -> bool:
        """Fill ``buffer`` with bytes of a chunk from position ``first`` on; return False if no file has the chunk."""
        if is_in_memory:
            chunk = self._chunk(span, partial(self._load, span))
            buffer[:] = memoryview(chunk)[first : first + len(buffer)]
            return True
        if self._disk is None:
            return self._store.read_cached(span.key, span.start + first, buffer)
        return self._disk.read_part(self._group(span.key), _item(span), first, buffer)

    def _is_cached(self, span: ObjectRange) -> bool:
        """Return True if a chunk needs no prefetch, because it is cached by this reader or by the operating system."""
        if span in self._memory:
            return True
        if self._disk is not None:
            return self._disk.is_cached(self._group(span.key), _item(span))
        return self._is_near and self._store.is_cached(*span)

    def _is_in_page_cache(self, span: ObjectRange, start: int, end: int) -> bool:
        """Return True if the bytes of a chunk in [start, end) are in the system's page cache, and not in our cache."""
        return not self._is_in_memory(span) and self._store.is_cached(
            span.key, max(start, span.start), min(end, span.end)
        )

    def _is_in_memory(self, span: ObjectRange) -> bool:
        """Return True if a chunk is in our cache in memory, was prefetched, or is being fetched."""
        return span in self._memory or self._prefetcher.holds(span)

    def _needs_no_request(self, span: ObjectRange) -> bool:
        """Return True if no request is necessary for a chunk, because it is in memory, on disk, or being fetched."""
        on_disk = self._disk is not None and self._disk.has(self._group(span.key), _item(span))
        return on_disk or self._is_in_memory(span)

    def _load(self, span: ObjectRange) -> bytes:
        if self._disk is None:
            return self._store.read_exactly(*span)
        data = self._disk.get(self._group(span.key), _item(span))
        if data is None:
            data = self._store.read_exactly(*span)
            self._disk.put(self._group(span.key), _item(span), data)
        return data

    def _load_until(
        self, span: ObjectRange, fetch_end: int, path: ReadPath, extra_chunks: dict[ObjectRange, bytes]
    ) -> bytes:
        """Return the chunk ``span``. If ``fetch_end`` is above its end, fetch the next chunk by the same request.

        The next chunk is added to ``extra_chunks``. It is not fetched if it needs no request, or ``span`` is on disk.
        """
        if fetch_end <= span.end:
            return self._load(span)
        (next_span,) = path.spans(span.key, span.end, span.end + 1)
        if self._needs_no_request(next_span):
            return self._load(span)
        if self._disk is not None:
            data = self._disk.get(self._group(span.key), _item(span))
            if data is not None:
                return data
        two_chunks = self._store.read_exactly(span.key, span.start, next_span.end)
        border = span.end - span.start
        data, extra_chunks[next_span] = two_chunks[:border], two_chunks[border:]
        if self._disk is not None:
            self._disk.put(self._group(span.key), _item(span), data)
            self._disk.put(self._group(span.key), _item(next_span), extra_chunks[next_span])
        self._memory.put(next_span, extra_chunks[next_span])
        return data

    def _group(self, key: str) -> str:
        return f"{self._store.uri}\n{key}"


def _item(span: ObjectRange) -> str:
    return f"{span.start}-{span.end}"
