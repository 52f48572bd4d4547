"""snappy, codec 2: the xerial stream that Kafka writes, and the raw block that librdkafka writes.

Source: apache/kafka SnappyCompression, over xerial's SnappyInputStream.
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar

from cramjam import DecompressionError
from cramjam import snappy as blocks

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError

_MAGIC = b"\x82SNAPPY\0"
_HEAD = _MAGIC + Struct(">ii").pack(1, 1)
_SIZE = Struct(">i")
_BLOCK_BYTES = 32_768


class SnappyCodec(Codec):
    """Blocks of 32 KiB behind a header of 16 bytes."""

    id: ClassVar[int] = 2
    levels: ClassVar[range | None] = None

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """A xerial stream."""
        del level, magic
        view, parts = memoryview(data), [_HEAD]
        for start in range(0, len(view), _BLOCK_BYTES):
            block = bytes(blocks.compress_raw(view[start : start + _BLOCK_BYTES]))
            parts += (_SIZE.pack(len(block)), block)
        return b"".join(parts)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """A xerial stream, or one raw block."""
        del magic
        raw = bytes(data)
        if not raw:
            raise CorruptBatchError("the snappy data is empty", "")
        if len(raw) < len(_HEAD) or not raw.startswith(_MAGIC):
            return memoryview(_block(raw, 0, limit_bytes))
        position, pieces, left = len(_HEAD), list[bytes](), limit_bytes
        while len(raw) - position >= _SIZE.size:  # fewer bytes at the end are ignored, as Kafka does
            if raw.startswith(_MAGIC, position):
                if len(raw) - position < len(_HEAD) or _SIZE.unpack_from(raw, position + len(_MAGIC))[0] < 1:
                    raise CorruptBatchError("bad snappy stream header", "", position)
                position += len(_HEAD)
                continue
            size = _SIZE.unpack_from(raw, position)[0]
            position += _SIZE.size
            if not 0 <= size <= len(raw) - position:
                raise CorruptBatchError(f"a snappy block of {size} bytes does not fit", "", position)
            pieces.append(_block(raw[position : position + size], position, left))
            left -= len(pieces[-1])
            position += size
        return memoryview(b"".join(pieces))


def _block(raw: bytes, position: int, limit_bytes: int) -> bytes:
    try:
        if blocks.decompress_raw_len(raw) > limit_bytes:
            raise DecompressedSizeError(f"a snappy block grows past {limit_bytes} bytes", "", position)
        return bytes(blocks.decompress_raw(raw))
    except DecompressionError as error:
        raise CorruptBatchError(f"bad snappy block: {error}", "", position) from error
