"""Layout ``single``: one object per segment, which begins with Kafka's unchanged bytes.

The manifest entry contains the position of each file. Therefore, a reader requests only bytes of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.spi import (
    HashedLog,
    ObjectSink,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
)
from stratalog_formats.layouts.pieces import read_as_is
from stratalog_formats.layouts.whole import WholeLayout, put_whole

NAME: Final = "single"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"


class SingleLayout(WholeLayout):
    """Tier layout that stores each segment as one object.

    Args:
        fetch_chunk_bytes: limit of one ranged read.
    """

    label = LABEL

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment as one object, which becomes visible only when it is complete.

        Raises:
            CorruptObjectError: the log has more or fewer bytes than its ``size_bytes``.
            StorageError: the upload failed.
        """
        del section  # this layout has no settings
        return put_whole(LABEL, source, HashedLog.of(source.log, sink.key()), sink, {})

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield bytes [start, end) of the ``.log`` file with requests of at most ``fetch_chunk_bytes``.

        If the range is the whole file, its hash is checked.

        Raises:
            ConfigError: the range is not inside the file.
            CorruptObjectError: the store returned more or fewer bytes, the hash is wrong, or the entry contradicts
                itself.
        """
        return read_as_is(segment, start, end, self._fetch_chunk_bytes, fetch)
