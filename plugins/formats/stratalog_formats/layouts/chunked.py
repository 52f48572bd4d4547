"""Layout ``chunked``: one object for each segment. The log is split into chunks, and each chunk is compressed alone.

::

    chunk 0 | chunk 1 | ... | chunk index | small files | footer

Each chunk can be read alone. A read of a range therefore fetches and decompresses only the chunks with bytes of the
range. A chunk that zstd does not shrink, for example because producers have compressed its batches, is stored
unchanged. The chunk index is in the object, not in the manifest, because the size of a manifest must not grow with the
size of the segments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from stratalog_formats.layouts.chunks import RAW_BIT, ChunkIndex, chunk_index, encode_sizes
from stratalog_formats.layouts.pieces import RecentlyUsed, cut, fetch_exactly, place_of
from stratalog_formats.layouts.sections import ChunkedSection
from stratalog_formats.layouts.single import WholeLayout, put_whole
from stratalog_formats.layouts.spool import Spool

LABEL: Final = "chunked@1"
_MAGIC: Final = 2  # magic that is passed to the codec, so that frames are the same as in record batches
_WORTH: Final = 0.95  # a chunk is stored uncompressed unless it shrinks below this share of its size
# Maximum number of chunks that are stored without an attempt to compress them, after chunks that did not shrink.
_LONGEST_SKIP: Final = 15


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
