"""zstd, codec 4: frames behind each other, none in V0 and V1.

Source: apache/kafka ZstdCompression, over zstd-jni's streams (window limit 128 MiB).
"""

from __future__ import annotations

from typing import ClassVar, Final

import zstandard

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_WINDOW_LIMIT_BYTES: Final = 1 << 27
_HEADER_BYTES: Final = 18  # the largest frame header
_RUN_BLOCK: Final = 1  # one byte, repeated
_COMPRESSED_BLOCK: Final = 2
_BLOCK_BYTES: Final = 1 << 17  # the most that a block holds
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # behind a byte of 0x50 to 0x5f
_SKIPPABLE_LOW: Final = 0x5


class ZstdCodec(Codec):
    """Standard frames, written without content size, as a stream writer does."""

    id: ClassVar[int] = 4
    levels: ClassVar[range | None] = range(-131072, 23)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """One frame."""
        del magic
        packer = zstandard.ZstdCompressor(level=3 if level is None else level, write_content_size=False)
        return packer.compress(data)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """All frames behind each other."""
        del magic
        view = memoryview(data)
        if not view:
            raise CorruptBatchError("the zstd data is empty", "")
        raw = bytes(view)
        most_bytes = _check_frames(raw)
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        try:
            with unpacker.stream_reader(raw, read_across_frames=True) as reader:
                found: bytes = reader.read(min(limit_bytes, most_bytes) + 1)  # allocated before it begins
        except zstandard.ZstdError as error:
            raise CorruptBatchError(f"bad zstd data: {error}", "") from error
        if len(found) > limit_bytes:
            raise DecompressedSizeError(f"zstd data grows past {limit_bytes} bytes", "")
        return memoryview(found)


def _check_frames(raw: bytes) -> int:
    """How many bytes ``raw`` may hold; it must be whole frames and nothing else, which the library does not tell.

    Only headers of frames and blocks are looked at (RFC 8878, 3.1.1).
    """
    position = most_bytes = 0
    while position < len(raw):
        if raw[position + 1 : position + 4] == _SKIPPABLE and raw[position] >> 4 == _SKIPPABLE_LOW:
            position += 8 + int.from_bytes(raw[position + 4 : position + 8], "little")
        else:
            position, frame_bytes = _frame_end(raw, position)
            most_bytes += frame_bytes
        if position > len(raw):
            raise CorruptBatchError("the zstd data is cut off", "", len(raw))
    return most_bytes


def _frame_end(raw: bytes, start: int) -> tuple[int, int]:
    """Where the frame at ``start`` ends (past ``raw`` if it is cut off), and how many bytes it may hold."""
    head = raw[start : start + _HEADER_BYTES]
    try:
        parameters = zstandard.get_frame_parameters(head)
        position = start + zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"bad zstd frame: {error}", "", start) from error
    if parameters.window_size > _WINDOW_LIMIT_BYTES:
        raise CorruptBatchError(f"the zstd frame needs a window of {parameters.window_size} bytes", "", start)
    last = most_bytes = 0
    while not last:
        if position + 3 > len(raw):
            return len(raw) + 1, most_bytes
        block = int.from_bytes(raw[position : position + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        most_bytes += _BLOCK_BYTES if kind == _COMPRESSED_BLOCK else size
        position += 3 + (1 if kind == _RUN_BLOCK else size)
    return position + (4 if parameters.has_checksum else 0), most_bytes
