"""What travels between the processes of one write: all of it can be pickled and holds no open files and no secrets."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """Records that a task has written and nobody reads yet.

    Attributes:
        log: where they shall go.
        topic_id: of its topic.
        base_offset: of the first record as it was staged; where records get their offsets at the commit, a guess.
        end_offset: behind the last one, likewise.
        size_bytes: of the batches.
        leader_epoch: in which they were staged.
        place: the path of a file with the batches, or of a tier what its manifest will say of the segment.
    """

    log: TopicPartition
    topic_id: TopicId
    base_offset: int
    end_offset: int
    size_bytes: int
    leader_epoch: int
    place: str | StoredSegment


@dataclass(frozen=True, slots=True)
class Span:
    """Closed segments of a log that shall be replaced: offsets [start, end), borders of segments.

    Attributes:
        log: whose.
        topic_id: of its topic.
        start: base offset of the first segment.
        end: end offset of the last one.
        borders: the offsets where its segments begin, and the end.
        leader_epoch: in which the replacement is written.
        digest: what tells at the commit whether they are still the same.
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
    """Small segments of a log that could be fewer.

    Attributes:
        span: in which they are.
        groups: what should become one segment each, ascending: offsets [start, end), and the bytes of its ``.log`` files.
    """

    span: Span
    groups: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """What one commit did to one log: records at the offsets [base_offset, end_offset).

    ``duplicate`` says that this round of the writer was there already, so that nothing was done; the offsets are then
    both the log's end.
    """

    log: TopicPartition
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What one task made of a part of a span.

    Attributes:
        staged: what takes the place of segments.
        segments: in whose place it is: all of the part, but for ``BulkWriter.recode`` and ``merge``, which leave some alone.
        records_read: in these.
        records_kept: of them.
        bytes_read: of their ``.log`` files.
        bytes_written: of those that were staged.
    """

    staged: tuple[StagedSegment, ...]
    segments: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
