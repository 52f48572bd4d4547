"""gzip, codec 1: RFC 1952, concatenated members accepted, what follows the last one ignored.

Source: apache/kafka GzipCompression, over Java's GZIPInputStream.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_GZIP_WINDOW = 31  # zlib: 15 bits of window, gzip framing
_MAGIC = b"\x1f\x8b"


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
        left, pieces, size = bytes(data), list[bytes](), 0
        while not pieces or left.startswith(_MAGIC):
            unpacker = zlib.decompressobj(_GZIP_WINDOW)
            try:
                piece = unpacker.decompress(left, limit_bytes - size + 1)
            except zlib.error as error:
                raise CorruptBatchError(f"bad gzip data: {error}", "") from error
            size += len(piece)
            if size > limit_bytes:
                raise DecompressedSizeError(f"gzip data grows past {limit_bytes} bytes", "")
            if not unpacker.eof:
                raise CorruptBatchError("the gzip data is cut off", "", len(data))
            pieces.append(piece)
            left = unpacker.unused_data
        return memoryview(b"".join(pieces))
