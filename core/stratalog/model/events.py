"""What listeners are told, after the fact: one frozen value an event, so that fields can be added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.model.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpened:
    """A log was opened and serves readers."""

    log: TopicPartition
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovered:
    """A log that was not closed cleanly was checked; ``truncated_bytes`` were cut at its tail."""

    log: TopicPartition
    segments: int
    truncated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRolled:
    """The active segment was closed at ``base_offset`` of the new one."""

    log: TopicPartition
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOffloaded:
    """A closed segment is in the tier, and a manifest root says so."""

    log: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvicted:
    """A local segment went; the tier has it."""

    log: TopicPartition
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaned:
    """Compaction rewrote closed segments of a log; what stood in [``dirty_start``, ``end``) was not compacted before.

    ``map_load`` is the share of the cleaner's memory that the keys filled. ``part`` is "local", or "tier" for what is
    committed there.
    """

    log: TopicPartition
    bytes_before: int
    bytes_after: int
    records_before: int = 0
    records_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    dirty_start: int = 0
    end: int = 0
    map_load: float = 0.0
    elapsed_ms: int = 0
    part: str = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUncleanable:
    """A log is not compacted any more until it is opened again."""

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted:
    """Retention deleted segments below ``log_start``; no tier has them any more."""

    log: TopicPartition
    log_start: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFenced:
    """Another writer took over the log's tier with a higher epoch."""

    log: TopicPartition
    leader_epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirOffline:
    """An I/O error took a log directory out of service."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backpressure:
    """Appends are slowed or refused, because of ``reason``."""

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySegments:
    """A topic was made, or changed, so that its segments are tiny for the tier that they go to; ``reason`` says what it costs."""

    topic: str
    segment_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUnavailable:
    """The engine goes on without its tier: the store was away when it was opened, or came back other than it was."""

    uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAvailable:
    """The store of the tier is back; each log goes on with it as soon as its head has been read."""

    uri: str


Event: TypeAlias = (
    LogOpened
    | LogRecovered
    | SegmentRolled
    | SegmentOffloaded
    | SegmentEvicted
    | LogCleaned
    | LogUncleanable
    | SegmentsDeleted
    | EpochFenced
    | LogDirOffline
    | Backpressure
    | TinySegments
    | TierUnavailable
    | TierAvailable
)
