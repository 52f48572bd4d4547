"""Events for listeners, sent after the fact. Each event is one frozen value, because fields may be added later."""

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
    """A log that was not closed cleanly was checked, and ``truncated_bytes`` were truncated at its end."""

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
    """A closed segment is in the tier, and a manifest root names it."""

    log: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvicted:
    """A local segment was deleted; the tier has it."""

    log: TopicPartition
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaned:
    """Compaction rewrote closed segments of a log; the offsets in [``dirty_start``, ``end``) were not compacted before.

    ``map_load`` is the share of the cleaner's memory that the keys filled. ``part`` is "local", or "tier" for segments
    that are committed in the tier.
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
    """Compaction of a log has stopped until the log is opened again."""

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted:
    """Retention deleted segments below ``log_start``; the tier no longer has them either."""

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
    """Appends are delayed or refused, because of ``reason``."""

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySegments:
    """A new or changed topic has segments that are too small for its tier; ``reason`` describes the cost."""

    topic: str
    segment_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUnavailable:
    """The engine continues without its tier: the store was unavailable when it was opened, or is no longer trusted.

    A store that comes back is tested again. It is not trusted if it declares atomic creates but fails the test.
    """

    uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAvailable:
    """The store of the tier is available again. Each log uses it as soon as its manifest has been read."""

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
