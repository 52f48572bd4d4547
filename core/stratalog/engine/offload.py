"""Which segments of a log go to its tier now, and as what.

Source: KIP-405, RemoteLogManager: closed segments, in order, up to the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.epochs.checkpoint import format_epochs
from stratalog.log.log import Log
from stratalog.log.view import LogView
from stratalog.model.batches import Buffer
from stratalog.model.events import SegmentOffloaded
from stratalog.model.names import SNAPSHOT_SUFFIX, TopicPartition, segment_file
from stratalog.model.segments import FileKind, SegmentInfo
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import SegmentSource

_INDEX_KINDS = {
    IndexRole.OFFSET: FileKind.OFFSET_INDEX,
    IndexRole.TIME: FileKind.TIME_INDEX,
    IndexRole.TRANSACTION: FileKind.TRANSACTION_INDEX,
}


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The ``.log`` file of a closed segment as a ByteSource."""

    segment: Segment

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.segment.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """The file from its start."""
        for position in range(0, self.size_bytes, chunk_bytes):
            yield self.segment.read(position, chunk_bytes)


def segments_to_offload(view: LogView, remote_end: int, *, has_remote: bool) -> list[Segment]:
    """The closed local segments that the tier lacks, ascending, ending at or below the last stable offset."""
    stable = view.offsets.last_stable
    return [
        segment
        for segment in view.segments[:-1]
        if segment.end_offset <= stable
        and (segment.base_offset >= remote_end if has_remote else segment.end_offset > view.offsets.log_start)
    ]


def segment_source(log: Log, view: LogView, segment: Segment) -> SegmentSource:
    """Everything of one closed segment that travels to the tier."""
    assert log.topic_id is not None
    epochs = view.epochs.between(segment.base_offset, segment.end_offset)
    info = SegmentInfo(
        log=log.name,
        topic_id=log.topic_id,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        modified_ms=segment.log.modified_ms,
        leader_epochs=epochs,
    )
    files: dict[FileKind, bytes] = {
        kind: entries for role, kind in _INDEX_KINDS.items() if (entries := bytes(segment.index_entries(role)))
    }
    snapshot = segment.files.read_small(segment_file(segment.end_offset, SNAPSHOT_SUFFIX))
    if snapshot:
        files[FileKind.SNAPSHOT] = snapshot
    files[FileKind.LEADER_EPOCHS] = format_epochs(epochs)
    return SegmentSource(info, SegmentBytes(segment), files)
