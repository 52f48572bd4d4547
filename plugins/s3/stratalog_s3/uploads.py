"""Bytes of uploads: the check of a source's size, and the split into the parts of a multipart upload."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

from stratalog.errors import StoreError
from stratalog.spi import Buffer, ByteSource

CHUNK_BYTES: Final = 1 << 20
PART_BYTES: Final = 16 << 20  # default
MAX_PARTS: Final = 10_000  # S3's limit


def part_bytes(size_bytes: int, least_bytes: int = PART_BYTES) -> int:
    """Return the part size of an upload: ``least_bytes``, or more if 10,000 such parts are not sufficient."""
    return max(least_bytes, -(-size_bytes // MAX_PARTS))


def counted_chunks(source: ByteSource, key: str) -> Iterator[Buffer]:
    """Yield the chunks of a source. Raise StoreError if it has more or fewer bytes than ``size_bytes``.

    The caller must then discard the upload.
    """
    read_bytes = 0
    for chunk in source.chunks(CHUNK_BYTES):
        read_bytes += len(chunk)
        if read_bytes > source.size_bytes:
            break
        yield chunk
    if read_bytes != source.size_bytes:
        raise StoreError(f"the source announced {source.size_bytes} bytes, but had {read_bytes}", key)


def parts(source: ByteSource, key: str, size_bytes: int) -> Iterator[io.BytesIO]:
    """Yield the bytes of a source in parts of ``size_bytes``. Raises the errors of ``counted_chunks``.

    Only the last part may be smaller, because some S3-compatible stores refuse unequal parts.
    """
    remaining_bytes = source.size_bytes
    part = _new_buffer(min(size_bytes, remaining_bytes))
    for chunk in counted_chunks(source, key):
        view = memoryview(chunk)
        while len(view) >= (room := size_bytes - part.tell()) and remaining_bytes > room:
            part.write(view[:room])
            view, remaining_bytes = view[room:], remaining_bytes - room
            yield _rewind(part)
            part = _new_buffer(min(size_bytes, remaining_bytes))
        remaining_bytes -= part.write(view)
    yield _rewind(part)


def one_part(source: ByteSource, key: str) -> io.BytesIO:
    """Return all bytes of a source in one buffer. Raises the errors of ``counted_chunks``."""
    return next(parts(source, key, max(1, source.size_bytes)))


def _new_buffer(size_bytes: int) -> io.BytesIO:
    """Return a buffer of ``size_bytes`` zero bytes.

    Writes from its start replace the zeros, and the buffer does not grow.
    """
    buffer = io.BytesIO()
    if size_bytes:
        buffer.seek(size_bytes - 1)
        buffer.write(b"\0")
    return _rewind(buffer)


def _rewind(part: io.BytesIO) -> io.BytesIO:
    part.seek(0)
    return part
