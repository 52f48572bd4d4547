"""Events for listeners. A listener receives an event, one value, after the change that the event describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.model.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpened:
    """Event: a log was opened and serves readers."""

    log: TopicPartition
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovered:
    """Event: a log was recovered after an unclean stop, and ``truncated_bytes`` bytes were truncated at its end.

    ``segments`` is the number of segments that were checked.
    """

    log: TopicPartition
    segments: int
    truncated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRolled:
    """Event: the active segment was closed, and a new active segment starts at ``base_offset``."""

    log: TopicPartition
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOffloaded:
    """Event: a closed segment was uploaded to the tier, and a committed manifest root names it."""

    log: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvicted:
    """Event: a segment was removed from local disk; the tier still has the segment."""

    log: TopicPartition
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaned:
    """Event: compaction rewrote closed segments of a log.

    The offsets in [``dirty_start``, ``end``) were not compacted before.

    ``map_load`` is the share (0 to 1) of the cleaner's memory that the keys used. ``part`` is "local" for segments on
    local disk, and "tier" for segments that are committed in the tier.
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
    """Event: compaction of a log failed, on local disk or in the tier.

    This part of the log is not compacted until the log is opened again.
    """

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted:
    """Event: retention deleted all segments below ``log_start``, on local disk and in the tier."""

    log: TopicPartition
    log_start: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFenced:
    """Event: another writer took over the log's tier. The log can only be read from now on.

    ``leader_epoch`` is the epoch of this log, not of the other writer.
    """

    log: TopicPartition
    leader_epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirOffline:
    """Event: a log directory is out of service after an I/O error, or was unusable when the engine was opened."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backpressure:
    """Event: an append would exceed ``local.hard.limit.bytes``; ``tier.outage.policy`` decides what the append does."""

    log: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySegments:
    """Event: a new or changed topic has segments that are too small for its tier; ``reason`` describes the cost."""

    topic: str
    segment_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUnavailable:
    """Event: the engine continues without its tier, because the store is unavailable or not trusted.

    The engine tests a store that becomes available again. A store is not trusted if it declares atomic creation, but a
    test shows that its creation is not atomic.
    """

    uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAvailable:
    """Event: the store of the tier is available again. Each log uses the tier after it has read the log's manifest."""

    uri: str


Event: TypeAlias = (
    LogOpened | LogRecovered | SegmentRolled | SegmentOffloaded | SegmentEvicted | LogCleaned | LogUncleanable |
    SegmentsDeleted | EpochFenced | LogDirOffline | Backpressure | TinySegments | TierUnavailable | TierAvailable
)  # fmt: skip
