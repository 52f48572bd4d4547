"""Cleanup policies: they plan, the core executes. Pure, no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import RecordColumns


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One segment as a policy sees it; offsets are [base_offset, end_offset).

    ``age_from_ms`` is the largest record timestamp, or the file's time if no record has one. A segment may be
    ``is_local``, ``is_remote``, or both; ``is_active`` is the one that is appended to.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    age_from_ms: int
    is_local: bool
    is_remote: bool
    is_active: bool


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log as a policy sees it: all segments of both tiers, oldest first, without overlap."""

    log: TopicPartition
    offsets: LogOffsets
    segments: tuple[SegmentSummary, ...]
    has_tier: bool


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
    """Compact [start, end): ``dirty_start`` is the first offset not compacted before."""

    start: int
    end: int
    dirty_start: int
    reason: str


Action: TypeAlias = Keep | DeletePrefix | Rewrite


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """One compaction round as a filter sees it. ``memory_bytes`` is what the filter may use."""

    log: TopicPartition
    start: int
    end: int
    dirty_start: int
    now_ms: int
    memory_bytes: int


class RecordFilter(ABC):
    """Judges data records; the core has removed control and aborted batches. Offsets ascend."""

    @abstractmethod
    def observe(self, records: RecordColumns) -> bool:
        """Pass 1, over the dirty range. False: memory is full, end the round after this batch."""

    @abstractmethod
    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Pass 2: write one ``Verdict`` a record into ``verdicts``."""


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
