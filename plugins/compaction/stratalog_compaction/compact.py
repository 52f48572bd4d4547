"""Compacted topics: for each key the newest record stays.

Source: apache/kafka LogCleanerManager (cleanableOffsets, calculateCleanableBytes, maxCompactionDelay), LogToClean, Cleaner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from stratalog.spi import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    Fields,
    Keep,
    LogSummary,
    RecordColumns,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
    TopicConfig,
)
from stratalog_compaction.delete import below_log_start, plan_prefix
from stratalog_compaction.keymap import SLOT_BYTES, KeyMap, open_key_map

_SECRET_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class Dirt:
    """Which part of a log may be compacted, and how dirty it is.

    Offsets in [``dirty_start``, ``end``) were not compacted before, and may be; ``limit`` says what is in the way of more.
    ``clean_bytes`` and ``dirty_bytes`` are those of whole segments; the one where the dirt begins counts in both.
    """

    start: int
    dirty_start: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    limit: str
    overdue: bool

    @property
    def ratio(self) -> float:
        """The share of what may be compacted that is dirty."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class CompactPolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=compact``.

    Args:
        chance: where the secrets of the key maps come from.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Delete what lies below the log start; rewrite what may be compacted, if it is dirty enough or overdue."""
        actions = [action for action in plan_prefix(log, (below_log_start(log),)) if isinstance(action, DeletePrefix)]
        start = actions[0].end if actions else log.segments[0].base_offset if log.segments else 0
        left = [segment for segment in log.segments if segment.base_offset >= start]
        return [*actions, *plan_rewrite(log, left, config, now_ms)]

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """A filter that remembers the newest offset of each key of the dirty range."""
        return LatestWins(job, self._chance.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "little"))


class LatestWins(RecordFilter):
    """Drops a record if a later one of the dirty range has its key; and records without a key.

    The map takes no more memory than the round can fill: there is at most one key an offset.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE

    def __init__(self, job: RewriteJob, secret: bytes) -> None:
        allowed = job.memory_bytes // SLOT_BYTES
        self._usable = int(allowed * job.load_factor)
        wanted = int((job.end - job.dirty_start) / job.load_factor) + 2
        slots = max(min(allowed, wanted), 2)
        self._map: KeyMap = open_key_map(slots, min(max(self._usable, 1), slots - 1), secret)

    def observe(self, records: RecordColumns) -> int:
        """Remember the offsets of the keys."""
        return self._map.observe(records)

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """The newest of each key stays, a tombstone until its horizon."""
        self._map.judge(records, verdicts)

    @property
    def load(self) -> float:
        """Keys, of those that the memory it was given could hold."""
        return len(self._map) / self._usable if self._usable else 1.0


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_rewrite(log: LogSummary, left: Sequence[SegmentSummary], config: TopicConfig, now_ms: int) -> Iterator[Action]:
    """What happens to the segments that retention leaves."""
    if not left or left[-1].end_offset == left[0].base_offset:
        return
    own = [segment for segment in left if not segment.is_remote]
    if len(own) < len(left):
        border = own[0].base_offset if own else left[-1].end_offset
        yield Keep(left[0].base_offset, border, "segments in a tier are not compacted")
    if not own or own[-1].end_offset == own[0].base_offset:
        return
    start, end = own[0].base_offset, own[-1].end_offset
    dirt = find_dirt(log, own, config, now_ms)
    if dirt.end <= dirt.dirty_start:
        if dirt.dirty_start > start:
            yield Keep(start, dirt.dirty_start, "compacted, and nothing after it may be yet")
        if end > max(dirt.dirty_start, start):
            yield Keep(max(dirt.dirty_start, start), end, dirt.limit)
        return
    rule = f"dirty ratio {dirt.ratio:.2f}, min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio:g}"
    if dirt.overdue and dirt.dirty_bytes:
        rule = f"overdue by max.compaction.lag.ms={config.max_compaction_lag_ms}, {rule}"
    elif dirt.ratio <= config.min_cleanable_dirty_ratio:
        yield Keep(start, dirt.end, f"not dirty enough: {rule}")
        yield Keep(dirt.end, end, dirt.limit) if end > dirt.end else Keep(start, dirt.end, rule)
        return
    yield Rewrite(start, dirt.end, dirt.dirty_start, rule, dirt.ratio)
    if end > dirt.end:
        yield Keep(dirt.end, end, dirt.limit)


def find_dirt(log: LogSummary, segments: Sequence[SegmentSummary], config: TopicConfig, now_ms: int) -> Dirt:
    """The part of the local ``segments``, the last of which is active, that may be compacted."""
    dirty_start = max(_checked_dirty_start(log), segments[0].base_offset)
    closed, active = segments[:-1], segments[-1]
    dirty = [segment for segment in closed if segment.end_offset > dirty_start]
    bounds = [
        (active.base_offset, "the active segment"),
        (log.offsets.last_stable, f"above the last stable offset {log.offsets.last_stable}"),
    ]
    lag_ms = config.min_compaction_lag_ms
    young = next((found for found in dirty if lag_ms > 0 and found.age_from_ms > now_ms - lag_ms), None)
    if young is not None:
        bounds.append((young.base_offset, f"younger than min.compaction.lag.ms={lag_ms}"))
    limit, why = min(bounds, key=lambda bound: bound[0])
    limit = max(limit, dirty_start)
    end = next((found.base_offset for found in closed if found.end_offset > limit), active.base_offset)
    latest_ms = now_ms - config.max_compaction_lag_ms
    return Dirt(
        start=segments[0].base_offset,
        dirty_start=dirty_start,
        end=end,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.base_offset < dirty_start),
        dirty_bytes=sum(segment.size_bytes for segment in dirty if segment.base_offset < end),
        limit=why,
        overdue=any(0 < segment.first_timestamp_ms < latest_ms for segment in dirty),
    )


def _checked_dirty_start(log: LogSummary) -> int:
    """Where the cleaner's checkpoint says, unless the log has passed it or ends below it: then the log start."""
    found, offsets = log.dirty_start, log.offsets
    return found if found is not None and offsets.log_start <= found <= offsets.log_end else offsets.log_start
