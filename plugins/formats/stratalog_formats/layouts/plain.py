"""Layout ``plain``: Kafka's files one to one, an object each, and one more with the entry.

What lies in the bucket can be copied into a broker's directory as it is: the files only need their names back. The
entry is put last: a segment whose entry is there is there whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from stratalog.spi import (
    ByteSource,
    BytesSource,
    CorruptObjectError,
    FileKind,
    HashedLog,
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
from stratalog_formats.layouts.footer import encode_footer
from stratalog_formats.layouts.pieces import (
    FILE_HASHES,
    file_hashes,
    read_as_is,
    read_small,
    small_files,
)
from stratalog_formats.layouts.whole import is_of, read_footer

NAME: Final = "plain"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"
SUFFIXES: Final = {  # persistent, of the keys
    FileKind.LOG: "log",
    FileKind.OFFSET_INDEX: "index",
    FileKind.TIME_INDEX: "timeindex",
    FileKind.TRANSACTION_INDEX: "txnindex",
    FileKind.SNAPSHOT: "snapshot",
    FileKind.LEADER_EPOCHS: "epochs",
    FileKind.EXTRA: "extra",
}
ENTRY_SUFFIX: Final = "entry"


class PlainLayout(TierLayout):
    """Writes and reads the files of a segment as objects.

    Args:
        fetch_chunk_bytes: the most that one ranged read asks for.
    """

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store each file, then the entry; the log is read once, and hashed on its way.

        Raises:
            CorruptObjectError: the log gave more or fewer bytes than it said.
        """
        del section  # this layout has no settings
        files, log = small_files(source), HashedLog.of(source.log, sink.key(SUFFIXES[FileKind.LOG]))
        bodies: list[tuple[FileKind, ByteSource]] = [(FileKind.LOG, log)]
        bodies += ((kind, BytesSource(data)) for kind, data in files)
        slices = {}
        for kind, body in bodies:
            info = sink.put(body, SUFFIXES[kind])
            slices[kind] = ObjectSlice(info.key, 0, body.size_bytes)
        if not log.is_read:
            raise StorageError(f"the log was not stored as a whole: key={slices[FileKind.LOG].key!r}")
        key = sink.key(ENTRY_SUFFIX)
        extra = {FILE_HASHES: file_hashes(files), "objects": [key]}
        stored = StoredSegment(source.info, LABEL, slices, log.sha256, extra=extra)
        sink.put(BytesSource(encode_footer(stored)), ENTRY_SUFFIX)
        return dataclasses.replace(stored, layout="")

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the ``.log`` file, in pieces of at most ``fetch_chunk_bytes``; as ``read_as_is``."""
        return read_as_is(segment, start, end, self._fetch_chunk_bytes, fetch)

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file, checked by its hash; errors as ``read``."""
        return read_small(segment, kind, fetch)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments whose entries are among ``objects``, in two ranged reads each.

        Whether the files that an entry names are there is for the caller to see.

        Raises:
            CorruptObjectError: an object has the magic and no sound entry. Pass objects one by one to go on.
        """
        for info in objects:
            found = read_footer(info, fetch)
            if found is None or not is_of(found[0], LABEL):
                continue
            stored, start = found
            named = stored.extra.get("objects")
            placed = [place.position for place in stored.slices.values()]
            if start or any(placed) or FileKind.LOG not in stored.slices or (info.key and named != [info.key]):
                raise CorruptObjectError("the entry does not describe this segment", info.key, start)
            yield stored
