"""Values that the processes of one bulk write exchange. They can be pickled, and have no open files and no secrets."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """Description of a segment that a task has staged. Readers do not see the segment before it is published.

    Attributes:
        base_offset: first offset; provisional if records get their offsets at the commit.
        end_offset: exclusive end offset; provisional if records get their offsets at the commit.
        leader_epoch: leader epoch in which the records were staged; -1 for a directory.
        place: name of the file with the batches, in the log's folder. For a tier, the segment's future entry in the
            manifest.
    """

    log: TopicPartition
    topic_id: TopicId
    base_offset: int
    end_offset: int
    size_bytes: int
    leader_epoch: int
    place: str | StoredSegment


@dataclass(frozen=True, slots=True)
class ReplaceSpan:
    """Adjacent closed segments of a log that a job replaces.

    Attributes:
        start: base offset of the first segment.
        end: exclusive end offset of the last segment.
        borders: base offsets of all segments, and ``end``.
        leader_epoch: leader epoch in which the replacement is written.
        digest: hash of the segments' bounds and object keys. The commit compares it to detect changed segments.
    """

    log: TopicPartition
    topic_id: TopicId
    start: int
    end: int
    borders: tuple[int, ...]
    leader_epoch: int
    digest: str


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Small segments of a log that can be merged.

    Attributes:
        groups: for each group of segments to merge into one: start offset, exclusive end offset, and bytes of the
            ``.log`` files.
    """

    span: ReplaceSpan
    groups: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one commit to one log.

    Attributes:
        base_offset: first published offset; the log end offset if nothing was published.
        end_offset: exclusive end of the published offsets; the log end offset if nothing was published.
        duplicate: True if nothing was published, because this mark, or a mark of the same writer with a higher number,
            was published before.
    """

    log: TopicPartition
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of one task that has rewritten an offset range of a span.

    Attributes:
        segments: number of old segments that the new segments replace. ``BulkWriter.recode`` and ``merge`` do not
            replace every segment: segments that need no change stay, and are not counted.
        records_read: number of records in the replaced segments.
        records_kept: number of records in the new segments.
        bytes_read: size of the replaced ``.log`` files.
        bytes_written: size of the staged ``.log`` files.
    """

    staged: tuple[StagedSegment, ...]
    segments: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
