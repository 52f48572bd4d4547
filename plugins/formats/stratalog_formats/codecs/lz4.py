"""lz4, codec 3: one LZ4 frame of independent blocks. The frame differs from the LZ4 format as in Kafka.

For magic 0, Kafka's writer includes the frame's magic bytes in the header checksum (KAFKA-3160), and Kafka's reader
does not check this checksum. Kafka checks neither content size nor content checksum, and refuses blocks that depend on
each other. stratalog has the same rules. The library cannot read such frames. Therefore this module parses the frame,
and the library only decompresses the blocks.

Source: apache/kafka Lz4BlockInputStream, Lz4BlockOutputStream.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, under a name that says so
from typing import ClassVar, Final

import lz4.frame
from cramjam import DecompressionError
from cramjam import lz4 as library
from xxhash import xxh32_intdigest

from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec
from stratalog_formats.codecs.levels import check_level
from stratalog_formats.codecs.repeatable import repeatable
from stratalog_formats.kernels.dispatch import KERNELS

_MAGIC: Final = b"\x04\x22\x4d\x18"
_VERSION, _INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x40, 0x20, 0x10, 0x08, 0x04
_BLOCK_SIZES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_FAST_LEVEL: Final = 9  # Kafka's default level; it selects the fast compressor, other levels select high compression
_WORD: Final = Struct("<I")  # size of a block, or a checksum
_STORED: Final = 1 << 31
_MAX_RATIO: Final = 256  # one byte of a match length adds at most 255 bytes


class Lz4Codec(Codec):
    """Codec for lz4. It writes frames with blocks of 64 KiB. Their only checksum is the header checksum."""

    id: ClassVar[int] = 3
    levels: ClassVar[range | None] = range(1, 18)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Return ``data`` compressed to one frame."""
        level = check_level("lz4", level, range(1, 18), _FAST_LEVEL)
        frame: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level == _FAST_LEVEL else max(level, lz4.frame.COMPRESSIONLEVEL_MINHC),
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        if magic == 0:
            return b"".join((frame[:6], bytes((_header_checksum(frame[:6]),)), memoryview(frame)[7:]))
        return frame

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents of the first frame. Like Kafka, stratalog ignores the bytes after this frame."""
        view = memoryview(data)
        flags, header_bytes = _check_header(view, magic)
        block_bytes = _BLOCK_SIZES[view[5] >> 4]
        blocks = repeatable(partial(_blocks, view, flags, header_bytes, block_bytes))
        before_last_bytes = last_bytes = size = 0
        for block, is_uncompressed in blocks:
            before_last_bytes += last_bytes
            last_bytes = len(block) if is_uncompressed else min(block_bytes, len(block) * _MAX_RATIO)
        # At the end, there is room for a block of the largest size, because each call of the library needs this room.
        contents = KERNELS.room(min(before_last_bytes, limit_bytes) + block_bytes)
        with memoryview(contents) as output:
            for block, is_uncompressed in blocks:
                if is_uncompressed:
                    output[size : size + len(block)] = block
                    size += len(block)
                else:
                    size += _unpack(block, output[size : size + block_bytes])
                if size > limit_bytes:
                    raise DecompressedSizeError(f"lz4 data grows past {limit_bytes} bytes", "")
        del contents[size:]
        return memoryview(contents).toreadonly()


def _check_header(view: memoryview, magic: int) -> tuple[int, int]:
    """Return the flags of the frame and the size (bytes) of its header. For magic 0, ignore the header checksum.

    Raise CorruptBatchError if the header is damaged, or has features that Kafka does not support.
    """
    if len(view) < 7 or view[:4].tobytes() != _MAGIC:
        raise CorruptBatchError("the data is not an lz4 frame", "")
    flags, descriptor = view[4], view[5]
    if flags & 0xC0 != _VERSION or flags & 0x03:
        raise CorruptBatchError(f"lz4 flags {flags:#04x} are not supported", "", 4)
    if not flags & _INDEPENDENT:
        raise CorruptBatchError("lz4 blocks that depend on each other are not supported", "", 4)
    if descriptor & 0x8F or descriptor >> 4 not in _BLOCK_SIZES:
        raise CorruptBatchError(f"lz4 block descriptor {descriptor:#04x} is not supported", "", 5)
    size = 15 if flags & _CONTENT_SIZE else 7
    if len(view) < size:
        raise CorruptBatchError("the lz4 header is cut off", "", len(view))
    if magic and view[size - 1] != _header_checksum(view[4 : size - 1]):
        raise CorruptBatchError("the lz4 header checksum does not match", "", size - 1)
    return flags, size


def _blocks(view: memoryview, flags: int, position: int, block_bytes: int) -> Iterator[tuple[memoryview, bool]]:
    """Yield each block of the frame, with True if the block is stored uncompressed.

    Raise CorruptBatchError if a block is too large, its checksum does not match, or the frame is cut off.
    """
    try:
        while size := (word := _WORD.unpack_from(view, position)[0]) & ~_STORED:
            position += 4
            if size > block_bytes:
                raise CorruptBatchError(
                    f"an lz4 block of {size} bytes is above the limit of {block_bytes}", "", position
                )
            block = view[position : position + size]
            position += size
            if flags & _BLOCK_CHECKSUM:
                if _WORD.unpack_from(view, position)[0] != xxh32_intdigest(block):
                    raise CorruptBatchError("an lz4 block checksum does not match", "", position)
                position += 4
            yield block, word >= _STORED
        if flags & _CONTENT_CHECKSUM:
            _WORD.unpack_from(view, position + 4)
    except StructError:
        raise CorruptBatchError("the lz4 frame is cut off", "", len(view)) from None


def _unpack(block: memoryview, room: memoryview) -> int:
    """Decompress a block into ``room``, and return the contents' size.

    Raise CorruptBatchError if the block is damaged.
    """
    # The library reads the first four bytes as the size of the contents; with ``output_len``, as contents. After a
    # failure, the library tries the other way. These arguments make the second attempt fail: the library refuses a size
    # above the room, and the size of a largest block is not the start of valid contents.
    try:
        if len(block) >= _WORD.size and _WORD.unpack_from(block)[0] > len(room):
            size: int = library.decompress_block_into(block, room, output_len=len(room))
        else:
            size = library.decompress_block_into(_WORD.pack(len(room)) + block, room)
    except DecompressionError as error:
        raise CorruptBatchError(f"bad lz4 block: {error}", "") from error
    return size


def _header_checksum(header: Buffer) -> int:
    return xxh32_intdigest(header) >> 8 & 0xFF
