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
    CleanupPolicy,
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
from stratalog_compaction.delete import below_log_start, plan_local, plan_prefix
from stratalog_compaction.keymap import SLOT_BYTES, KeyMap, mark_bytes, open_key_map

_SECRET_BITS: Final = 128
_MARKS_SHARE: Final = 32  # largest share of a round's memory that the marks may take, as 1/32


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The part of a log that may be compacted, offsets [``start``, ``end``), and its dirty ratio.

    Offsets in [``dirty_start``, ``end``) have not been compacted yet. ``limit`` is the reason why compaction ends at
    ``end``. ``clean_bytes`` and ``dirty_bytes`` are sizes of whole segments; the segment that contains ``dirty_start``
    counts in both. ``overdue`` is True if a dirty segment is older than max.compaction.lag.ms.
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
        """Dirty bytes divided by the sum of clean and dirty bytes; 0 if the sum is 0."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Limit(NamedTuple):
    """An offset at and above which no record is compacted, and the reason."""

    offset: int
    reason: str


class CompactPolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=compact``.

    Args:
        chance: source of the secrets of the key maps.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes segments below the log start, and rewrites the others if dirty enough or overdue.

        Segments in the tier and local segments are rewritten separately. Segments that may not be compacted yet are
        kept.
        """
        actions = [action for action in plan_prefix(log, (below_log_start(log),)) if isinstance(action, DeletePrefix)]
        start = actions[0].end if actions else log.segments[0].base_offset if log.segments else 0
        left = [segment for segment in log.segments if segment.base_offset >= start]
        return [*actions, *plan_rewrite(log, left, config, now_ms)]

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes local segments by local.retention.ms and local.retention.bytes, if the topic sets them."""
        return plan_local(log, config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that keeps the latest record of each key, by the offsets of the keys in the dirty range."""
        drawn = self._chance.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "little")
        return LatestWins(job, job.secret or drawn)


class LatestWins(RecordFilter):
    """Filter that drops a record if the dirty range has a later record with its key. It drops records without a key.

    The key map is not larger than the round can need: at most one key per dirty offset.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE

    def __init__(self, job: RewriteJob, secret: bytes) -> None:
        self._usable = int(job.memory_bytes // SLOT_BYTES * job.load_factor)
        marked = _marked(job, self._usable)
        allowed = (job.memory_bytes - mark_bytes(marked)) // SLOT_BYTES
        wanted = int((job.end - job.dirty_start) / job.load_factor) + 2
        slots = max(min(allowed, wanted), 2)
        usable = min(max(self._usable, 1), slots - 1)
        self._map: KeyMap = open_key_map(slots, usable, secret, sums_up=bool(job.secret), marked=marked)
        self.digest_kind = f"keys@1 {self._map.hash_name}" if job.secret else ""

    def observe(self, records: RecordColumns) -> int:
        """Store the latest offset of each key. Return the number of records processed before the map was full."""
        return self._map.observe(records)

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: keep the latest record of each key, and keep a tombstone until its horizon."""
        self._map.judge(records, verdicts)

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Return the finished sections of the digest of the keys of kept records; at the ``end``, all that are left.

        The result is empty if the job has no secret for the hashes of digests.
        """
        return self._map.digest(end=end)

    def spares(self, section: memoryview) -> bool:
        """Return True if the section contains no key of the dirty range, so that none of its records would be dropped."""
        return not self._map.holds_any_of(section)

    @property
    def load(self) -> float:
        """Number of keys in the map, divided by the number of keys for which the memory is sufficient."""
        return len(self._map) / self._usable if self._usable else 1.0


def _marked(job: RewriteJob, usable: int) -> range:
    """Return the offsets for which the key map keeps a bit.

    The range is empty if the bits would use too much memory, or memory that slots of the map need.
    """
    dirty = range(job.dirty_start, job.end)
    size = mark_bytes(dirty)
    is_little = size <= job.memory_bytes // _MARKS_SHARE and (job.memory_bytes - size) // SLOT_BYTES > usable
    return dirty if is_little else range(0)


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_rewrite(log: LogSummary, left: Sequence[SegmentSummary], config: TopicConfig, now_ms: int) -> Iterator[Action]:
    """Yield rewrites, and the reasons for keeping, for ``left``: the segments that are not deleted."""
    if not left or left[-1].end_offset == left[0].base_offset:
        return
    tiered = [segment for segment in left if segment.is_remote]
    if tiered:
        end = Limit(tiered[-1].end_offset, "the end of the tier")
        yield from _plan_part(log, tiered, end, checked(log, log.tier_dirty_start), config, now_ms)
    own = [segment for segment in left if not segment.is_remote]
    if own and own[-1].end_offset > own[0].base_offset:
        active = Limit(own[-1].base_offset, "the active segment")
        yield from _plan_part(log, own, active, checked(log, log.dirty_start), config, now_ms)


def _plan_part(
    log: LogSummary,
    part: Sequence[SegmentSummary],
    closed: Limit,
    checkpoint: int,
    config: TopicConfig,
    now_ms: int,
) -> Iterator[Action]:
    """Yield the actions for one part of the log: the segments in the tier, or the other segments.

    Each of these two parts is compacted on its own.
    """
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
    log: LogSummary,
    part: Sequence[SegmentSummary],
    closed: Limit,
    checkpoint: int,
    config: TopicConfig,
    now_ms: int,
) -> DirtyRange:
    """Return the range of consecutive segments that may be compacted: it ends at or below ``closed``.

    Records at and above ``checkpoint`` have not been compacted yet.
    """
    dirty_start = max(checkpoint, part[0].base_offset)
    whole = [segment for segment in part if not segment.is_active]
    dirty = [segment for segment in whole if segment.end_offset > dirty_start]
    bounds = [closed, Limit(log.offsets.last_stable, f"above the last stable offset {log.offsets.last_stable}")]
    lag_ms = config.min_compaction_lag_ms
    young = next((found for found in dirty if lag_ms > 0 and found.age_from_ms > now_ms - lag_ms), None)
    if young is not None:
        bounds.append(Limit(young.base_offset, f"younger than min.compaction.lag.ms={lag_ms}"))
    first = min(bounds, key=lambda bound: bound.offset)
    limit = max(first.offset, dirty_start)
    end = next((found.base_offset for found in whole if found.end_offset > limit), closed.offset)
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


def checked(log: LogSummary, found: int | None) -> int:
    """Return the offset ``found`` of a checkpoint; the log start if it is None, or not between the log's start and end."""
    offsets = log.offsets
    return found if found is not None and offsets.log_start <= found <= offsets.log_end else offsets.log_start
