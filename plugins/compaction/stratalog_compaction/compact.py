"""Cleanup policy ``compact``: keep the latest record of each key.

Source: apache/kafka LogCleanerManager (cleanableOffsets, calculateCleanableBytes, maxCompactionDelay), LogToClean,
Cleaner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from stratalog import RecordColumns
from stratalog.spi import (
    Action,
    DeletePrefix,
    Fields,
    Keep,
    LogSummary,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
    TopicConfig,
)
from stratalog_compaction.delete import RewritingPolicy, Rule, below_log_start, plan_prefix
from stratalog_compaction.keymap import SECRET_BYTES, SLOT_BYTES, KeyMap, mark_bytes, open_key_map

_MARKS_SHARE: Final = 32  # the marks, one bit for each offset, may use at most 1/32 of the memory


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """Range [``start``, ``end``) of offsets that may be compacted.

    Offsets at and above ``dirty_start`` were not compacted yet. If ``end`` is at or below ``dirty_start``, nothing can
    be compacted now. ``limit`` is the reason for ``end``. ``clean_bytes`` and ``dirty_bytes`` are sizes of whole
    segments. Both include the segment that contains ``dirty_start``. ``overdue`` is True if the first batch of a dirty
    segment is older than max.compaction.lag.ms.
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
        """Dirty bytes divided by the sum of clean and dirty bytes; 0.0 if the sum is 0."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Limit(NamedTuple):
    """Exclusive upper bound of the offsets that may be compacted, and the reason for the bound."""

    offset: int
    reason: str


class CompactPolicy(RewritingPolicy):
    """Kafka's ``cleanup.policy=compact``."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes segments below the log start offset, and compacts or keeps the other segments.

        Segments are compacted if their dirty ratio is above min.cleanable.dirty.ratio, or if a dirty segment is older
        than max.compaction.lag.ms. Segments in the tier and local segments are planned separately.
        """
        return plan_compaction(log, (below_log_start(log),), config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that drops a record if the dirty range has a later record with its key."""
        new_secret = self._chance.randbytes(SECRET_BYTES)
        return LatestWins(job, job.secret or new_secret)


