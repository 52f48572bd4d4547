"""Cleanup policies: they plan, the core executes. Pure, no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Fields, RecordColumns


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One segment as a policy sees it; offsets are [base_offset, end_offset).

    ``age_from_ms`` is the largest record timestamp, or the file's time if no record has one. A segment may be
    ``is_local``, ``is_remote``, or both; ``is_active`` is the one that is appended to. ``first_timestamp_ms`` is the
    largest timestamp of its first batch, looked up only for closed segments of topics that set
    ``max.compaction.lag.ms``; else, and if there is none, -1.
    ``size_bytes`` of one in the tier whose end local disk has too, in segments with other borders, is the share of what it
    alone has: sums count nothing twice.
    Of a tier of very many segments some stand as one, ``is_page``: its time is that of the newest of them, and a prefix
    that ends inside it is asked for again when they are looked at one by one.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    age_from_ms: int
    is_local: bool
    is_remote: bool
    is_active: bool
    first_timestamp_ms: int = -1
    is_page: bool = False


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log as a policy sees it: all segments of both tiers, oldest first.

    They do not overlap, but for one in the tier whose end local disk has under other borders.

    ``dirty_start`` is the first offset that was not compacted yet, as the cleaner's checkpoint says; None if it never
    was. Log start and end may have passed it since. ``tier_dirty_start`` is the same of the part that the tier has, as its
    manifest says: what local disk has alone, and what was committed, are compacted each for itself.
    """

    log: TopicPartition
    offsets: LogOffsets
    segments: tuple[SegmentSummary, ...]
    has_tier: bool
    dirty_start: int | None = None
    tier_dirty_start: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave [start, end) as it is."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete [start, end); ``start`` is the log's first offset, ``end`` a segment's end or the new log start."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Compact [start, end): ``dirty_start`` is the first offset not compacted before.

    Both ends are those of closed segments, all of which the tier has, or none: a plan may hold one of each kind. Of several
    logs the one with the greatest ``dirty_ratio`` has its turn first.
    """

    start: int
    end: int
    dirty_start: int
    reason: str
    dirty_ratio: float = 0.0


Action: TypeAlias = Keep | DeletePrefix | Rewrite


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """One compaction round as a filter sees it.

    ``memory_bytes`` is what the filter may use for what it remembers, of which it may fill ``load_factor`` if that is a
    hash table (``log.cleaner.dedupe.buffer.size`` of a thread, ``log.cleaner.io.buffer.load.factor``). ``config`` holds
    the topic's settings, those of plugins among them. ``secret`` is 16 bytes that only the log's files hold, the same in
    every round, for digests; empty if nobody wants any.
    """

    log: TopicPartition
    start: int
    end: int
    dirty_start: int
    now_ms: int
    memory_bytes: int
    load_factor: float = 0.9
    config: TopicConfig = field(default_factory=TopicConfig)
    secret: bytes = b""


class RecordFilter(ABC):
    """Judges data records; the core has removed control and aborted batches. Offsets ascend.

    One thread uses it, for one round: first all of pass 1, then all of pass 2.

    A filter that names a ``digest_kind`` spares later rounds the reading of segments that they would leave as they are:
    it sums up the records that it judges, and a later filter of the same kind tells by that whether it would drop any.

    Attributes:
        fields: the columns it looks at; the others may be absent.
        digest_kind: names the bytes of its digests, their version among them (at most 64 ASCII characters, persistent);
            "" if it makes none: then every segment is read in every round.
    """

    fields: ClassVar[Fields] = Fields.ALL
    digest_kind: str = ""

    @abstractmethod
    def observe(self, records: RecordColumns) -> int:
        """Pass 1, over the dirty range: how many of the records it took, from the first on.

        Fewer than there are: memory is full, and the round ends before the first that was not taken. A filter that
        takes none of a whole round makes no progress: the core then gives the log up and says so.
        """

    @abstractmethod
    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Pass 2, over everything below the round's end: write one ``Verdict`` a record into ``verdicts``.

        DROP_AT_HORIZON is for tombstones: the core keeps them for ``delete.retention.ms`` after the first round that
        met them, and then drops them.
        """

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """In pass 2, what sums up records judged KEEP or DROP_AT_HORIZON since it was asked last; default: nothing.

        Asked after each piece of a segment, so that it need not hold much; at the ``end`` of the segment it gives all the
        rest, one section at least. It may tell of more records than stay, never of fewer.
        """
        del end
        return ()

    def spares(self, section: memoryview) -> bool:
        """After pass 1, whether it would judge KEEP or DROP_AT_HORIZON all records that a section sums up. Default: no.

        All of them are older than the dirty range. Whoever is not sure says no: then they are read.
        """
        del section
        return False

    @property
    def load(self) -> float:
        """The share of its memory that is in use, from 0 to 1; for people."""
        return 0.0


class CleanupPolicy(ABC):
    """Decides what goes. A DeletePrefix of one policy wins over a Rewrite of another."""

    @abstractmethod
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """What to do with each range, with a reason that a person reads. Ranges ascend and do not overlap."""

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """What may leave local disk because the tier has it; ``log`` holds only segments that do. Default: nothing."""
        del log, config, now_ms
        return ()

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """A filter for one round; only policies that rewrite have one."""
        raise NotImplementedError(f"{type(self).__name__} rewrites nothing, so it has no filter for {job.log}")
