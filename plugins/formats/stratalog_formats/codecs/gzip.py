"""gzip, codec 1: RFC 1952, with concatenated members. Like Kafka, stratalog ignores bytes after the last member.

Most writers write one member, whose header has no optional fields. libdeflate decompresses such data in one call. All
other data, including damaged data, is read member by member: this module parses headers and trailers like Java, and
zlib inflates the contents. Unlike zlib, Java ignores reserved flags, and stops at bytes that are not the start of a
member.

Source: apache/kafka GzipCompression, over Java's GZIPInputStream.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from struct import Struct
from typing import ClassVar, Final

import deflate

from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec
from stratalog_formats.codecs.levels import check_level
from stratalog_formats.kernels.dispatch import KERNELS

_DEFAULT_LEVEL: Final = 6  # zlib's default, for level -1
_RAW_WINDOW: Final = -15  # zlib: 15 bits of window, no framing
_START: Final = b"\x1f\x8b\x08"  # magic, and the only defined method
_PLAIN_START: Final = _START + b"\0"  # no optional fields
_HEADER_CRC, _EXTRA, _NAME, _COMMENT = 0x02, 0x04, 0x08, 0x10
_HEADER_BYTES: Final = 10
_TRAILER: Final = Struct("<II")  # CRC-32 and size of the contents
_SIZE: Final = Struct("<I")
_NO_MEMBER_BYTES: Final = _HEADER_BYTES + _TRAILER.size  # header and trailer; a member is larger than this
_MAX_RATIO: Final = 1032  # two bits of deflate produce at most 258 bytes
_CHUNK_BYTES: Final = 1 << 9  # limits zlib's output to 516 KiB for each call
_LARGE_BYTES: Final = 1 << 22
_SEARCH_BYTES: Final = 1 << 16


class GzipCodec(Codec):
    """Codec for gzip, with zlib's levels."""

    id: ClassVar[int] = 1
    levels: ClassVar[range | None] = range(1, 10)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Return ``data`` compressed to one gzip member, whose header has no name and no time."""
        del magic
        return bytes(deflate.gzip_compress(data, check_level("gzip", level, range(1, 10), _DEFAULT_LEVEL)))

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents of all concatenated members."""
        del magic
        view = memoryview(data)
        contents = _decompress_only_member(view, limit_bytes)
        if contents is None:
            contents = _decompress_members(view, limit_bytes)
        return memoryview(contents).toreadonly()


def _decompress_only_member(view: memoryview, limit_bytes: int) -> bytearray | None:
    """Return the contents of ``view`` if it is certainly one valid member without optional fields; otherwise None.

    The result is also None if the contents are empty or larger than ``limit_bytes``.
    """
    if len(view) < _NO_MEMBER_BYTES or view[: len(_PLAIN_START)].tobytes() != _PLAIN_START:
        return None
    size: int = _SIZE.unpack_from(view, len(view) - _SIZE.size)[0]
    if not 0 < size <= min(limit_bytes, len(view) * _MAX_RATIO):  # limits the allocation before libdeflate
        return None
    # If another member seems to follow, return None before a large allocation that would not be used.
    if size > _LARGE_BYTES and KERNELS.holds(view[1:], _START):
        return None
    try:
        contents: bytearray = deflate.gzip_decompress(view, size)
    except deflate.DeflateError:
        return None
    # libdeflate does not report the end of the member. If a second member follows, the size of the first precedes it.
    return None if KERNELS.holds(view, _SIZE.pack(len(contents)) + _START) else contents


def _decompress_members(view: memoryview, limit_bytes: int) -> bytearray:
    """Return the contents of all members.

    The first of two passes only computes the size of the result.
    """
    size = 0
    for piece in _pieces(view):
        size += len(piece)
        if size > limit_bytes:
            raise DecompressedSizeError(f"gzip data grows past {limit_bytes} bytes", "")
    contents = KERNELS.room(size)
    end = 0
    for piece in _pieces(view) if size else ():
        contents[end : end + len(piece)] = piece
        end += len(piece)
    return contents


def _pieces(view: memoryview) -> Iterator[bytes]:
    position = _header_end(view, 0)
    if position is None:
        raise CorruptBatchError("the data is not in gzip format", "")
    while position is not None:
        position = yield from _inflate(view, position)
        position = _header_end(view, position) if len(view) - position > _NO_MEMBER_BYTES else None


def _header_end(view: memoryview, start: int) -> int | None:
    """Return the end of the header of the member at ``start``.

    Return None if the header is invalid or nothing follows it.
    """
    if len(view) - start < _HEADER_BYTES or view[start : start + len(_START)].tobytes() != _START:
        return None
    flags, position = view[start + 3], start + _HEADER_BYTES
    if flags & _EXTRA:
        position += 2 + int.from_bytes(view[position : position + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            position = _text_end(view, position)
    if flags & _HEADER_CRC:
        stored_crc = int.from_bytes(view[position : position + 2], "little")
        if stored_crc != zlib.crc32(view[start:position]) & 0xFFFF:
            return None
        position += 2
    return position if position < len(view) else None


def _text_end(view: memoryview, position: int) -> int:
    """Return the position after the next zero byte at or after ``position``.

    If there is none, return the end of ``view``.
    """
    for start in range(position, len(view), _SEARCH_BYTES):
        zero = bytes(view[start : start + _SEARCH_BYTES]).find(0)
        if zero >= 0:
            return start + zero + 1
    return len(view)


def _inflate(view: memoryview, position: int) -> Generator[bytes, None, int]:
    """Yield the contents of a member in pieces of at most 516 KiB. Return the position after the member's trailer.

    Raise CorruptBatchError if the contents are damaged or cut off, or contradict the trailer.
    """
    checksum = size = 0
    unpacker = zlib.decompressobj(_RAW_WINDOW)
    while not unpacker.eof:
        # The chunks are small, because zlib copies all input after the end of a member.
        chunk = view[position : position + _CHUNK_BYTES]
        if not chunk:
            raise CorruptBatchError("the gzip data is cut off", "", len(view))
        try:
            piece = unpacker.decompress(chunk)
        except zlib.error as error:
            raise CorruptBatchError(f"bad gzip data: {error}", "", position) from error
        position += len(chunk) - len(unpacker.unused_data)
        if piece:
            checksum, size = zlib.crc32(piece, checksum), size + len(piece)
            yield piece
    if len(view) - position < _TRAILER.size:
        raise CorruptBatchError("the gzip data is cut off", "", len(view))
    if _TRAILER.unpack_from(view, position) != (checksum, size & 0xFFFFFFFF):
        raise CorruptBatchError("the gzip checksum does not match", "", position)
    return position + _TRAILER.size
