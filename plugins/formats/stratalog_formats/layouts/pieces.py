"""What layouts share: exact reads of slices, small files with their hashes, and the log hashed on its way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from stratalog.spi import (
    ByteSource,
    ConfigError,
    CorruptObjectError,
    FileKind,
    ObjectSlice,
    RangeReader,
    SegmentSource,
    StoredSegment,
)

SMALL_FILES: Final = tuple(kind for kind in FileKind if kind is not FileKind.LOG)  # in this order in objects
FILE_HASHES: Final = "sha256"  # in ``extra``: hashes of the small files, by kind


class LogBody(ByteSource, Protocol):
    """The log as a layout stores it, with what its bytes were before."""

    @property
    def sha256(self) -> str:
        """Of the original ``.log`` file; UNKNOWN_SHA256 before the first complete pass."""


def cut(source: ByteSource, chunk_bytes: int) -> Iterator[bytes]:
    """The bytes of a source in chunks of exactly this size, the last one shorter; none of no bytes."""
    pending = bytearray()
    for part in source.chunks(chunk_bytes):
        pending += part
        while len(pending) >= chunk_bytes:
            yield bytes(memoryview(pending)[:chunk_bytes])
            del pending[:chunk_bytes]
    if pending:
        yield bytes(pending)


def small_files(source: SegmentSource) -> list[tuple[FileKind, bytes]]:
    """The small files that a segment has, in the order in which they are stored."""
    return [(kind, source.files[kind]) for kind in SMALL_FILES if kind in source.files]


def file_hashes(files: Iterable[tuple[FileKind, bytes]]) -> dict[str, str]:
    """Hashes of small files, as ``extra`` holds them."""
    return {str(kind): hashlib.sha256(data).hexdigest() for kind, data in files}


def place_of(segment: StoredSegment, kind: FileKind) -> ObjectSlice:
    """Where a file is.

    Raises:
        CorruptObjectError: the entry does not say.
    """
    place = segment.slices.get(kind)
    if place is None:
        raise CorruptObjectError(f"the entry of offset {segment.info.base_offset} has no {kind} file", "manifest")
    return place


def check_range(start: int, end: int, size_bytes: int, key: str) -> None:
    """Refuse a range that is not inside a log of ``size_bytes``: ConfigError."""
    if not 0 <= start <= end <= size_bytes:
        raise ConfigError(f"bytes [{start}, {end}) are not inside the {size_bytes} of key={key}")


def exactly(fetch: RangeReader, place: ObjectSlice, start: int, end: int) -> bytes:
    """Bytes [start, end) of a slice; an empty range costs no request.

    Raises:
        CorruptObjectError: another number of bytes came.
    """
    return bytes(seen_exactly(fetch, place, start, end))


def seen_exactly(fetch: RangeReader, place: ObjectSlice, start: int, end: int) -> bytes | memoryview:
    """The same without a copy, where the reader gives a view."""
    if start == end:
        return b""
    data = fetch(place.key, place.position + start, place.position + end)
    if len(data) != end - start:
        raise CorruptObjectError(f"asked for {end - start} bytes, got {len(data)}", place.key, place.position + start)
    return data


def read_as_is(
    segment: StoredSegment, start: int, end: int, piece_bytes: int, fetch: RangeReader
) -> Iterator[memoryview]:
    """Bytes [start, end) of a ``.log`` file that is stored as it is, one request for each ``piece_bytes``.

    If that is the whole file its hash is checked, and the last piece is held back until it is right.

    Raises:
        ConfigError: the range is not inside the file.
        CorruptObjectError: the store sent another number of bytes, the hash is wrong, or the entry contradicts itself.
    """
    place = place_of(segment, FileKind.LOG)
    if place.size_bytes != segment.info.size_bytes:
        raise CorruptObjectError(
            f"the entry stores {place.size_bytes} bytes of a log of {segment.info.size_bytes}", place.key
        )
    check_range(start, end, place.size_bytes, place.key)
    pieces = (
        memoryview(seen_exactly(fetch, place, first, min(end, first + piece_bytes)))
        for first in range(start, end, piece_bytes)
    )
    return hashed_pieces(pieces, segment, start, end, place)


def hashed_pieces(
    pieces: Iterator[memoryview], segment: StoredSegment, start: int, end: int, place: ObjectSlice
) -> Iterator[memoryview]:
    """Pass on the pieces of a range; if it is the whole log, the last one only when the hash is right.

    Raises:
        CorruptObjectError: it is not.
    """
    if end - start != segment.info.size_bytes:
        yield from pieces
        return
    digest, position = hashlib.sha256(), start
    for piece in pieces:
        digest.update(piece)
        position += len(piece)
        if position >= end and digest.hexdigest() != segment.sha256:
            raise CorruptObjectError("the log's hash is wrong", place.key, place.position)
        yield piece


def read_small(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    """A small file that is stored as it is, checked by its hash; None if the segment has none of this kind.

    Raises:
        CorruptObjectError: the store sent another number of bytes, or the hash is wrong.
    """
    place = segment.slices.get(kind)
    if place is None:
        return None
    data = exactly(fetch, place, 0, place.size_bytes)
    hashes = segment.extra.get(FILE_HASHES)
    expected = hashes.get(kind) if isinstance(hashes, Mapping) else None
    if expected != hashlib.sha256(data).hexdigest():
        raise CorruptObjectError(f"the hash of the {kind} file is wrong", place.key, place.position)
    return data
