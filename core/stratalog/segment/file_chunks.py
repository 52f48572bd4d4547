"""The bytes of a segment's ``.log`` file from a segment store that may return wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.model.batches import Buffer
from stratalog.registry.guarded_parts import guard_of
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.segment_store import LogFiles, SegmentFile

_OTHER_STEP_BYTES: Final = 4093  # a prime, so that the pieces have other borders than those of any other reader


def file_chunks(
    segment: ReadableSegment, files: LogFiles, components: Components, chunk_bytes: int
) -> Iterator[Buffer]:
    """Yield the bytes of a segment from its start, in pieces of at most ``chunk_bytes``.

    ``files`` is the folder of the segment. If the segment store does not come with stratalog, each batch must pass its CRC: the store may read other bytes than
    it has, and after the upload the segment leaves local disk.

    Raises:
        CorruptBatchError: a batch that such a store read is bad.
    """
    if guard_of(files) is None:
        for position in range(0, segment.size_bytes, chunk_bytes):
            yield segment.read(position, chunk_bytes)
        return
    for chunk in walk(segment, 0, components, read_bytes=chunk_bytes):
        size_bytes = chunk.end_position - chunk.position
        for start in range(0, size_bytes, chunk_bytes):
            yield chunk.data[start : min(start + chunk_bytes, size_bytes)]


def check_same_bytes(log: SegmentFile, position: int) -> None:
    """Check that a file has the same bytes from ``position`` on when it is read in pieces with other borders.

    Recovery calls this before it truncates a file at ``position``. A file of a store that comes with stratalog is not
    read.

    Raises:
        PluginError: two reads returned other bytes for the same positions.
    """
    guard = guard_of(log)
    if guard is None:
        return
    whole = bytes(log.read(position, log.size_bytes - position))
    step = min(_OTHER_STEP_BYTES, len(whole) // 2 + 1)
    for start in range(0, len(whole), step):
        piece = whole[start : start + step]
        if log.read(position + start, len(piece)) != piece:
            guard.refuse("read", f"returned other bytes for {start + position} than before, so nothing is truncated")
