"""Hostile compressed streams by name, each from a few bytes to 1 MiB."""

from __future__ import annotations

import gzip
import zlib
from struct import Struct

import cramjam
import lz4.block
import zstandard
from xxhash import xxh32_intdigest

MIB = 1 << 20
INT32, LITTLE_32, LITTLE_64 = Struct(">i"), Struct("<I"), Struct("<Q")
MANY = 40_000
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
WINDOW_OF_128_MIB = b"\x88"


def gzip_streams() -> dict[str, bytes]:
    """Return gzip streams with wrong sizes, very many members, or headers that the fast path does not support."""
    zeros = gzip.compress(bytes(40 * MIB), 9)
    commented = zeros[:3] + b"\x10" + zeros[4:10] + b"comment\0" + zeros[10:]
    return {
        "a size far above the contents": gzip.compress(b"x" * 1000)[:-4] + LITTLE_32.pack(30 * MIB),
        "a size behind the end": gzip.compress(bytes(MIB)) + LITTLE_32.pack(30 * MIB),
        "a bomb that zlib reads": commented,
        "two bombs": gzip.compress(bytes(20 * MIB)) * 2,
        "empty members": gzip.compress(b"") * MANY,
        "members of a byte": gzip.compress(b"a") * MANY,
        "starts of members": gzip.compress(b"") + b"\x1f\x8b\x08" * MANY,
        "a name without end": b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * MIB,
    }


def snappy_streams() -> dict[str, bytes]:
    """Return snappy streams with impossible block sizes, and streams of many nearly empty blocks."""
    head = b"\x82SNAPPY\0" + INT32.pack(1) * 2
    block = bytes(cramjam.snappy.compress_raw(bytes(40 * MIB)))
    return {
        "1 GiB in 1 KiB": b"\x80\x80\x80\x80\x04" + bytes(1000),
        "1 GiB in a block of a stream": head + INT32.pack(1005) + b"\x80\x80\x80\x80\x04" + bytes(1000),
        "a size that might be": b"\x80\x80\x80\x08" + bytes(MIB),
        "a raw bomb": block,
        "a bomb in one block": head + INT32.pack(len(block)) + block,
        "empty blocks": head + (INT32.pack(1) + b"\0") * MANY,
        "headers": head * MANY,
        "a block without end": head + INT32.pack(0x7FFFFFFF),
    }


def lz4_frame(blocks: list[tuple[bytes, bool]], size_code: int = 4) -> bytes:
    """Return an LZ4 frame of these blocks: pairs of bytes, and True if the bytes are stored uncompressed."""
    descriptor = bytes((0x60, size_code << 4))
    checksum = bytes((xxh32_intdigest(descriptor) >> 8 & 0xFF,))
    parts = [LITTLE_32.pack(len(data) | is_uncompressed << 31) + data for data, is_uncompressed in blocks]
    return b"\x04\x22\x4d\x18" + descriptor + checksum + b"".join(parts) + bytes(4)


def lz4_streams() -> dict[str, bytes]:
    """Return LZ4 streams whose blocks could be far larger than they are, and streams of nearly empty blocks."""
    full = {code: lz4.block.compress(bytes(1 << 8 + 2 * code), store_size=False) for code in (4, 7)}
    return {
        "a bomb of large blocks": lz4_frame([(full[7], False)] * 10, 7),
        "a bomb of small blocks": lz4_frame([(full[4], False)] * 640),
        "a large block": lz4_frame([(full[7], False)], 7),
        "empty blocks that could be large": lz4_frame([(b"\0", False)] * MANY, 7),
        "empty blocks": lz4_frame([(b"\0", False)] * MANY),
        "stored blocks of a byte": lz4_frame([(b"a", True)] * MANY, 7),
        "damaged large blocks": lz4_frame([(b"\xff" * 70_000, False)] * 4, 7),
        "a size in front of a block": lz4_frame([(LITTLE_32.pack(100) + lz4.block.compress(bytes(100))[4:], False)]),
    }


def zstd_frame(blocks: bytes, size: int | None = None) -> bytes:
    """Return a Zstandard frame with a window of 128 MiB. Its header has the content size unless ``size`` is None."""
    if size is None:
        return ZSTD_MAGIC + b"\0" + WINDOW_OF_128_MIB + blocks
    return ZSTD_MAGIC + b"\xc0" + WINDOW_OF_128_MIB + LITTLE_64.pack(size) + blocks


def zstd_streams() -> dict[str, bytes]:
    """Return Zstandard streams with wrong sizes, needlessly large windows, or tiny frames and blocks."""
    run, last_run = ((LITTLE_32.pack(1 << 20 | 2 | last)[:3] + b"a") for last in (0, 1))  # 128 KiB of one letter
    runs = run * 319 + last_run  # 40 MiB
    nothing = b"\1\0\0"
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(40 * MIB))
    return {
        "1 GiB in nothing": zstd_frame(nothing, 1 << 30),
        "2 to the 62": zstd_frame(runs, 1 << 62),
        "a size a little too small": zstd_frame(runs, 40 * MIB - 1),
        "no size and a large window": zstd_frame(runs),
        "two without size and with a large window": zstd_frame(runs) * 2,
        "no size and a small window": unknown,
        "a size of 0": zstd_frame(runs, 0),
        "empty frames": zstd_frame(nothing) * MANY,
        "empty blocks": zstd_frame(bytes(3) * MANY + nothing),
        "frames of a byte": (ZSTD_MAGIC + b"\x20\x01\x09\0\0a") * MANY,
        "frames to skip": (b"\x50\x2a\x4d\x18" + bytes(4)) * MANY,
        "a frame to skip without end": b"\x50\x2a\x4d\x18" + b"\xff" * 8,
    }


def gzip_with_every_part(data: bytes, *, reserved: int = 0) -> tuple[bytes, bytes, bytes]:
    """Return a gzip member of ``data`` in three parts.

    The parts are the header with extra field, name and comment; the checksum of the header; and the rest.
    """
    member = gzip.compress(data)
    head = member[:3] + bytes((0x1E | reserved,)) + member[4:10] + b"\x03\0abc" + b"name\0" + b"comment\0"
    return head, (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little"), member[10:]
