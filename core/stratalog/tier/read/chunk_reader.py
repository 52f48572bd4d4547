"""Reads of objects of a tier in aligned chunks: from memory, from disk, from prefetched bytes, or from the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, TypeAlias

from stratalog.config.engine_settings import Limits
from stratalog.env.cache import Cache, CacheMetrics, TwoQueues
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.read_buffers import BufferPool
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.objects import Capability
from stratalog.tier.manifest.entry_tree import object_end
from stratalog.tier.read.disk_cache import DiskCache
from stratalog.tier.read.prefetch import ObjectRange, Prefetcher
from stratalog.tier.store.store import TierStore

_CHUNK_SIZES: Final = 6  # the smallest chunk has a 32nd of limits.fetch.chunk.bytes
_EXTRA_BYTES: Final = 64 << 10  # a fetch may read this many more bytes to find its first batch

Successor: TypeAlias = Callable[[StoredSegment], StoredSegment | None]
"""Function that returns the segment after a given segment, or None if there is none yet.

It may send requests to the store.
"""


def no_successor(entry: StoredSegment) -> None:
    """Return None: a ``Successor`` for reads without prefetching of the next segment."""
    del entry


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
        self._limits = limits
        self._store, self._disk = store, disk
        self._memory = Cache[bytes](limits.chunk_cache_bytes, TwoQueues(limits.chunk_cache_bytes))
        self._prefetcher = Prefetcher(self._load, self._is_cached, limits.prefetch_bytes, threads)
        self._last_span: ObjectRange | None = None  # the last chunk read; no lock: a wrong value only costs a check
        self._is_near = disk is None and Capability.NEAR in store.capabilities
        self._buffers = BufferPool(limits.read_bytes + _EXTRA_BYTES)
        self._chunk_sizes = [limits.fetch_chunk_bytes]  # largest first: each is half of the one before
        if disk is None and not self._is_near:
            while len(self._chunk_sizes) < _CHUNK_SIZES and self._chunk_sizes[-1] % 2 == 0:
                self._chunk_sizes.append(self._chunk_sizes[-1] // 2)
        self._first_chunk_bytes = max(limits.fetch_chunk_bytes // 4, self._chunk_sizes[-1])
        # A log is read in steps of this many bytes. If the cache has room for two chunks, the first read also fetches
        # the next chunk, and does not end at a border between chunks.
        self._read_ahead_bytes = limits.read_bytes if limits.chunk_cache_bytes >= 2 * limits.fetch_chunk_bytes else 0

    def read(
        self, entry: StoredSegment, successor: Successor, key: str, start: int, end: int, buffer: memoryview | None
    ) -> bytes | memoryview:
        """Return bytes [start, end) of an object; prefetch chunks if reads of logs are sequential.

        The method does not check bytes that it reads from files: the reader of a log must check the CRCs of batches.

        Args:
            entry: the manifest entry of a segment. Only bytes of its slices are read in chunks; other bytes are read by
                one request.
            successor: returns the next segment, for prefetching.
            key: key of an object of the segment.
            start: start position of the range.
            end: exclusive end position of the range.
            buffer: memory that may be used for the result; None if there is none.

        Returns:
            The bytes, possibly as a view of a cached chunk or of ``buffer``.

        Raises:
            CorruptObjectError: the object ends before ``end``.
            StoreError: the store failed or refused. It is an ObjectNotFoundError if the object does not exist.
        """
        last_end = object_end(entry, key)
        if not start < end <= last_end:
            return self._store.read_exactly(key, start, end)
        fetch_end = max(end, min(start + self._read_ahead_bytes, last_end))
        log, info = entry.slices[FileKind.LOG], entry.info
        log_end = log.position + log.size_bytes if log.key == key else last_end
        is_next_segment = start <= log.position and self._prefetcher.expects(_segment_id(info, info.base_offset))
        fetched_spans = list(self._spans(key, start, fetch_end, last_end, is_sequential=is_next_segment))
        spans = [span for span in fetched_spans if span.start < end]
        self._note(spans, entry, successor)
        if self._is_near or self._disk is not None:
            data = self._read_files(spans, start, end, buffer)
            if data is not None:
                return data
        parts: list[bytes | memoryview] = []
        extra_chunks: dict[ObjectRange, bytes] = {}  # chunks that were fetched together with another chunk
        for number, span in enumerate(spans, start=1):
            if self._is_near and self._is_in_page_cache(span, start, end):
                parts.append(self._store.read_exactly(key, max(start, span.start), min(end, span.end)))
                continue
            chunk = extra_chunks.pop(span, None)
            if chunk is None:
                chunk = self._chunk(span, partial(self._load_with, span, fetched_spans[number:], extra_chunks))
            first, last = max(start - span.start, 0), min(end, span.end) - span.start
            parts.append(chunk if last - first == len(chunk) else memoryview(chunk)[first:last])
            if min(span.end, log_end) <= end:
                self._memory.finish(span)
            else:
                self._memory.begin(span)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_small(self, entry: StoredSegment, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of an object: from chunks in memory if they have all bytes, else by one request.

        The request adds no chunk to the caches. Takes the arguments and raises the errors of ``read``.
        """
        last_end = object_end(entry, key)
        spans = self._spans(key, start, end, last_end) if end <= last_end else ()
        parts: list[memoryview] = []
        for span in spans:
            chunk = self._memory.peek(span)
            if chunk is None:
                break
            parts.append(memoryview(chunk)[max(start - span.start, 0) : min(end, span.end) - span.start])
        else:
            if parts:
                return b"".join(parts)
        return self._store.read_exactly(key, start, end)

    def drop(self, keys: Collection[str], *, refuse: bool = False) -> None:
        """Remove all cached bytes of some objects, also on disk. With ``refuse``, never cache them on disk again."""
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

    def _spans(
        self, key: str, start: int, end: int, last_end: int, *, is_sequential: bool = False, least_bytes: int = 0
    ) -> Iterator[ObjectRange]:
        """Yield the chunks that have the bytes [start, end) of an object; ``last_end`` is the end of its last chunk.

        Chunks in memory are used whatever their size is. New chunks have the size ``_new_chunk_bytes``. They are
        smaller if they follow a smaller chunk, or if a reader that is not sequential reads few bytes.
        """
        position = start
        while position < end:
            new_chunk_bytes = max(self._new_chunk_bytes(), least_bytes)
            is_small = end - start <= self._first_chunk_bytes and not is_sequential
            if is_small and not self._prefetcher.expects((key, position)):
                new_chunk_bytes = min(new_chunk_bytes, self._first_chunk_bytes)
            is_border = position % self._chunk_sizes[-1] == 0  # a new chunk need not begin before it
            new_span = None
            for chunk_bytes in self._chunk_sizes:
                begin = position - position % chunk_bytes
                if begin != position != start:
                    continue
                span = ObjectRange(key, begin, min(begin + chunk_bytes, last_end))
                if self._is_in_memory(span):
                    break
                if new_span is None and chunk_bytes <= new_chunk_bytes and (begin == position or not is_border):
                    new_span = span
            else:
                span = new_span or span
            yield span
            position = span.end

    def _new_chunk_bytes(self) -> int:
        """Return the size of a new chunk, so that half of the cache has room for one chunk of each reader.

        A reader reads a chunk in several steps. The cache would evict a larger chunk before the last step. A chunk that is
        larger than the memory for prefetched chunks could not be prefetched.
        """
        share_bytes = self._limits.chunk_cache_bytes / 2 / max(self._prefetcher.readers, 1)
        if self._limits.prefetch_bytes:
            share_bytes = min(share_bytes, self._limits.prefetch_bytes)
        return next((size for size in self._chunk_sizes if size <= share_bytes), self._chunk_sizes[-1])

    def _note(self, spans: Sequence[ObjectRange], entry: StoredSegment, successor: Successor) -> None:
        """Report a read of chunks of a log to the prefetcher, unless it is in the same chunk as the read before."""
        if spans == [self._last_span]:
            return
        self._last_span = spans[-1]
        info, log = entry.info, entry.slices[FileKind.LOG]
        log_end = log.position + log.size_bytes
        log_spans = [span for span in spans if span.key == log.key and span.start < log_end and span.end > log.position]
        if not log_spans:
            return
        span_ids: list[Hashable] = [(span.key, span.start) for span in log_spans]
        if log_spans[0].start <= log.position:  # it may follow the last chunk of the previous segment
            span_ids.insert(1, _segment_id(info, info.base_offset))
        current = log_spans[-1]
        next_start = current.end
        next_id = (log.key, next_start) if next_start < log_end else _segment_id(info, info.end_offset)
        self._prefetcher.note_read(span_ids, next_id, current, lambda: self._log_spans(entry, successor, next_start))

    def _log_spans(self, entry: StoredSegment, successor: Successor, start: int) -> Iterator[ObjectRange]:
        """Yield the chunks of a segment's log from position ``start`` of its object on, then those of later segments.

        The method raises the errors of ``successor``.
        """
        segment: StoredSegment | None = entry
        while segment is not None:
            log = segment.slices[FileKind.LOG]
            first = start if segment is entry else log.position
            log_end, last_end = log.position + log.size_bytes, object_end(segment, log.key)
            yield from self._spans(log.key, first, log_end, last_end, least_bytes=self._limits.read_bytes)
            segment = successor(segment)

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

    def _load_with(
        self, span: ObjectRange, following: Iterable[ObjectRange], extra_chunks: dict[ObjectRange, bytes]
    ) -> bytes:
        """Return the chunk ``span``, and fetch the chunks ``following`` by the same request.

        They are added to ``extra_chunks``. They are fetched up to the first that needs no request, or that begins more
        than ``limits.fetch_chunk_bytes`` later. None is fetched if ``span`` is on disk.
        """
        limit = span.start + self._limits.fetch_chunk_bytes
        extra_spans = list(
            takewhile(lambda extra: extra.start <= limit and not self._needs_no_request(extra), following)
        )
        if not extra_spans:
            return self._load(span)
        if self._disk is not None:
            data = self._disk.get(self._group(span.key), _item(span))
            if data is not None:
                return data
        data = self._store.read_exactly(span.key, span.start, extra_spans[-1].end)
        for fetched in (span, *extra_spans):
            extra_chunks[fetched] = data[fetched.start - span.start : fetched.end - span.start]
            if self._disk is not None:
                self._disk.put(self._group(span.key), _item(fetched), extra_chunks[fetched])
        for extra_span in extra_spans:
            self._memory.put(extra_span, extra_chunks[extra_span])
        return extra_chunks.pop(span)

    def _group(self, key: str) -> str:
        return f"{self._store.uri}\n{key}"


def _segment_id(info: SegmentInfo, base_offset: int) -> Hashable:
    """Return the id of the segment that begins at an offset, in the log of the segment ``info``."""
    return info.topic_id.text, info.log, base_offset


def _item(span: ObjectRange) -> str:
    return f"{span.start}-{span.end}"
