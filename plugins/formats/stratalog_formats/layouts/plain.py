"""Layout ``plain``: one object for each of Kafka's files, unchanged, and one object with the manifest entry.

The files in the bucket can be copied into a broker's directory, under their original names. The object with the
manifest entry is stored last. If it exists, the segment is complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import (
    ByteSource,
    BytesSource,
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
from stratalog_formats.layouts.pieces import FILE_HASHES, UnchangedLayout, file_hashes, small_files
from stratalog_formats.layouts.single import check_copy, is_written_by

LABEL: Final = "plain@1"
SUFFIXES: Final = {  # suffixes of the keys: never change them
    FileKind.LOG: "log",
    FileKind.OFFSET_INDEX: "index",
    FileKind.TIME_INDEX: "timeindex",
    FileKind.TRANSACTION_INDEX: "txnindex",
    FileKind.SNAPSHOT: "snapshot",
    FileKind.LEADER_EPOCHS: "epochs",
    FileKind.EXTRA: "extra",
}
ENTRY_SUFFIX: Final = "entry"


class PlainLayout(UnchangedLayout):
    """Tier layout that stores each file of a segment as its own object."""

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store each file, then the manifest entry. After an error, objects that were already stored remain."""
        del section  # this layout has no settings
        files, log = small_files(source), HashedLog.of(source.log, sink.key(SUFFIXES[FileKind.LOG]))
        bodies: list[tuple[FileKind, ByteSource]] = [(FileKind.LOG, log)]
        bodies += ((kind, BytesSource(data)) for kind, data in files)
        slices = {}
        for kind, body in bodies:
            info = sink.put(body, SUFFIXES[kind])
            slices[kind] = ObjectSlice(info.key, 0, body.size_bytes)
        if not log.is_read:
            raise StorageError(f"the log is not stored completely: key={slices[FileKind.LOG].key!r}")
        key = sink.key(ENTRY_SUFFIX)
        extra = {FILE_HASHES: file_hashes(files), "objects": [key]}
        entry = StoredSegment(source.info, LABEL, slices, log.sha256, extra=extra)
        sink.put(BytesSource(encode_footer(entry)), ENTRY_SUFFIX)
        return dataclasses.replace(entry, layout="")

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Check the object that contains the copy of the manifest entry ``segment``.

        Raises:
            CorruptObjectError: the copy differs from the manifest entry, or the manifest entry does not name exactly
                one such object.
        """
        entry_keys = segment.extra.get("objects")
        if not isinstance(entry_keys, list) or len(entry_keys) != 1:
            raise CorruptObjectError("the entry does not name one further object", segment.log_key)
        check_copy(segment, LABEL, entry_keys[0], 0, fetch)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the segments whose manifest entries are among ``objects``. Each manifest entry needs two ranged reads.

        The caller must check that the files in a manifest entry exist.

        Raises:
            CorruptObjectError: an object has the magic bytes but no valid manifest entry. To find the other segments,
                pass objects one by one.
        """
        for info in objects:
            footer = read_footer(info, fetch)
            if footer is None or not is_written_by(footer[0], LABEL):
                continue
            entry, start = footer
            entry_keys = entry.extra.get("objects")
            positions = [place.position for place in entry.slices.values()]
            if start or any(positions) or FileKind.LOG not in entry.slices or (info.key and entry_keys != [info.key]):
                raise CorruptObjectError("the entry does not describe this segment", info.key, start)
            yield entry
