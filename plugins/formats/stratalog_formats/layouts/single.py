"""Layout ``single``, and the base class of all layouts that store a segment as one object.

The object contains the log in the form of the layout, the small files, and the footer. In ``single``, the log has
Kafka's unchanged bytes. The manifest entry contains the position of each file, so a reader requests only the bytes of
the files that it needs.

::

    log | offset index | time index | transaction index | snapshot | leader epochs | extra indexes | footer | tail

A file that the segment does not have takes no space. Most layouts have no tail. The object becomes visible only when it
is complete. After a crash during an upload, there is no object, but uploaded parts may remain until the store expires
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import (
    Buffer,
    FileKind,
    HashedLog,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
)
from stratalog_formats.layouts.footer import encode_footer, read_footer
from stratalog_formats.layouts.pieces import (
    FILE_HASHES,
    HashedLayout,
    LogBody,
    UnchangedLayout,
    fetch_exactly,
    file_hashes,
    small_files,
)

LABEL: Final = "single@1"


class WholeLayout(HashedLayout):
    """Base class of the layouts that store a segment as one object, by ``put_whole``.

    Attributes:
        label: label of the layout, ``name@version``.
    """

    label: ClassVar[str]

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Check the footer of the object, a copy of the manifest entry ``segment``."""
        self._check_footer(segment, fetch)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the segments of this layout in ``objects``, found by their footers. Each footer needs two ranged reads.

        An object without the magic of a footer, for example an incomplete object, is skipped. The key "" means an
        object outside of its tier, such as a copied file. For such an object, the key in the footer is not checked.

        Raises:
            CorruptObjectError: an object has the magic but no valid footer, or is shorter than the size in its
                ``ObjectInfo``. To find the other segments, pass objects one by one.
        """
        for info in objects:
            tail_bytes = self._tail_bytes(info, fetch)
            footer = None if tail_bytes is None else read_footer(info, fetch, tail_bytes)
            if footer is not None and is_written_by(footer[0], self.label):
                _check_tiles(*footer, info)
                yield footer[0]

    def _tail_bytes(self, info: ObjectInfo, fetch: RangeReader) -> int | None:
        """Return the size of an object's tail, which follows the footer.

        Return None if the object is not of this layout.
        """
        del info, fetch
        return 0

    def _check_footer(self, segment: StoredSegment, fetch: RangeReader) -> int:
        """Check the footer, and return the position of the tail."""
        end = max(place.position + place.size_bytes for place in segment.slices.values())
        return check_copy(segment, self.label, segment.log_key, end, fetch)


class SingleLayout(UnchangedLayout, WholeLayout):
    """Tier layout that stores each segment as one object."""

    label = LABEL

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment as one object. The object becomes visible only when it is complete."""
        del section  # this layout has no settings
        return put_whole(LABEL, source, HashedLog.of(source.log, sink.key()), sink, {})


def put_whole(
    label: str,
    source: SegmentSource,
    body: LogBody,
    sink: ObjectSink,
    extra: Mapping[str, object],
    *,
    suffix: str = "seg",
    tail: bytes = b"",
) -> StoredSegment:
    """Upload a segment as one object.

    Args:
        label: label of the layout, for the footer.
        source: description and small files of the segment. The log of the object is ``body``.
        body: the log in its stored form.
        sink: receives the object.
        extra: data of the layout for ``extra`` of the manifest entry.
        suffix: end of the key.
        tail: the bytes after the footer.

    Raises:
        CorruptObjectError: the log has more or fewer bytes than its ``size_bytes``; no object is stored.
        StorageError: the upload failed, or the sink stored the object incompletely or under another key.
    """
    body_object = _WholeObject(label, source, body, sink.key(suffix), extra, tail)
    info = sink.put(body_object, suffix)
    entry = body_object.entry()
    if info.key != body_object.key or entry.sha256 == HashedLog.UNKNOWN_SHA256:
        raise StorageError(f"the object was stored under {info.key!r}, not under {body_object.key!r}, or incompletely")
    return replace(entry, layout="")


class _WholeObject:
    """Byte source of the object. Each iteration of ``chunks`` yields all bytes, because an upload may be retried."""

    def __init__(
        self, label: str, source: SegmentSource, body: LogBody, key: str, extra: Mapping[str, object], tail: bytes
    ) -> None:
        self._label, self._info, self._body, self.key, self._tail = label, source.info, body, key, tail
        self._files = small_files(source)
        self._extra = {**extra, FILE_HASHES: file_hashes(self._files)}
        small_bytes = sum(len(data) for _, data in self._files)
        self._size_bytes = body.size_bytes + small_bytes + len(encode_footer(self.entry())) + len(tail)

    @property
    def size_bytes(self) -> int:
        """Size (bytes) of the whole object. It is known before the log is read, because the hash has a fixed size."""
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the log, the small files, the footer and the tail."""
        yield from self._body.chunks(chunk_bytes)
        for data in (*(data for _, data in self._files), encode_footer(self.entry()), self._tail):
            for start in range(0, len(data), chunk_bytes):
                yield memoryview(data)[start : start + chunk_bytes]

    def entry(self) -> StoredSegment:
        """Return the manifest entry, with the hash of the log from its last complete read."""
        slices = {FileKind.LOG: ObjectSlice(self.key, 0, self._body.size_bytes)}
        position = self._body.size_bytes
        for kind, data in self._files:
            slices[kind] = ObjectSlice(self.key, position, len(data))
            position += len(data)
        return StoredSegment(self._info, self._label, slices, self._body.sha256, extra=self._extra)


def check_copy(segment: StoredSegment, label: str, key: str, position: int, fetch: RangeReader) -> int:
    """Check the footer at ``position`` of an object, a copy of the manifest entry.

    Return the position after the footer.

    If ``segment.layout`` is "", ``label`` is the expected layout of the copy.

    Raises:
        CorruptObjectError: the copy differs from the manifest entry, or is truncated.
    """
    expected = encode_footer(replace(segment, layout=segment.layout or label))
    end = position + len(expected)
    if fetch_exactly(fetch, ObjectSlice(key, 0, end), position, end) != expected:
        raise CorruptObjectError("the copy of the entry, for a rebuild without manifests, is damaged", key, position)
    return end


def is_written_by(entry: StoredSegment, label: str) -> bool:
    """Return True if the layout ``label`` (name@version), or an older version of it, wrote the manifest entry."""
    return entry.layout.partition("@")[0] == label.partition("@")[0] and _version(entry.layout) <= _version(label)


def _version(label: str) -> int:
    return int(label.rpartition("@")[2])


def _check_tiles(entry: StoredSegment, footer_start: int, info: ObjectInfo) -> None:
    """Raise CorruptObjectError unless the slices in ``entry`` cover the object from 0 to the footer without gaps."""
    position, key = 0, info.key or min(entry.keys, default="")
    for place in sorted(entry.slices.values(), key=lambda place: (place.position, place.size_bytes)):
        if place.key != key or place.position != position:
            raise CorruptObjectError(f"the footer describes other bytes: {place}", info.key, footer_start)
        position += place.size_bytes
    if position != footer_start or FileKind.LOG not in entry.slices:
        raise CorruptObjectError("the footer does not describe this object", info.key, footer_start)
