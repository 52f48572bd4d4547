"""Values that the processes of one write exchange. All can be pickled and hold no open files and no secrets."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """Records that a task has written and that no reader sees yet.

    Attributes:
        log: the log for which they were written.
        topic_id: id of its topic.
        base_offset: offset of the first record when it was staged; a guess if records get their offsets at the commit.
        end_offset: offset after the last record, also a guess in this case.
        size_bytes: size of the batches.
        leader_epoch: leader epoch in which the records were staged.
        place: path of a file with the batches, or for a tier the segment's future entry in the manifest.
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
    """Closed segments of a log that are to be replaced: offsets [start, end), which are bounds of segments.

    Attributes:
        log: the log.
        topic_id: id of its topic.
        start: base offset of the first segment.
        end: end offset of the last one.
        borders: the offsets where its segments begin, and the end.
        leader_epoch: leader epoch in which the replacement is written.
        digest: lets the commit detect whether the segments have changed.
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
        span: span that contains them.
        groups: groups to merge into one segment each, ascending: offsets [start, end), and bytes of the ``.log`` files.
    """

    span: ReplaceSpan
    groups: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one commit to one log: it published records at the offsets [base_offset, end_offset).

    ``duplicate`` is True if this round of the writer was already published: nothing was done, and both offsets are the log
    end offset.
    """

    log: TopicPartition
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Result of one task for a part of a span.

    Attributes:
        staged: the new segments.
        segments: number of segments that they replace: all of the part, except that ``BulkWriter.recode`` and ``merge``
            leave some alone.
        records_read: number of records in the replaced segments.
        records_kept: number of records that stay.
        bytes_read: size of the replaced ``.log`` files.
        bytes_written: size of the staged ``.log`` files.
    """

    staged: tuple[StagedSegment, ...]
    segments: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
