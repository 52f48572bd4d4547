"""Bytes on their way up: sources cut into parts of one size, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.spi import Buffer, ByteSource, StoreError

CHUNK_BYTES: Final = 1 << 20
PART_BYTES: Final = 16 << 20
MAX_PARTS: Final = 10_000  # S3's bound


def part_bytes(size_bytes: int) -> int:
    """How large the parts of an upload are: 16 MiB, or more where that would make too many of them."""
    return max(PART_BYTES, -(-size_bytes // MAX_PARTS))


def counted(source: ByteSource, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Buffer]:
    """The chunks of a source.

    Raises:
        StoreError: it gave more or fewer bytes than it said; the upload must not become visible.
    """
    seen = 0
    for chunk in source.chunks(chunk_bytes):
        seen += len(chunk)
        if seen > source.size_bytes:
            break
        yield chunk
    if seen != source.size_bytes:
        raise StoreError(f"the source said {source.size_bytes} bytes and gave {seen}", key)


def whole(source: ByteSource, key: str) -> bytes:
    """All bytes of a small source; errors as ``counted``."""
    return b"".join(counted(source, key))


def parts(source: ByteSource, key: str, size_bytes: int) -> Iterator[bytes]:
    """The bytes of a source in parts of exactly ``size_bytes``, the last one shorter; errors as ``counted``.

    Equal parts, because some stores that speak S3's protocol refuse others.
    """
    pending = bytearray()
    for chunk in counted(source, key):
        pending += chunk
        while len(pending) > size_bytes:
            yield bytes(memoryview(pending)[:size_bytes])
            del pending[:size_bytes]
    yield bytes(pending)