class LatestWins(RecordFilter):
    """Filter that drops a record if the dirty range has a later record with its key. It drops records without a key."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE

    def __init__(self, job: RewriteJob, secret: bytes) -> None:
        self._usable = int(job.memory_bytes // SLOT_BYTES * job.load_factor)
        marked = _choose_marked_offsets(job, self._usable)
        max_slots = (job.memory_bytes - mark_bytes(marked)) // SLOT_BYTES
        needed_slots = int((job.end - job.dirty_start) / job.load_factor) + 2  # enough for one key per dirty offset
        slots = max(min(max_slots, needed_slots), 2)
        usable = min(max(self._usable, 1), slots - 1)
        self._map: KeyMap = open_key_map(slots, usable, secret, sums_up=bool(job.secret), marked=marked)
        self.digest_kind = f"keys@1 {self._map.hash_name}" if job.secret else ""

    def observe(self, records: RecordColumns) -> int:
        """Store the latest offset of each key.

        Return the number of processed records; if the map is full, some are left out.
        """
        return self._map.observe(records)

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP if its key is null, or if the dirty range has a later record with its key.

        A tombstone that is not dropped gets DROP_AT_HORIZON.
        """
        self._map.judge(records, verdicts)

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Return the finished digest sections of kept keys. At the ``end`` of a segment, add the incomplete section.

        If ``secret`` of the job is empty, the result is empty.
        """
        return self._map.digest(end=end)

    def spares(self, section: memoryview) -> bool:
        """Return True if the dirty range certainly has none of the keys in a digest section; otherwise False."""
        return not self._map.holds_any_of(section)

    @property
    def load(self) -> float:
        """Number of keys in the map, divided by the maximum number for this memory; 1.0 if the maximum is 0."""
        return len(self._map) / self._usable if self._usable else 1.0


def _choose_marked_offsets(job: RewriteJob, usable: int) -> range:
    """Return the offsets for which the key map has a bit: all dirty offsets, or none.

    There are no bits if they would leave too little memory for the slots, which contain the keys.
    """
    dirty = range(job.dirty_start, job.end)
    size = mark_bytes(dirty)
    is_little = size <= job.memory_bytes // _MARKS_SHARE and (job.memory_bytes - size) // SLOT_BYTES > usable
    return dirty if is_little else range(0)


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_compaction(log: LogSummary, rules: Sequence[Rule], config: TopicConfig, now_ms: int) -> Sequence[Action]:
    """Return a plan that deletes the oldest segments by rules, and compacts or keeps the other segments.

    Segments in the tier and local segments are planned separately.
    """
    actions = [action for action in plan_prefix(log, rules) if isinstance(action, DeletePrefix)]
    start = actions[0].end if actions else log.segments[0].base_offset if log.segments else 0
    # the first local segment may begin in the deleted part of the tier
    remaining = [segment for segment in log.segments if segment.base_offset >= start or segment.end_offset > start]
    return [*actions, *_plan_segments(log, remaining, config, now_ms)]


def _plan_segments(
    log: LogSummary, segments: Sequence[SegmentSummary], config: TopicConfig, now_ms: int
) -> Iterator[Action]:
    """Yield a Rewrite or Keep for each range of ``segments``. The plan does not delete these segments."""
    if not segments or segments[-1].end_offset == segments[0].base_offset:
        return
    tiered = [segment for segment in segments if segment.is_remote]
    if tiered:
        end = Limit(tiered[-1].end_offset, "the end of the tier")
        yield from _plan_part(log, tiered, end, check_checkpoint(log, log.tier_dirty_start), config, now_ms)
    local = [segment for segment in segments if not segment.is_remote]
    if local and local[-1].end_offset > local[0].base_offset:
        active = Limit(local[-1].base_offset, "the active segment")
        yield from _plan_part(log, local, active, check_checkpoint(log, log.dirty_start), config, now_ms)


def _plan_part(
    log: LogSummary, part: Sequence[SegmentSummary], closed: Limit, checkpoint: int, config: TopicConfig, now_ms: int
) -> Iterator[Action]:
    """Yield the actions for the local or the tier part of a log."""
    start, end = part[0].base_offset, part[-1].end_offset
    dirty = find_dirty_range(log, part, closed, checkpoint, config, now_ms)
    if dirty.end <= dirty.dirty_start:
        if dirty.dirty_start > start:
            yield Keep(start, dirty.dirty_start, "compacted; nothing after it can be compacted yet")
        if end > max(dirty.dirty_start, start):
            yield Keep(max(dirty.dirty_start, start), end, dirty.limit)
        return
    rule = f"dirty ratio {dirty.ratio:.2f}, min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio:g}"
    if dirty.overdue and dirty.dirty_bytes:
        rule = f"overdue by max.compaction.lag.ms={config.max_compaction_lag_ms}, {rule}"
    elif dirty.ratio <= config.min_cleanable_dirty_ratio:
        yield Keep(start, dirty.end, f"not dirty enough: {rule}")
        if end > dirty.end:
            yield Keep(dirty.end, end, dirty.limit)
        return
    yield Rewrite(start, dirty.end, dirty.dirty_start, rule, dirty.ratio)
    if end > dirty.end:
        yield Keep(dirty.end, end, dirty.limit)


def find_dirty_range(
    log: LogSummary, part: Sequence[SegmentSummary], closed: Limit, checkpoint: int, config: TopicConfig, now_ms: int
) -> DirtyRange:
    """Return the offset range of ``part`` that may be compacted.

    The range ends at the end offset of a segment, at or below ``closed``. The last stable offset and
    min.compaction.lag.ms may lower the end. Records at and above ``checkpoint`` were not compacted yet.
    """
    dirty_start = max(checkpoint, part[0].base_offset)
    closed_segments = [segment for segment in part if not segment.is_active]
    dirty = [segment for segment in closed_segments if segment.end_offset > dirty_start]
    bounds = [closed, Limit(log.offsets.last_stable, f"above the last stable offset {log.offsets.last_stable}")]
    lag_ms = config.min_compaction_lag_ms
    young_segment = next((segment for segment in dirty if lag_ms > 0 and segment.age_from_ms > now_ms - lag_ms), None)
    if young_segment is not None:
        bounds.append(Limit(young_segment.base_offset, f"younger than min.compaction.lag.ms={lag_ms}"))
    first = min(bounds, key=lambda bound: bound.offset)
    limit = max(first.offset, dirty_start)
    end = next((segment.base_offset for segment in closed_segments if segment.end_offset > limit), closed.offset)
    latest_ms = now_ms - config.max_compaction_lag_ms
    return DirtyRange(
        start=part[0].base_offset,
        dirty_start=dirty_start,
        end=end,
        clean_bytes=sum(segment.size_bytes for segment in part if segment.base_offset < dirty_start),
        dirty_bytes=sum(segment.size_bytes for segment in dirty if segment.base_offset < end),
        limit=first.reason,
        overdue=any(0 < segment.first_timestamp_ms < latest_ms for segment in dirty),
    )


def check_checkpoint(log: LogSummary, checkpoint: int | None) -> int:
    """Return the offset ``checkpoint``. If it is None or not in [log start, log end], return the log start."""
    offsets = log.offsets
    return (
        checkpoint
        if checkpoint is not None and offsets.log_start <= checkpoint <= offsets.log_end
        else offsets.log_start
    )
