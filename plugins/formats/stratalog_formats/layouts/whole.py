"""One object that holds a whole segment: the log in some form, the small files, the footer.

::

    log | offset index | time index | transaction index | snapshot | leader epochs | footer

Files that a segment lacks take no space. Nothing is visible before the whole object is: a crash in the middle of an
upload leaves no object, or parts that the store expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stratalog.spi import (
    UNKNOWN_SHA256,
    Buffer,
    CorruptObjectError,
    FileKind,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    SegmentSource,
    StorageError,
    StoredSegment,
)
from stratalog_formats.layouts.footer import TRAILER_BYTES, decode_footer, encode_footer, footer_start
from stratalog_formats.layouts.pieces import FILE_HASHES, LogBody, exactly, file_hashes, small_files


def put_whole(
    label: str, source: SegmentSource, body: LogBody, sink: ObjectSink, extra: Mapping[str, object]
) -> StoredSegment:
    """Upload a segment as one object.

    Args:
        label: of the layout, for the footer.
        source: the segment.
        body: its log as it is to be stored.
        sink: takes the object, under the key that it named.
        extra: the layout's notes, besides the hashes of the small files.

    Raises:
        CorruptObjectError: the log gave more or fewer bytes than it said; nothing is visible.
    """
    made = _WholeObject(label, source, body, sink.key(), extra)
    info = sink.put(made)
    stored = made.stored()
    if info.key != made.key or stored.sha256 == UNKNOWN_SHA256:
        raise StorageError(f"the object was put under {info.key!r} and not as {made.key!r}, or not as a whole")
    return replace(stored, layout="")


class _WholeObject:
    """The object's bytes, made anew each time they are asked for: a retry starts from the beginning."""

    def __init__(self, label: str, source: SegmentSource, body: LogBody, key: str, extra: Mapping[str, object]) -> None:
        self._label, self._info, self._body, self.key = label, source.info, body, key
        self._files = small_files(source)
        self._extra = {**extra, FILE_HASHES: file_hashes(self._files)}
        self._size_bytes = (
            body.size_bytes + sum(len(data) for _, data in self._files) + len(encode_footer(self.stored()))
        )

    @property
    def size_bytes(self) -> int:
        """Of the whole object; the footer's size is known before the hash in it."""
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """The log, the small files, the footer."""
        yield from self._body.chunks(chunk_bytes)
        for data in (*(data for _, data in self._files), encode_footer(self.stored())):
            for start in range(0, len(data), chunk_bytes):
                yield memoryview(data)[start : start + chunk_bytes]

    def stored(self) -> StoredSegment:
        """The entry, with the hash of the last complete pass over the log."""
        slices = {FileKind.LOG: ObjectSlice(self.key, 0, self._body.size_bytes)}
        position = self._body.size_bytes
        for kind, data in self._files:
            slices[kind] = ObjectSlice(self.key, position, len(data))
            position += len(data)
        return StoredSegment(self._info, self._label, slices, self._body.sha256, extra=self._extra)


def discover_whole(label: str, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    """The segments of one layout whose footers are found at the end of ``objects``, in two ranged reads each.

    Objects without the magic, and those of other layouts, are passed over. Entries come with their layout filled in.
    An object whose key is "" was taken out of its tier: the key that it names itself is believed.

    Raises:
        CorruptObjectError: an object has the magic and no sound footer. Pass objects one by one to go on.
    """
    for info in objects:
        found = read_footer(info, fetch)
        if found is not None and is_of(found[0], label):
            _check_tiles(*found, info)
            yield found[0]


def read_footer(info: ObjectInfo, fetch: RangeReader) -> tuple[StoredSegment, int] | None:
    """The entry in the footer of an object, and where the footer starts; None if it has none."""
    if info.size_bytes < TRAILER_BYTES:
        return None
    end = info.size_bytes - TRAILER_BYTES
    whole = ObjectSlice(info.key, 0, info.size_bytes)
    start = footer_start(exactly(fetch, whole, end, info.size_bytes), info.key, info.size_bytes)
    if start is None:
        return None
    return decode_footer(exactly(fetch, whole, start, end), info.key, start), start


def is_of(stored: StoredSegment, label: str) -> bool:
    """Whether an entry was written by the layout with this label, or an older version of it."""
    return stored.layout.partition("@")[0] == label.partition("@")[0] and _version(stored.layout) <= _version(label)


def _version(label: str) -> int:
    return int(label.rpartition("@")[2])


def _check_tiles(stored: StoredSegment, footer_start: int, info: ObjectInfo) -> None:
    """Whether the slices tile the object from 0 to the footer."""
    position, key = 0, info.key or min(stored.keys, default="")
    for place in sorted(stored.slices.values(), key=lambda place: (place.position, place.size_bytes)):
        if place.key != key or place.position != position:
            raise CorruptObjectError(f"the footer speaks of other bytes: {place}", info.key, footer_start)
        position += place.size_bytes
    if position != footer_start or FileKind.LOG not in stored.slices:
        raise CorruptObjectError("the footer does not describe this object", info.key, footer_start)
