"""Building of extra indexes for closed segments, on local disk or for an upload to a tier."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import OutOfResourcesError, SegmentGoneError, StorageError
from stratalog.log.folder.folder import file_names
from stratalog.log.state.log_state import LogState
from stratalog.model.batches import Buffer
from stratalog.model.names import EXTRA_SUFFIX, TopicPartition, parse_segment_file
from stratalog.model.segment_info import SegmentInfo
from stratalog.segment.components import Components
from stratalog.segment.extra_index_file import build_extras, pack_extras
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.section_file import Identity
from stratalog.segment.segment import DOUBTED, Segment

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtrasResult:
    """Result of ``make_extras`` for one log.

    Attributes:
        log: the log.
        segments: number of segments whose extra indexes were built.
        size_bytes: total size of the index files that were written.
        removed: number of extra index files that were removed because their segment no longer exists, or because the
            topic no longer has extra indexes.
    """

    log: TopicPartition
    segments: int = 0
    size_bytes: int = 0
    removed: int = 0


def make_extras(state: LogState) -> ExtrasResult:
    """Build the extra indexes that closed local segments lack, and remove extra index files that are not needed.

    Appends continue while indexes are built, and wait while an index file is written. The file is not synced: a file
    that is incomplete after a power loss fails its checksums.

    Raises:
        CorruptBatchError: a segment is damaged; the segments before it have their indexes.
        PluginError: a builder failed.
        DiskFullError: no space; the incomplete file is removed.
        StorageError: the log is not writable, a record cannot be decoded, or a file cannot be read or written.
    """
    components, config = state.settings.components, state.settings.config
    labels = frozenset(components.extras.labels)
    removed_files = segments = size_bytes = 0
    if state.writes.extra_labels != labels:
        removed_files = _remove_unwanted(state, labels)
    for segment in state.view.segments[:-1] if labels else ():
        if segment.known_extras != labels:
            try:
                made_bytes = _make(state, segment, components, config)
            except SegmentGoneError:  # retention or compaction removed it in the meantime
                continue
            segments, size_bytes = segments + bool(made_bytes), size_bytes + made_bytes
    return ExtrasResult(state.name, segments, size_bytes, removed_files)


def pack_segment_extras(
    segment: ReadableSegment, info: SegmentInfo, components: Components, config: TopicConfig
) -> bytes:
    """Return the bytes of the extra indexes to upload with a closed segment. Missing indexes are built.

    The result is ``b""`` if the topic has no extra indexes, if a builder fails, or if the segment cannot be read.
    """
    if not components.extras.labels:
        return b""
    try:
        indexes = _complete(segment, _read_stored(segment, components), components, config)
    except StorageError:
        _LOGGER.warning("%s is offloaded without extra indexes", segment.label, exc_info=True)
        return b""
    return b"".join(pack_extras(Identity.in_tier(info), indexes))


def pack_stored_extras(segment: Segment, info: SegmentInfo) -> bytes:
    """Return the extra indexes that a segment has on disk, in the form to upload; ``b""`` if there are none.

    Missing indexes are not built, because another process may own the log's folder.
    """
    indexes = segment.stored_extras()
    return b"".join(pack_extras(Identity.in_tier(info), indexes)) if indexes else b""


def _make(state: LogState, segment: Segment, components: Components, config: TopicConfig) -> int:
    """Write one segment's extra index file if it is out of date; return the written size (bytes), or 0."""
    labels = frozenset(components.extras.labels)
    if segment.known_extras is not DOUBTED and segment.stored_extra_labels() == labels:
        segment.known_extras = labels
        return 0
    identity = segment.identity()
    indexes = _complete(segment, segment.stored_extras(labels), components, config)
    with state.lock:
        state.health.check_writable()
        if all(current is not segment for current in state.writes.segments[:-1]) or segment.identity() != identity:
            return 0
        size_bytes = _write(segment, pack_extras(identity, indexes))
        segment.note_extras_made(labels)
        return size_bytes


def _complete(
    segment: ReadableSegment, read_stored_indexes: Mapping[str, Buffer], components: Components, config: TopicConfig
) -> dict[str, Buffer]:
    missing = [label for label in components.extras.labels if label not in read_stored_indexes]
    new_indexes = build_extras(segment, missing, components, config) if missing else {}
    return {
        label: read_stored_indexes[label] if label in read_stored_indexes else new_indexes[label]
        for label in components.extras.labels
    }


def _read_stored(segment: ReadableSegment, components: Components) -> dict[str, bytes]:
    return segment.stored_extras(components.extras.labels) if isinstance(segment, Segment) else {}


def _write(segment: Segment, pieces: list[Buffer]) -> int:
    """Replace the segment's extra index file; return its size (bytes). An incomplete file counts as missing."""
    files, name = segment.files, segment.file_name(EXTRA_SUFFIX)
    files.remove(name)
    with contextlib.closing(files.open_segment(name, create=True)) as file:
        try:
            file.append(b"".join(pieces))
        except OutOfResourcesError:  # the remaining space is for records
            files.remove(name)
            raise
        return file.size_bytes


def _remove_unwanted(state: LogState, labels: frozenset[str]) -> int:
    """Remove the extra index files that have no segment (all files if ``labels`` is empty), and return their number."""
    with state.lock:
        state.health.check_writable()
        base_offsets = {segment.base_offset for segment in state.writes.segments[:-1]} if labels else set[int]()
        unwanted_names = [
            name
            for name in file_names(state.files)
            if (parsed := parse_segment_file(name))
            and parsed.suffix == EXTRA_SUFFIX
            and parsed.base_offset not in base_offsets
        ]
        for name in unwanted_names:
            state.files.remove(name)
        state.writes.note_extras_compared(labels)
        return len(unwanted_names)
