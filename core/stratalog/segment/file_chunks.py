"""Reads of ``.log`` files. If a plugin provides the segment store, the results of the store are checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from stratalog.errors import StorageError
from stratalog.model.batches import Buffer
from stratalog.model.names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, parse_segment_file, segment_file
from stratalog.registry.guarded_parts import guard_of
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.segment_store import LogFiles, SegmentFile

if TYPE_CHECKING:
    from stratalog.segment.segment import Segment

_OTHER_STEP_BYTES: Final = 4093  # a prime number: these reads begin at other positions than any other reads


def file_chunks(
    segment: ReadableSegment, files: LogFiles, components: Components, chunk_bytes: int
) -> Iterator[Buffer]:
    """Yield the bytes of a segment from its start, in pieces of at most ``chunk_bytes``.

    ``files`` is the folder of the segment. If a plugin provides the segment store, the CRC of each batch is checked:
    such a store may return wrong bytes, and the segment is deleted from local disk after the upload.

    Raises:
        CorruptBatchError: a batch from the store of a plugin is damaged.
        SegmentGoneError: the segment was closed or deleted.
    """
    if guard_of(files) is None:
        for position in range(0, segment.size_bytes, chunk_bytes):
            yield segment.read(position, chunk_bytes)
        return
    for chunk in walk(segment, 0, components, read_bytes=chunk_bytes):
        size_bytes = chunk.end_position - chunk.position
        for start in range(0, size_bytes, chunk_bytes):
            yield chunk.data[start : min(start + chunk_bytes, size_bytes)]


def check_listed(files: LogFiles, names: Iterable[str]) -> None:
    """Raise PluginError if a folder lists a segment's offset index, but not its ``.log`` file, which is not empty.

    ``names`` are the listed names. Without the ``.log`` file, records would be missing. Only folders in a segment store
    of a plugin are checked.
    """
    guard = guard_of(files)
    if guard is None:
        return
    listed_names = set(names)
    for index in listed_names:
        parsed = parse_segment_file(index)
        if parsed is None or parsed.state or parsed.suffix != OFFSET_INDEX_SUFFIX:
            continue
        name = segment_file(parsed.base_offset, LOG_SUFFIX)
        if name not in listed_names and _has_bytes(files, name):
            guard.refuse("list", f"leaves out {name}, which can be opened")


def check_sizes(files: LogFiles, segments: Iterable[Segment]) -> None:
    """Raise PluginError if the size of an opened ``.log`` file differs from its listed size.

    This check comes before recovery truncates a file.

    Only folders in a segment store of a plugin are checked.
    """
    guard = guard_of(files)
    if guard is None:
        return
    listed_sizes = {file.name: file.size_bytes for file in files.list()}
    for segment in segments:
        name, size_bytes = segment.file_name(LOG_SUFFIX), segment.file.size_bytes
        if size_bytes != listed_sizes.get(name, 0):
            guard.refuse(
                "open_segment", f"opened {name} with {size_bytes} bytes, but list has {listed_sizes.get(name, 0)}"
            )


def _has_bytes(files: LogFiles, name: str) -> bool:
    try:
        with contextlib.closing(files.open_segment(name)) as file:
            return file.size_bytes > 0
    except StorageError:
        return False


def check_same_bytes(log: SegmentFile, position: int) -> None:
    """Raise PluginError if a file does not end at its ``size_bytes``, or contradicts itself.

    A file contradicts itself if small reads of a range return other bytes than one large read of the range.
    Recovery calls this before it truncates a file at ``position``; the bytes from ``position`` on are read. Only files
    in a segment store of a plugin are read.
    """
    guard = guard_of(log)
    if guard is None:
        return
    remaining_bytes = log.size_bytes - position
    data = bytes(log.read(position, remaining_bytes + 1))
    if len(data) != remaining_bytes:
        guard.refuse(
            "size_bytes", f"is {log.size_bytes}, but read returned another number of bytes; nothing is truncated"
        )
    step = min(_OTHER_STEP_BYTES, len(data) // 2 + 1)
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        if log.read(position + start, len(piece)) != piece:
            guard.refuse("read", f"returned other bytes for {start + position} than before, so nothing is truncated")
