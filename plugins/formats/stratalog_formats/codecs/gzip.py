"""gzip, codec 1: RFC 1952, concatenated members accepted, what follows the last one ignored.

Source: apache/kafka GzipCompression, over Java's GZIPInputStream.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_GZIP_WINDOW = 31  # zlib: 15 bits of window, gzip framing
_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 14


class GzipCodec(Codec):
    """zlib's deflate in gzip members."""

    id: ClassVar[int] = 1
    levels: ClassVar[range | None] = range(1, 10)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """One member; no name, no time."""
        del magic
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
        return packer.compress(data) + packer.flush()

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """All members behind each other."""
        del magic
        view, position, pieces, left = memoryview(data), 0, list[bytes](), limit_bytes
        while not pieces or bytes(view[position : position + len(_MAGIC)]) == _MAGIC:
            unpacker = zlib.decompressobj(_GZIP_WINDOW)
            while not unpacker.eof:
                chunk = view[position : position + _CHUNK_BYTES]  # what a member leaves over is copied: not all of it
                if not chunk:
                    raise CorruptBatchError("the gzip data is cut off", "", len(view))
                try:
                    pieces.append(unpacker.decompress(chunk, left + 1))
                except zlib.error as error:
                    raise CorruptBatchError(f"bad gzip data: {error}", "", position) from error
                left -= len(pieces[-1])
                if left < 0:
                    raise DecompressedSizeError(f"gzip data grows past {limit_bytes} bytes", "")
                position += len(chunk) - len(unpacker.unused_data)
        return memoryview(b"".join(pieces))
