"""Calls of each codec of stratalog, compared with calls of the codec's library, on the same bytes at the same level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Final

import cramjam
import deflate
import lz4.frame
import zstandard

from codec_parts.formats import CODECS, LIMIT_BYTES, NAME
from codec_parts.workloads import Shape, make
from harness import Bound, Case, LocalSide, WrongOutcomeError
from stratalog.spi import Codec

_HEADER_BYTES: Final = 61
_AT_LEAST: Final = 0.95
_SNAPPY_BLOCK_BYTES: Final = 1 << 15
_SNAPPY_HEAD_BYTES: Final = 16
_SIZE: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class Library:
    """The library that a codec calls.

    Attributes:
        name: name of the side.
        compress: compresses the bytes of a batch in one call.
        decompress: decompresses the output of stratalog's codec in one call; returns the number of bytes.
    """

    name: str
    compress: Callable[[bytes], object]
    decompress: Callable[[bytes], int]


def _snappy_blocks(compressed: bytes) -> Sequence[bytes]:
    blocks, position = [], _SNAPPY_HEAD_BYTES
    while position < len(compressed):
        size = _SIZE.unpack_from(compressed, position)[0]
        position += _SIZE.size
        blocks.append(compressed[position : position + size])
        position += size
    return blocks


def _snappy_compress(data: bytes) -> object:
    return [cramjam.snappy.compress_raw(block) for block in _cut(data)]


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _SNAPPY_BLOCK_BYTES] for start in range(0, len(data), _SNAPPY_BLOCK_BYTES))


LIBRARIES: Final = {
    "gzip": Library(
        "deflate", partial(deflate.gzip_compress, compresslevel=6), lambda packed: len(deflate.gzip_decompress(packed))
    ),
    "snappy": Library(
        "cramjam",
        _snappy_compress,
        lambda packed: sum(len(cramjam.snappy.decompress_raw(b)) for b in _snappy_blocks(packed)),
    ),
    "lz4": Library(
        "lz4",
        partial(lz4.frame.compress, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False),
        lambda packed: len(lz4.frame.decompress(packed)),
    ),
    "zstd": Library(
        "zstandard",
        lambda data: zstandard.ZstdCompressor(level=3).compress(data),
        lambda packed: len(zstandard.ZstdDecompressor().decompress(packed, max_output_size=LIMIT_BYTES)),
    ),
}


def library_cases(shapes: Sequence[Shape]) -> Iterator[Case]:
    """Yield cases that compress and decompress the records of one batch, for each shape and each codec."""
    for shape in shapes:
        body = make(shape, quick=True).data
        body = body[_HEADER_BYTES : 12 + int.from_bytes(body[8:12], "big")]
        for name, codec in CODECS.items():
            yield _compress_case(name, codec, body, shape)
            yield _decompress_case(name, codec, body, shape)


def library_bounds(shape: Shape) -> list[Bound]:
    """Return the bounds: the required speed of each codec, relative to its library."""
    return [
        Bound("each codec, whole path", f"{verb}/{name}/{shape.name}", NAME, LIBRARIES[name].name, _AT_LEAST)
        for name in CODECS
        for verb in ("compress", "decompress")
    ]


def _compress_case(name: str, codec: Codec, body: bytes, shape: Shape) -> Case:
    library = LIBRARIES[name]
    compress = partial(codec.compress, body, level=None, magic=2)

    def check() -> None:
        if library.decompress(compress()) != len(body):
            raise WrongOutcomeError(f"{name}: the library does not read what the codec writes")

    sides = (
        LocalSide(NAME, compress, check),
        LocalSide(library.name, partial(library.compress, body), lambda: None),
    )
    title = f"compress one batch with {name}, {shape.title.rpartition(',')[0]}"
    return Case(f"compress/{name}/{shape.name}", title, sides, 0, len(body))


def _decompress_case(name: str, codec: Codec, body: bytes, shape: Shape) -> Case:
    library, compressed = LIBRARIES[name], bytes(codec.compress(body, level=None, magic=2))
    decompress = partial(codec.decompress, compressed, limit_bytes=LIMIT_BYTES, magic=2)

    def check() -> None:
        if bytes(decompress()) != body:
            raise WrongOutcomeError(f"{name}: the codec does not read what it wrote")

    def check_library() -> None:
        if library.decompress(compressed) != len(body):
            raise WrongOutcomeError(f"{name}: the library does not read what the codec writes")

    sides = (
        LocalSide(NAME, decompress, check),
        LocalSide(library.name, partial(library.decompress, compressed), check_library),
    )
    title = f"decompress one batch with {name}, {shape.title.rpartition(',')[0]}"
    return Case(f"decompress/{name}/{shape.name}", title, sides, 0, len(body))
