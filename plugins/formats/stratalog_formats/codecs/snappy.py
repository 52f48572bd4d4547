"""snappy, codec 2: xerial streams, which Kafka writes, and raw blocks, which librdkafka writes.

Source: apache/kafka SnappyCompression, over xerial's SnappyInputStream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from struct import Struct
from typing import ClassVar, Final

from cramjam import DecompressionError
from cramjam import snappy as library

from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec
from stratalog_formats.codecs.repeatable import repeatable
from stratalog_formats.kernels.dispatch import KERNELS

_MAGIC: Final = b"\x82SNAPPY\0"
_HEAD: Final = _MAGIC + Struct(">ii").pack(1, 1)
_SIZE: Final = Struct(">i")
_MAGIC_AS_SIZE: Final[int] = _SIZE.unpack_from(_MAGIC)[0]
_BLOCK_BYTES: Final = 32_768
_MAX_RATIO: Final = 22  # three bytes copy at most 64 bytes


class SnappyCodec(Codec):
    """Codec for snappy. It writes xerial streams: a header of 16 bytes, then blocks of 32 KiB."""

    id: ClassVar[int] = 2
    levels: ClassVar[range | None] = None

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Return ``data`` compressed to a xerial stream."""
        del level, magic
        view = memoryview(data)
        parts: list[Buffer] = [_HEAD]
        for start in range(0, len(view), _BLOCK_BYTES):
            block = library.compress_raw(view[start : start + _BLOCK_BYTES])
            parts += (_SIZE.pack(len(block)), memoryview(block))
        return b"".join(parts)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents of a xerial stream. Data without xerial's header is decompressed as one raw block."""
        del magic
        view = memoryview(data)
        if not view:
            raise CorruptBatchError("the snappy data is empty", "")
        is_stream = len(view) >= len(_HEAD) and view[: len(_MAGIC)].tobytes() == _MAGIC
        blocks: Iterable[memoryview] = repeatable(partial(_blocks, view)) if is_stream else (view,)
        total = start = 0
        try:
            for block in blocks:
                size: int = library.decompress_raw_len(block)
                total += size
                if size > len(block) * _MAX_RATIO:
                    raise CorruptBatchError(f"a snappy block of {len(block)} bytes cannot hold {size}", "")
                if total > limit_bytes:
                    raise DecompressedSizeError(f"snappy data grows past {limit_bytes} bytes", "")
            contents = memoryview(KERNELS.room(total))
            for block in blocks:
                start += library.decompress_raw_into(block, contents[start:])
        except DecompressionError as error:
            raise CorruptBatchError(f"bad snappy block: {error}", "") from error
        return contents.toreadonly()


def _blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the compressed blocks of a xerial stream. As in Kafka, up to 3 bytes after the last block are ignored.

    Raise CorruptBatchError if a block does not fit the stream, or the header of a further stream is damaged.
    """
    position, end = len(_HEAD), len(view)
    while end - position >= _SIZE.size:
        size: int = _SIZE.unpack_from(view, position)[0]
        position += _SIZE.size
        if 0 <= size <= end - position:
            yield view[position : position + size]
            position += size
        elif size == _MAGIC_AS_SIZE:
            position = _next_header_end(view, position - _SIZE.size)
        else:
            raise CorruptBatchError(f"a snappy block of {size} bytes ends after the data", "", position)


def _next_header_end(view: memoryview, position: int) -> int:
    """Return the end of the header of a further stream. Raise CorruptBatchError if the header is damaged.

    As in Kafka, the version is checked in this header, but not in the header of the first stream.
    """
    head = view[position : position + len(_HEAD)]
    if len(head) < len(_HEAD) or head[: len(_MAGIC)].tobytes() != _MAGIC or _SIZE.unpack_from(head, len(_MAGIC))[0] < 1:
        raise CorruptBatchError("bad snappy stream header", "", position)
    return position + len(_HEAD)
