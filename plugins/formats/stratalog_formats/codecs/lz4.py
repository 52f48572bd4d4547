"""lz4, codec 3: one LZ4 frame of independent blocks; V0 with its own broken header checksum.

What Kafka wrote for magic 0 hashes the frame's magic bytes too (KAFKA-3160), and what it reads of magic 0 it does not
check; libraries refuse such frames, so the header is made anew before decoding.

Source: apache/kafka Lz4BlockInputStream, Lz4BlockOutputStream.
"""

from __future__ import annotations

from typing import ClassVar, Final

import lz4.frame

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_MAGIC: Final = b"\x04\x22\x4d\x18"
_VERSION, _INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x40, 0x20, 0x10, 0x08, 0x04
_BLOCK_SIZES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_FAST_LEVEL: Final = 9  # Kafka's default level selects its fast compressor, any other the high compression one
_STORED: Final = 1 << 31
_END_MARK: Final = bytes(4)
_MAX_RATIO: Final = 256  # a byte of a match's length stands for 255 bytes


class Lz4Codec(Codec):
    """Frames with blocks of 64 KiB, no checksums but the header's."""

    id: ClassVar[int] = 3
    levels: ClassVar[range | None] = range(1, 18)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """One frame."""
        wanted = 0 if level in {None, _FAST_LEVEL} else level
        frame = bytearray(
            lz4.frame.compress(
                data,
                compression_level=wanted,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
        )
        if magic == 0:
            frame[6] = _header_checksum(bytes(frame[:6]))
        return bytes(frame)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """The first frame; what follows it is ignored, as Kafka does."""
        raw = bytes(data)
        flags, header_bytes = _checked_header(raw, magic)
        end, most_bytes = _blocks_end(raw, flags, header_bytes)
        frame = _plain_header(flags, raw[5]) + raw[header_bytes:end] + _END_MARK
        unpacker = lz4.frame.LZ4FrameDecompressor()  # it allocates all that it may return before it begins
        try:
            found: bytes = unpacker.decompress(frame, max_length=min(limit_bytes, most_bytes) + 1)
        except RuntimeError as error:
            raise CorruptBatchError(f"bad lz4 data: {error}", "") from error
        if len(found) > limit_bytes:
            raise DecompressedSizeError(f"lz4 data grows past {limit_bytes} bytes", "")
        if not unpacker.eof:
            raise CorruptBatchError("the lz4 frame does not end", "", len(raw))
        return memoryview(found)


def _checked_header(raw: bytes, magic: int) -> tuple[int, int]:
    """Flags and size of the frame header; magic 0 does not check its checksum."""
    if len(raw) < 7 or raw[:4] != _MAGIC:
        raise CorruptBatchError("no lz4 frame", "")
    flags, descriptor = raw[4], raw[5]
    if flags & 0xC0 != _VERSION or flags & 0x03:
        raise CorruptBatchError(f"lz4 flags {flags:#04x} are not supported", "", 4)
    if not flags & _INDEPENDENT:
        raise CorruptBatchError("lz4 blocks that depend on each other are not supported", "", 4)
    if descriptor & 0x8F or descriptor >> 4 not in _BLOCK_SIZES:
        raise CorruptBatchError(f"lz4 block descriptor {descriptor:#04x} is not supported", "", 5)
    size = 15 if flags & _CONTENT_SIZE else 7
    if len(raw) < size:
        raise CorruptBatchError("the lz4 header is cut off", "", len(raw))
    if magic and raw[size - 1] != _header_checksum(raw[4 : size - 1]):
        raise CorruptBatchError("the lz4 header checksum does not match", "", size - 1)
    return flags, size


def _plain_header(flags: int, descriptor: int) -> bytes:
    """A header with the right checksum, without content size and content checksum, which Kafka does not verify."""
    head = bytes((flags & ~(_CONTENT_SIZE | _CONTENT_CHECKSUM), descriptor))
    return _MAGIC + head + bytes((_header_checksum(head),))


def _blocks_end(raw: bytes, flags: int, position: int) -> tuple[int, int]:
    """Where the end mark stands, and how many bytes the blocks may hold; their contents are not looked at."""
    limit, most_bytes = _BLOCK_SIZES[raw[5] >> 4], 0
    while True:
        if position + 4 > len(raw):
            raise CorruptBatchError("the lz4 frame does not end", "", len(raw))
        word = int.from_bytes(raw[position : position + 4], "little")
        size = word & ~_STORED
        if size == 0:
            break
        if size > limit:
            raise CorruptBatchError(f"an lz4 block of {size} bytes is above {limit}", "", position)
        most_bytes += size if word & _STORED else min(limit, size * _MAX_RATIO)
        position += 4 + size + (4 if flags & _BLOCK_CHECKSUM else 0)
    if position + (8 if flags & _CONTENT_CHECKSUM else 4) > len(raw):
        raise CorruptBatchError("the lz4 frame is cut off", "", len(raw))
    return position, most_bytes


def _header_checksum(header: bytes) -> int:
    return _xxh32(header) >> 8 & 0xFF


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: all that a frame header needs."""
    mask = 0xFFFFFFFF
    value = (374761393 + len(data)) & mask
    words = len(data) // 4 * 4
    for start in range(0, words, 4):
        value = (value + int.from_bytes(data[start : start + 4], "little") * 3266489917) & mask
        value = ((value << 17 | value >> 15) & mask) * 668265263 & mask
    for byte in data[words:]:
        value = (value + byte * 374761393) & mask
        value = ((value << 11 | value >> 21) & mask) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16
