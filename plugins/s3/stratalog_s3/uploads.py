"""Bytes of uploads: the check of a source's size, and the split into parts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

from stratalog.errors import StoreError
from stratalog.spi import Buffer, ByteSource

CHUNK_BYTES: Final = 1 << 20
PART_BYTES: Final = 16 << 20  # default
MAX_PARTS: Final = 10_000  # S3's limit


def part_bytes(size_bytes: int, wanted_bytes: int = PART_BYTES) -> int:
    """Return the part size of an upload: ``wanted_bytes``, or more if the upload would have more than 10,000 parts."""
    return max(wanted_bytes, -(-size_bytes // MAX_PARTS))


def counted(source: ByteSource, key: str) -> Iterator[Buffer]:
    """Yield the chunks of a source.

    Raises:
        StoreError: the source has more or fewer bytes than ``size_bytes``. The caller must discard the upload.
    """
    seen = 0
    for chunk in source.chunks(CHUNK_BYTES):
        seen += len(chunk)
        if seen > source.size_bytes:
            break
        yield chunk
    if seen != source.size_bytes:
        raise StoreError(f"the source announced {source.size_bytes} bytes, but had {seen}", key)


def parts(source: ByteSource, key: str, size_bytes: int) -> Iterator[io.BytesIO]:
    """Yield the bytes of a source in parts of ``size_bytes``; raise the errors of ``counted``.

    Only the last part may be smaller, because some S3-compatible stores refuse unequal parts.
    """
    left_bytes = source.size_bytes
    part = _room(min(size_bytes, left_bytes))
    for chunk in counted(source, key):
        view = memoryview(chunk)
        while len(view) >= (room := size_bytes - part.tell()) and left_bytes > room:
            part.write(view[:room])
            view, left_bytes = view[room:], left_bytes - room
            yield _rewound(part)
            part = _room(min(size_bytes, left_bytes))
        left_bytes -= part.write(view)
    yield _rewound(part)


def one_part(source: ByteSource, key: str) -> io.BytesIO:
    """Return all bytes of a source in one buffer; raise the errors of ``counted``."""
    return next(parts(source, key, max(1, source.size_bytes)))


def _room(size_bytes: int) -> io.BytesIO:
    """Return a buffer of ``size_bytes`` zero bytes, to be overwritten from the start without growth."""
    made = io.BytesIO()
    if size_bytes:
        made.seek(size_bytes - 1)
        made.write(b"\0")
    return _rewound(made)


def _rewound(part: io.BytesIO) -> io.BytesIO:
    part.seek(0)
    return part
