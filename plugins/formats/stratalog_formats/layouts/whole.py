"""One object with a complete segment: the log in some form, the small files, the footer.

::

    log | offset index | time index | transaction index | snapshot | leader epochs | footer

Missing files take no space. The object becomes visible only when it is complete. A crash during an upload leaves no
object, or parts that the store expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import (
    Buffer,
    FileKind,
    HashedLog,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    SegmentSource,
    StoredSegment,
)
from stratalog_formats.layouts.footer import TRAILER_BYTES, decode_footer, encode_footer, footer_start
from stratalog_formats.layouts.pieces import FILE_HASHES, LogBody, exactly, file_hashes, small_files


def put_whole(
    label: str, source: SegmentSource, body: LogBody, sink: ObjectSink, extra: Mapping[str, object]
) -> StoredSegment:
    """Upload a segment as one object.

    Args:
        label: label of the layout, for the footer.
        source: the segment.
        body: the log in its stored form.
        sink: receives the object, under the key that it returned before.
        extra: data of the layout, in addition to the hashes of the small files.

    Raises:
        CorruptObjectError: the log returned more or fewer bytes than announced; nothing is visible.
    """
    made = _WholeObject(label, source, body, sink.key(), extra)
    info = sink.put(made)
    stored = made.stored()
    if info.key != made.key or stored.sha256 == HashedLog.UNKNOWN_SHA256:
        raise StorageError(f"the object was stored under {info.key!r}, not under {made.key!r}, or incompletely")
    return replace(stored, layout="")


class _WholeObject:
    """Byte source of the object. Each pass creates the bytes from the beginning, as a retry needs."""

    def __init__(self, label: str, source: SegmentSource, body: LogBody, key: str, extra: Mapping[str, object]) -> None:
        self._label, self._info, self._body, self.key = label, source.info, body, key
        self._files = small_files(source)
        self._extra = {**extra, FILE_HASHES: file_hashes(self._files)}
        self._size_bytes = (
            body.size_bytes + sum(len(data) for _, data in self._files) + len(encode_footer(self.stored()))
        )

    @property
    def size_bytes(self) -> int:
        """Size of the whole object. The footer's size is known before the hash in it."""
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the log, the small files and the footer."""
        yield from self._body.chunks(chunk_bytes)
        for data in (*(data for _, data in self._files), encode_footer(self.stored())):
            for start in range(0, len(data), chunk_bytes):
                yield memoryview(data)[start : start + chunk_bytes]

    def stored(self) -> StoredSegment:
        """Return the entry, with the hash of the last complete pass over the log."""
        slices = {FileKind.LOG: ObjectSlice(self.key, 0, self._body.size_bytes)}
        position = self._body.size_bytes
        for kind, data in self._files:
            slices[kind] = ObjectSlice(self.key, position, len(data))
            position += len(data)
        return StoredSegment(self._info, self._label, slices, self._body.sha256, extra=self._extra)


def discover_whole(label: str, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    """Yield the segments of one layout whose footers are at the end of ``objects``, in two ranged reads each.

    Objects without the magic and objects of other layouts are skipped. The entries have their layout set. An object
    whose key is "" was taken out of its tier; the key in its footer is accepted.

    Raises:
        CorruptObjectError: an object has the magic but no valid footer. Pass objects one by one to continue after it.
    """
    for info in objects:
        found = read_footer(info, fetch)
        if found is not None and is_of(found[0], label):
            _check_tiles(*found, info)
            yield found[0]


def read_footer(info: ObjectInfo, fetch: RangeReader) -> tuple[StoredSegment, int] | None:
    """Return the entry in the footer of an object and the footer's position, or None if it has no footer."""
    if info.size_bytes < TRAILER_BYTES:
        return None
    end = info.size_bytes - TRAILER_BYTES
    whole = ObjectSlice(info.key, 0, info.size_bytes)
    start = footer_start(exactly(fetch, whole, end, info.size_bytes), info.key, info.size_bytes)
    if start is None:
        return None
    return decode_footer(exactly(fetch, whole, start, end), info.key, start), start


def is_of(stored: StoredSegment, label: str) -> bool:
    """Return True if the layout with this label, or an older version of it, wrote the entry."""
    return stored.layout.partition("@")[0] == label.partition("@")[0] and _version(stored.layout) <= _version(label)


def _version(label: str) -> int:
    return int(label.rpartition("@")[2])


def _check_tiles(stored: StoredSegment, footer_start: int, info: ObjectInfo) -> None:
    """Raise CorruptObjectError unless the slices cover the object from 0 to the footer without gaps."""
    position, key = 0, info.key or min(stored.keys, default="")
    for place in sorted(stored.slices.values(), key=lambda place: (place.position, place.size_bytes)):
        if place.key != key or place.position != position:
            raise CorruptObjectError(f"the footer describes other bytes: {place}", info.key, footer_start)
        position += place.size_bytes
    if position != footer_start or FileKind.LOG not in stored.slices:
        raise CorruptObjectError("the footer does not describe this object", info.key, footer_start)
