"""gzip, codec 1: RFC 1952, concatenated members accepted, what follows the last one ignored.

Headers and trailers are read here, because Java's reader and zlib's differ about them: Java ignores the reserved flags,
and takes for the end what does not begin like a member.

Source: apache/kafka GzipCompression, over Java's GZIPInputStream.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import ClassVar, Final

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_GZIP_WINDOW: Final = 31  # zlib: 15 bits of window, gzip framing
_RAW_WINDOW: Final = -15  # the same without framing
_START: Final = b"\x1f\x8b\x08"  # magic, and the only method there is
_HEADER_CRC, _EXTRA, _NAME, _COMMENT = 0x02, 0x04, 0x08, 0x10
_HEADER_BYTES: Final = 10
_TRAILER: Final = Struct("<II")  # CRC-32 and size of the contents
_NO_MEMBER_BYTES: Final = _HEADER_BYTES + _TRAILER.size  # what holds no contents between the two is none
_CHUNK_BYTES: Final = 1 << 14


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
        view = memoryview(data)
        position = _header_end(view, 0)
        if position is None:
            raise CorruptBatchError("no gzip data", "")
        found = bytearray()
        while position is not None:
            position = _inflate(view, position, found, limit_bytes)
            position = _header_end(view, position) if len(view) - position > _NO_MEMBER_BYTES else None
        return memoryview(found).toreadonly()


def _header_end(view: memoryview, start: int) -> int | None:
    """Where the contents of the member at ``start`` begin, None if no whole header is there."""
    if len(view) - start < _HEADER_BYTES or bytes(view[start : start + len(_START)]) != _START:
        return None
    flags, position = view[start + 3], start + _HEADER_BYTES
    if flags & _EXTRA:
        position += 2 + int.from_bytes(view[position : position + 2], "little")
    for flag in (_NAME, _COMMENT):
        while flags & flag and position < len(view):
            position += 1
            if view[position - 1] == 0:
                break
    if flags & _HEADER_CRC:
        stored = int.from_bytes(view[position : position + 2], "little")
        if stored != zlib.crc32(view[start:position]) & 0xFFFF:
            return None
        position += 2
    return position if position < len(view) else None


def _inflate(view: memoryview, position: int, into: bytearray, limit_bytes: int) -> int:
    """Append the contents at ``position`` to ``into``, check the trailer, give the position after it."""
    start = len(into)
    unpacker = zlib.decompressobj(_RAW_WINDOW)
    while not unpacker.eof:
        chunk = view[position : position + _CHUNK_BYTES]  # what a member leaves over is copied: not all of it
        if not chunk:
            raise CorruptBatchError("the gzip data is cut off", "", len(view))
        try:
            into += unpacker.decompress(chunk, limit_bytes - len(into) + 1)
        except zlib.error as error:
            raise CorruptBatchError(f"bad gzip data: {error}", "", position) from error
        if len(into) > limit_bytes:
            raise DecompressedSizeError(f"gzip data grows past {limit_bytes} bytes", "")
        position += len(chunk) - len(unpacker.unused_data)
    if len(view) - position < _TRAILER.size:
        raise CorruptBatchError("the gzip data is cut off", "", len(view))
    with memoryview(into) as whole:
        expected = (zlib.crc32(whole[start:]), len(into) - start & 0xFFFFFFFF)
    if _TRAILER.unpack_from(view, position) != expected:
        raise CorruptBatchError("the gzip checksum does not match", "", position)
    return position + _TRAILER.size
