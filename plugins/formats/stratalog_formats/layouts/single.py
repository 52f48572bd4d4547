"""Layout ``single``: one object a segment.

::

    .log file | offset index | time index | transaction index | snapshot | leader epochs | footer

Kafka's bytes as they are; files that a segment lacks take no space. The manifest entry says where each one lies, so
that a read of the log is one ranged request. Nothing is visible before the whole object is: a crash in the middle of
an upload leaves no object, or parts that the store expires.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from stratalog.spi import (
    Buffer,
    ConfigError,
    CorruptObjectError,
    FileKind,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    Section,
    SegmentSource,
    StorageError,
    StoredSegment,
    TierLayout,
)
from stratalog_formats.layouts.footer import TRAILER_BYTES, decode_footer, encode_footer, footer_start

NAME: Final = "single"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"
SMALL_FILES: Final = tuple(kind for kind in FileKind if kind is not FileKind.LOG)  # in this order in the object
_UNKNOWN_SHA256: Final = "0" * 64
_FILE_HASHES: Final = "sha256"  # in ``extra``: hashes of the small files, by kind


class SingleLayout(TierLayout):
    """Writes and reads segment objects.

    Args:
        fetch_chunk_bytes: the most that one ranged read asks for.
    """

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment as one object; the log is read once, and hashed on its way.

        Raises:
            CorruptObjectError: the log gave more or fewer bytes than it said; nothing is visible.
        """
        del section  # this layout has no settings
        body = _SegmentBytes(source, sink.key())
        info = sink.put(body)
        stored = body.stored()
        if info.key != body.key or stored.sha256 == _UNKNOWN_SHA256:
            raise StorageError(f"the object was put under {info.key!r} and not as {body.key!r}, or not as a whole")
        return replace(stored, layout="")

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the ``.log`` file, in pieces of at most ``fetch_chunk_bytes``.

        If that is the whole file its hash is checked, and the last piece is held back until it is right.

        Raises:
            ConfigError: the range is not inside the file.
            CorruptObjectError: the store sent another number of bytes, or the hash is wrong.
        """
        place = _place_of(segment, FileKind.LOG)
        if not 0 <= start <= end <= place.size_bytes:
            raise ConfigError(f"bytes [{start}, {end}) are not inside the {place.size_bytes} of key={place.key}")
        return self._pieces(place, start, end, segment.sha256, fetch)

    def _pieces(
        self, place: ObjectSlice, start: int, end: int, sha256: str, fetch: RangeReader
    ) -> Iterator[memoryview]:
        digest = hashlib.sha256() if end - start == place.size_bytes else None
        for first in range(start, end, self._fetch_chunk_bytes):
            last = min(end, first + self._fetch_chunk_bytes)
            piece = _exactly(fetch, place, first, last)
            if digest is not None:
                digest.update(piece)
                if last == end and digest.hexdigest() != sha256:
                    raise CorruptObjectError("the log's hash is wrong", place.key, place.position)
            yield memoryview(piece)

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file, checked by its hash.

        Raises:
            CorruptObjectError: the store sent another number of bytes, or the hash is wrong.
        """
        place = segment.slices.get(kind)
        if place is None:
            return None
        data = _exactly(fetch, place, 0, place.size_bytes)
        hashes = segment.extra.get(_FILE_HASHES)
        expected = hashes.get(kind) if isinstance(hashes, Mapping) else None
        if expected != hashlib.sha256(data).hexdigest():
            raise CorruptObjectError(f"the hash of the {kind} file is wrong", place.key, place.position)
        return data

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments whose footers are found at the end of ``objects``, in two ranged reads each.

        Objects without this layout's magic are passed over. Entries come with their layout filled in. An object whose
        key is "" was taken out of its tier: the key that it names itself is believed.

        Raises:
            CorruptObjectError: an object has the magic and no sound footer. Pass objects one by one to go on.
        """
        for info in objects:
            found = _discovered(info, fetch)
            if found is not None:
                yield found


class _SegmentBytes:
    """The object's bytes, made anew each time they are asked for: a retry starts from the beginning."""

    def __init__(self, source: SegmentSource, key: str) -> None:
        self._source, self.key = source, key
        self._files = [(kind, source.files[kind]) for kind in SMALL_FILES if kind in source.files]
        self._hashes = {str(kind): hashlib.sha256(data).hexdigest() for kind, data in self._files}
        self._sha256 = _UNKNOWN_SHA256  # of the last complete pass
        self._size_bytes = (
            source.log.size_bytes + sum(len(data) for _, data in self._files) + len(encode_footer(self.stored()))
        )

    @property
    def size_bytes(self) -> int:
        """Of the whole object; the footer's size is known before the hash in it."""
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """The log, the small files, the footer."""
        digest = hashlib.sha256()
        seen = 0
        for chunk in self._source.log.chunks(chunk_bytes):
            seen += len(chunk)
            digest.update(chunk)
            yield chunk
        if seen != self._source.log.size_bytes:
            raise CorruptObjectError(f"the log said {self._source.log.size_bytes} bytes and gave {seen}", self.key)
        self._sha256 = digest.hexdigest()
        for data in (*(data for _, data in self._files), encode_footer(self.stored())):
            for start in range(0, len(data), chunk_bytes):
                yield memoryview(data)[start : start + chunk_bytes]

    def stored(self) -> StoredSegment:
        """The entry, with the hash of the last complete pass over the log."""
        slices = {FileKind.LOG: ObjectSlice(self.key, 0, self._source.log.size_bytes)}
        position = self._source.log.size_bytes
        for kind, data in self._files:
            slices[kind] = ObjectSlice(self.key, position, len(data))
            position += len(data)
        return StoredSegment(self._source.info, LABEL, slices, self._sha256, extra={_FILE_HASHES: self._hashes})


def _discovered(info: ObjectInfo, fetch: RangeReader) -> StoredSegment | None:
    if info.size_bytes < TRAILER_BYTES:
        return None
    end = info.size_bytes - TRAILER_BYTES
    whole = ObjectSlice(info.key, 0, info.size_bytes)
    start = footer_start(_exactly(fetch, whole, end, info.size_bytes), info.key, info.size_bytes)
    if start is None:
        return None
    stored = decode_footer(_exactly(fetch, whole, start, end), info.key, start)
    position, key = 0, info.key or min(stored.keys, default="")
    for place in sorted(stored.slices.values(), key=lambda place: (place.position, place.size_bytes)):
        if place.key != key or place.position != position:
            raise CorruptObjectError(f"the footer speaks of other bytes: {place}", info.key, start)
        position += place.size_bytes
    if position != start or FileKind.LOG not in stored.slices or stored.layout != LABEL:
        raise CorruptObjectError("the footer does not describe this object", info.key, start)
    return stored


def _place_of(segment: StoredSegment, kind: FileKind) -> ObjectSlice:
    place = segment.slices.get(kind)
    if place is None:
        raise CorruptObjectError(f"the entry of offset {segment.info.base_offset} has no {kind} file", "manifest")
    return place


def _exactly(fetch: RangeReader, place: ObjectSlice, start: int, end: int) -> bytes:
    """Bytes [start, end) of a slice; an empty range costs no request."""
    if start == end:
        return b""
    data = fetch(place.key, place.position + start, place.position + end)
    if len(data) != end - start:
        raise CorruptObjectError(f"asked for {end - start} bytes, got {len(data)}", place.key, place.position + start)
    return data
