"""Layout ``single``: one object a segment, Kafka's bytes first and as they are.

The manifest entry says where each file lies, so that a read of the log is one ranged request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stratalog.spi import (
    FileKind,
    HashedLog,
    ObjectInfo,
    ObjectSink,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
)
from stratalog_formats.layouts.pieces import read_as_is, read_small
from stratalog_formats.layouts.whole import discover_whole, put_whole

NAME: Final = "single"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"


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
        return put_whole(LABEL, source, HashedLog.of(source.log, sink.key()), sink, {})

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the ``.log`` file, in pieces of at most ``fetch_chunk_bytes``; as ``read_as_is``."""
        return read_as_is(segment, start, end, self._fetch_chunk_bytes, fetch)

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file, checked by its hash; errors as ``read``."""
        return read_small(segment, kind, fetch)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments whose footers are found at the end of ``objects``; as ``discover_whole``."""
        return discover_whole(LABEL, objects, fetch)
