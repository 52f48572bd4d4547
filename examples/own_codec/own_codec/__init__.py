"""Example of a plugin: a codec for xz, which Kafka does not support."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from stratalog.errors import ConfigError, CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec, Provider, hookimpl

_DEFAULT_LEVEL: Final = 6
_PIECE_BYTES: Final = 1 << 16
# size of the window: batches are small, and a decoder needs little more memory than this
_WINDOW_BYTES: Final = 1 << 20
_MEMORY_BYTES: Final = 3 << 20  # memory limit of the decoder; streams that this codec made need less


class XzCodec(Codec):
    """Codec for xz streams with a checksum of their contents.

    Kafka's codec ids end at 4, so Kafka cannot read batches with this codec.
    """

    id: ClassVar[int] = 7
    levels: ClassVar[range | None] = range(10)

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Compress to one stream.

        Raises:
            ConfigError: the level is outside ``levels``.
        """
        del magic
        if level is not None and level not in range(10):
            raise ConfigError(f"xz has levels from 0 to 9 level={level}")
        preset = _DEFAULT_LEVEL if level is None else level
        filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": _WINDOW_BYTES}]
        return lzma.compress(bytes(data), lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents of all streams.

        The streams are decompressed twice: first to compute the size, then into memory of this size.

        Raises:
            DecompressedSizeError: the contents are larger than ``limit_bytes``.
            CorruptBatchError: the bytes are not xz streams, or are damaged or cut off.
        """
        del magic
        compressed, size = bytes(data), 0
        for piece in _pieces(compressed):
            size += len(piece)
            if size > limit_bytes:
                raise DecompressedSizeError(f"the batch decompresses to more than {limit_bytes} bytes", "", 0)
        output, position = bytearray(size), 0
        for piece in _pieces(compressed):
            output[position : position + len(piece)] = piece
            position += len(piece)
        return memoryview(output)


def _pieces(compressed: bytes) -> Iterator[bytes]:
    """Yield the contents of all streams, in pieces of at most 64 KiB.

    Raises:
        CorruptBatchError: the bytes are not xz streams, or are damaged or cut off.
    """
    remaining, is_first = compressed, True
    try:
        while remaining or is_first:
            stream, is_first = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY_BYTES), False
            while not stream.eof:
                yield stream.decompress(remaining, _PIECE_BYTES)
                remaining = b""  # the decoder has stored these bytes
                if stream.needs_input and not stream.eof:
                    raise CorruptBatchError("the xz stream is cut off", "", 0)
            remaining = stream.unused_data
    except lzma.LZMAError as error:
        raise CorruptBatchError(f"xz refuses the batch: {error}", "", 0) from error


@hookimpl
def stratalog_codecs() -> Iterable[Provider[Codec]]:
    """Return the provider of the codec ``xz``."""
    return [Provider(name="xz", open=lambda _: XzCodec(), capabilities=("a checksum of the contents",))]
