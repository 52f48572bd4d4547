"""Common parts of the layouts: reads of slices, small files, checks of hashes, and a cache."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from stratalog.errors import ConfigError, CorruptObjectError
from stratalog.spi import ByteSource, FileKind, ObjectSlice, RangeReader, SegmentSource, StoredSegment, TierLayout

# the order is that of the files in an object
SMALL_FILES: Final = tuple(kind for kind in FileKind if kind is not FileKind.LOG)
FILE_HASHES: Final = "sha256"  # key in ``extra``: hashes of the small files, by kind
_TRAILER: Final = struct.Struct(">Q8s")
T = TypeVar("T")


class LogBody(ByteSource, Protocol):
    """Byte source of a log in its stored form (for example compressed), with the hash of the original log."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the original ``.log`` file, in hex; ``HashedLog.UNKNOWN_SHA256`` until all bytes were read."""


def cut(source: ByteSource, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a source in chunks of exactly ``chunk_bytes``. The last chunk may be smaller.

    An empty source has no chunk.
    """
    pending = bytearray()
    for part in source.chunks(chunk_bytes):
        pending += part
        while len(pending) >= chunk_bytes:
            yield bytes(memoryview(pending)[:chunk_bytes])
            del pending[:chunk_bytes]
    if pending:
        yield bytes(pending)


def small_files(source: SegmentSource) -> list[tuple[FileKind, bytes]]:
    """Return the small files of a segment (all except the log), in their order in an object."""
    return [(kind, source.files[kind]) for kind in SMALL_FILES if kind in source.files]


def file_hashes(files: Iterable[tuple[FileKind, bytes]]) -> dict[str, str]:
    """Return the SHA-256 (in hex) of each file by its kind, for ``extra`` of the manifest entry."""
    return {str(kind): hashlib.sha256(data).hexdigest() for kind, data in files}


def place_of(segment: StoredSegment, kind: FileKind) -> ObjectSlice:
    """Return the object slice that contains a file of the segment."""
    place = segment.slices.get(kind)
    if place is None:
        raise CorruptObjectError(f"the entry of offset {segment.info.base_offset} has no {kind} file", "manifest")
    return place


def fetch_exactly(fetch: RangeReader, place: ObjectSlice, start: int, end: int) -> bytes:
    """Return bytes [start, end) of a slice. An empty range needs no request."""
    return bytes(fetch_view(fetch, place, start, end))


def fetch_view(fetch: RangeReader, place: ObjectSlice, start: int, end: int) -> bytes | memoryview:
    """Return bytes [start, end) of a slice: the result of ``fetch``, without a copy.

    Raises:
        CorruptObjectError: ``fetch`` returned more or fewer bytes.
    """
    if start == end:
        return b""
    data = fetch(place.key, place.position + start, place.position + end)
    if len(data) != end - start:
        raise CorruptObjectError(
            f"{end - start} bytes were requested, but {len(data)} were received", place.key, place.position + start
        )
    return data


def with_trailer(text: bytes, magic: bytes) -> bytes:
    """Return JSON text for the end of an object, with its trailer: the size of the text, and ``magic`` (8 bytes)."""
    return text + _TRAILER.pack(len(text), magic)


def read_trailed(
    name: str, magic: bytes, limit_bytes: int, key: str, size_bytes: int, fetch: RangeReader
) -> tuple[Any, int] | None:
    """Return the JSON value before a trailer with ``magic``, and its position. Return None if there is no such trailer.

    ``with_trailer`` made the trailer, which ends at ``size_bytes`` of the object. Errors contain ``name``.

    Raises:
        CorruptObjectError: the value has more than ``limit_bytes`` or is not JSON, or the object is truncated.
    """
    end, place = size_bytes - _TRAILER.size, ObjectSlice(key, 0, size_bytes)
    if end < 0:
        return None
    text_bytes, stored_magic = _TRAILER.unpack(fetch_exactly(fetch, place, end, size_bytes))
    if stored_magic != magic:
        return None
    if not 0 < text_bytes <= min(limit_bytes, end):
        raise CorruptObjectError(f"a {name} cannot have {text_bytes} bytes", key, end)
    start = end - text_bytes
    text = fetch_exactly(fetch, place, start, end)
    try:
        return json.loads(text.decode("ascii"), parse_constant=_refuse), start
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError(f"the {name} is not valid JSON", key, start) from error


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not allowed as a number")


class HashedLayout(TierLayout):
    """Base class of layouts that store the small files unchanged, and the hashes of the log and the small files."""

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield bytes [start, end) of the ``.log`` file.

        If the range is the whole file, its hash is checked, and the last piece is yielded only if the hash is right.
        """
        place = place_of(segment, FileKind.LOG)
        if not 0 <= start <= end <= segment.info.size_bytes:
            raise ConfigError(
                f"bytes [{start}, {end}) are not inside the {segment.info.size_bytes} bytes of {place.key}"
            )
        pieces = self._pieces(segment, start, end, fetch)
        return _check_hash(pieces, segment, place) if end - start == segment.info.size_bytes else pieces

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return an index or another small file of the segment from the store; None if the segment does not have it."""
        place = segment.slices.get(kind)
        if place is None:
            return None
        data = fetch_exactly(fetch, place, 0, place.size_bytes)
        hashes = segment.extra.get(FILE_HASHES)
        expected = hashes.get(kind) if isinstance(hashes, Mapping) else None
        if expected != hashlib.sha256(data).hexdigest():
            raise CorruptObjectError(f"the hash of the {kind} file is wrong", place.key, place.position)
        return data

    @abstractmethod
    def _pieces(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Return bytes [start, end) of the log, in pieces of any size.

        The range must be inside the log, and may be empty.
        """


def _check_hash(pieces: Iterator[memoryview], segment: StoredSegment, place: ObjectSlice) -> Iterator[memoryview]:
    """Yield the pieces of a whole log.

    If the log's hash is wrong, raise CorruptObjectError instead of the last piece.
    """
    digest, position = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        position += len(piece)
        if position >= segment.info.size_bytes and digest.hexdigest() != segment.sha256:
            raise CorruptObjectError("the hash of the log file is wrong", place.key, place.position)
        yield piece


class UnchangedLayout(HashedLayout):
    """Base class of layouts that store the log unchanged. A ranged read has at most ``fetch_chunk_bytes``."""

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def _pieces(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        place, piece_bytes = place_of(segment, FileKind.LOG), self._fetch_chunk_bytes
        if place.size_bytes != segment.info.size_bytes:
            raise CorruptObjectError(
                f"the entry stores {place.size_bytes} bytes, but the log has {segment.info.size_bytes}", place.key
            )
        return (
            memoryview(fetch_view(fetch, place, first, min(end, first + piece_bytes)))
            for first in range(start, end, piece_bytes)
        )


class RecentlyUsed(Generic[T]):
    """Cache of the most recently used values, by key. Thread-safe.

    Args:
        at_most: limit of the sum of all sizes. The last loaded value is cached even if it is larger.
        size_of: returns the size of a value. By default the size is 1, so that ``at_most`` is a number of values.
    """

    def __init__(self, at_most: int = 64, size_of: Callable[[T], int] = lambda _: 1) -> None:
        self._at_most, self._size_of, self._lock = at_most, size_of, threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()  # under _lock; most recently used last

    def get_or_load(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of ``key``. If it is not cached, call ``load`` and cache its result."""
        with self._lock:
            cached = self._values.get(key)
            if cached is not None:
                self._values.move_to_end(key)
                return cached
        value = load()
        with self._lock:
            self._values[key] = value
            while len(self._values) > 1 and sum(map(self._size_of, self._values.values())) > self._at_most:
                self._values.popitem(last=False)
        return value
