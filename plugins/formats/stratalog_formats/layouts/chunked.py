"""Layout ``chunked``: one object for each segment. The log is split into chunks, and each chunk is compressed alone.

::

    chunk 0 | chunk 1 | ... | chunk index | small files | footer

Each chunk can be read alone. A read of a range therefore fetches and decompresses only the chunks with bytes of the
range. A chunk that zstd does not shrink, for example because producers have compressed its batches, is stored
unchanged. The chunk index is in the object, not in the manifest, because the size of a manifest must not grow with the
size of the segments.

The chunk index has four bytes for each chunk: its stored size, unsigned and big-endian. The highest bit is set if the
chunk is stored uncompressed.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import (
    Buffer,
    FileKind,
    HashedLog,
    ObjectSink,
    OpenContext,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
)
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.layouts.pieces import RecentlyUsed, cut, fetch_exactly, place_of
from stratalog_formats.layouts.sections import MAX_CHUNK_BYTES, ChunkedSection
from stratalog_formats.layouts.single import WholeLayout, put_whole
from stratalog_formats.layouts.spool import Spool

LABEL: Final = "chunked@1"
_MAGIC: Final = 2  # magic that is passed to the codec, so that frames are the same as in record batches
_WORTH: Final = 0.95  # a chunk is stored uncompressed unless it shrinks below this share of its size
# Maximum number of chunks that are stored without an attempt to compress them, after chunks that did not shrink.
_LONGEST_SKIP: Final = 15
RAW_BIT: Final = 1 << 31  # stored in objects: never change it
MAX_INDEX_BYTES: Final = 4 << 20  # a million chunks
SIZE_BYTES: Final = 4
_FIELDS: Final = frozenset({"chunk_bytes", "index_bytes", "index_sha256"})


class ChunkedLayout(WholeLayout):
    """Tier layout that stores a segment as one object of compressed chunks.

    A ranged read has at most ``fetch_chunk_bytes``, unless a chunk is larger. ``settings`` apply to new segments;
    None means the defaults. Readers use the chunk size in the manifest entry.
    """

    label = LABEL

    def __init__(self, fetch_chunk_bytes: int, settings: ChunkedSection | None = None) -> None:
        self._fetch_chunk_bytes, self._settings = fetch_chunk_bytes, settings or ChunkedSection()
        self._codec, self._indexes = ZstdCodec(), RecentlyUsed[ChunkIndex]()

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Compress a segment into a temporary file, then store it as one object."""
        del section  # this layout has settings of the engine only, and no topic settings
        with Spool() as spool:
            sizes = self._compress(source, spool, sink.key())
            index = encode_sizes(sizes)
            spool.write(index)
            notes = {
                "chunk_bytes": self._settings.chunk_bytes,
                "index_bytes": len(index),
                "index_sha256": hashlib.sha256(index).hexdigest(),
            }
            return put_whole(LABEL, source, spool, sink, {"chunks": notes})

    # --- writing ---------------------------------------------------------------------------------------------------

    def _compress(self, source: SegmentSource, spool: Spool, key: str) -> list[int]:
        """Write all chunks of the log to ``spool``, set ``spool.sha256``, and return the entries of the chunk index."""
        log, sizes = HashedLog.of(source.log, key), list[int]()
        skip = misses = 0
        for chunk in cut(log, self._settings.chunk_bytes):
            stored_chunk: Buffer = chunk
            if skip:
                skip -= 1
            else:
                compressed = self._codec.compress(chunk, level=self._settings.level, magic=_MAGIC)
                if len(compressed) < len(chunk) * _WORTH:
                    stored_chunk, misses = compressed, 0
                else:
                    misses += 1
                    skip = min((1 << misses) - 1, _LONGEST_SKIP)
            sizes.append(len(stored_chunk) | (RAW_BIT if stored_chunk is chunk else 0))
            spool.write(stored_chunk)
        spool.sha256 = log.sha256
        return sizes

    # --- reading ---------------------------------------------------------------------------------------------------

    def _pieces(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        if start == end:
            return
        index = chunk_index(segment, fetch, self._indexes)
        place = place_of(segment, FileKind.LOG)
        for first, last in index.runs(start, end, self._fetch_chunk_bytes):
            base = index.position(first)
            data = memoryview(fetch_exactly(fetch, place, base, index.position(last)))
            for number in range(first, last):
                position = index.position(number) - base
                piece = self._decompress_chunk(
                    index, number, data[position : position + index.stored_bytes(number)], place.key
                )
                from_position = number * index.chunk_bytes
                yield piece[max(0, start - from_position) : end - from_position]

    def _decompress_chunk(self, index: ChunkIndex, number: int, data: memoryview, key: str) -> memoryview:
        if index.is_raw(number):
            return data
        original_bytes = index.original_bytes(number)
        try:
            piece = self._codec.decompress(data, limit_bytes=original_bytes, magic=_MAGIC)
        except StorageError as error:
            raise CorruptObjectError(f"chunk {number} is damaged: {error}", key, index.position(number)) from error
        if len(piece) != original_bytes:
            raise CorruptObjectError(
                f"chunk {number} has {len(piece)} bytes, not {original_bytes}", key, index.position(number)
            )
        return piece


def open_chunked(context: OpenContext) -> TierLayout:
    """Return the layout with the settings of ``[plugins.chunked]``."""
    section = context.section
    return ChunkedLayout(
        context.limits.fetch_chunk_bytes, section if isinstance(section, ChunkedSection) else ChunkedSection()
    )


class ChunkIndex:
    """Positions of the chunks of one log in the log's slice of an object. The constructor checks the entries.

    Args:
        entries: entries of the chunk index, one for each chunk.
        chunk_bytes: bytes of the original log in each chunk; the last chunk may have fewer.
        place_bytes: expected stored size of all chunks together.

    Raises:
        CorruptObjectError: the entries contradict the sizes, or a chunk is empty or larger than its bytes of the log.
    """

    def __init__(self, entries: Sequence[int], chunk_bytes: int, log_bytes: int, place_bytes: int, key: str) -> None:
        self.chunk_bytes, self._entries, self._log_bytes = chunk_bytes, entries, log_bytes
        self._positions = [0, *accumulate(entry & ~RAW_BIT for entry in entries)]
        if self._positions[-1] != place_bytes:
            raise CorruptObjectError(f"the chunks have {self._positions[-1]} bytes, not {place_bytes}", key)
        for number, entry in enumerate(entries):
            stored_bytes, original_bytes = entry & ~RAW_BIT, self.original_bytes(number)
            if not 0 < stored_bytes <= original_bytes or (entry & RAW_BIT and stored_bytes != original_bytes):
                text = f"chunk {number} has {stored_bytes} bytes in the object, and {original_bytes} before compression"
                raise CorruptObjectError(text, key)

    def original_bytes(self, number: int) -> int:
        """Return the size (bytes) of a chunk before compression."""
        return min(self.chunk_bytes, self._log_bytes - number * self.chunk_bytes)

    def stored_bytes(self, number: int) -> int:
        """Return the stored size (bytes) of a chunk, which is usually compressed."""
        return self._entries[number] & ~RAW_BIT

    def is_raw(self, number: int) -> bool:
        """Return True if a chunk is stored uncompressed."""
        return bool(self._entries[number] & RAW_BIT)

    def position(self, number: int) -> int:
        """Return the position (bytes) of a chunk in the slice.

        For the number after the last chunk, return the end of the slice.
        """
        return self._positions[number]

    def runs(self, start: int, end: int, limit_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield ranges [first, last) of chunk numbers, which together contain bytes [start, end) of the log.

        The stored size of the chunks of a range is at most ``limit_bytes``. A single chunk may be larger.
        """
        first, stop = start // self.chunk_bytes, -(-end // self.chunk_bytes)
        while first < stop:
            last = first + 1
            while last < stop and self._positions[last + 1] - self._positions[first] <= limit_bytes:
                last += 1
            yield first, last
            first = last


def encode_sizes(entries: Sequence[int]) -> bytes:
    """Return the bytes of a chunk index with these entries."""
    big_endian = array("I", entries)
    if sys.byteorder == "little":
        big_endian.byteswap()
    return big_endian.tobytes()


def chunk_index(segment: StoredSegment, fetch: RangeReader, cache: RecentlyUsed[ChunkIndex]) -> ChunkIndex:
    """Return the chunk index of a segment. Fetch the index in one request if ``cache`` does not have it.

    Raises:
        CorruptObjectError: the data about the chunks in the manifest entry is impossible, or the chunk index is
            damaged.
    """
    place = place_of(segment, FileKind.LOG)
    log_bytes, (chunk_bytes, index_bytes, sha256) = segment.info.size_bytes, _notes(segment, place.key)

    def load() -> ChunkIndex:
        chunks = -(-log_bytes // chunk_bytes)
        if index_bytes != chunks * SIZE_BYTES or index_bytes > place.size_bytes:
            raise CorruptObjectError(f"a chunk index of {index_bytes} bytes does not fit {chunks} chunks", place.key)
        data = fetch_exactly(fetch, place, place.size_bytes - index_bytes, place.size_bytes)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptObjectError("the hash of the chunk index is wrong", place.key, place.position)
        entries = array("I", data)
        if sys.byteorder == "little":
            entries.byteswap()
        return ChunkIndex(entries, chunk_bytes, log_bytes, place.size_bytes - index_bytes, place.key)

    # The key contains the hash of the index, and all values that the index is checked against.
    return cache.get_or_load((place, log_bytes, chunk_bytes, index_bytes, sha256), load)


def _notes(segment: StoredSegment, key: str) -> tuple[int, int, str]:
    notes = segment.extra.get("chunks")
    if not isinstance(notes, Mapping) or set(notes) != _FIELDS:
        raise CorruptObjectError("the entry does not describe its chunks", key)
    chunk_bytes, index_bytes = _size(notes["chunk_bytes"]), _size(notes["index_bytes"])
    if not 0 < chunk_bytes <= MAX_CHUNK_BYTES or not 0 <= index_bytes <= MAX_INDEX_BYTES:
        raise CorruptObjectError(
            f"the entry describes chunks of {chunk_bytes} bytes and an index of {index_bytes}", key
        )
    return chunk_bytes, index_bytes, str(notes["index_sha256"])


def _size(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
