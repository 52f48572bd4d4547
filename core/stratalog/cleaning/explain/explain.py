"""Explanation of when and why cleaning deletes, evicts, compacts or keeps each range of a log.

The explanation uses a dry run of retention, a compaction round that writes nothing, and plans of the policies for later
times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from stratalog.cleaning.compact.compaction_round import CleanerLimits
from stratalog.cleaning.explain.preview import PlannedSegment, RoundPreview, preview
from stratalog.cleaning.plan.compaction_plan import CompactionPlan, plan_parts
from stratalog.cleaning.plan.retention import Removal, RetentionPlan, plan_pass
from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.records import Fields
from stratalog.spi.cleanup import CleanupPolicy, DeletePrefix, LogSummary, SegmentSummary
from stratalog.tier.tier_log import TierLog

HORIZON_MS: Final = 1000 * 365 * 86_400_000  # a segment that is deleted only after this time counts as kept for good
_MAX_SEGMENTS: Final = 100  # number of oldest segments whose deletion time is searched, with about 45 plans each


class Fate(StrEnum):
    """Effect of the next retention pass and compaction round on a range of offsets.

    ``Fate.EVICT`` deletes only the local copy of a segment in the tier.
    """

    DELETE = "delete"
    EVICT = "evict"
    COMPACT = "compact"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RangeFate:
    """Fate of one segment, or of adjacent segments that compaction merges, with the offsets [start, end).

    Attributes:
        where: "active", "local", "tier" or "local, tier".
        fate: effect of the next retention pass and compaction round.
        when_ms: time (ms since 1970) when retention will delete the range if no record is written meanwhile; the
            present time if the next pass deletes the range. None if no policy deletes the range within 1000 years, or
            if the log has 100 or more older segments.
        reason: reasons of the policies, for people; may be "".
        freed_bytes: bytes that the next retention pass or compaction round frees; for ``Fate.EVICT``, bytes on local
            disk.
    """

    start: int
    end: int
    where: str
    fate: Fate
    when_ms: int | None
    reason: str
    size_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class RecordFate:
    """Fate of one record. ``newer_offset`` is the offset of the next record with the same key, -1 if there is none."""

    offset: int
    fate: Fate
    newer_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one log: the fate of its ranges of offsets, and of the requested records."""

    ranges: tuple[RangeFate, ...]
    records: tuple[RecordFate, ...]


def explain(
    log: Log,
    policies: Mapping[str, CleanupPolicy],
    tier: TierLog | None,
    limits: CleanerLimits,
    now_ms: int,
    *,
    offset: int | None = None,
    key: bytes | None = None,
) -> Explanation:
    """Return the fates of the ranges of a log in the next retention pass and compaction rounds. Changes nothing.

    With ``offset`` or ``key``, the result contains only the ranges and the records with that offset or key. If both are
    given, ``key`` is ignored. If none is given, the result contains all ranges, but no records.

    Raises:
        StorageError: the retention pass or a compaction round would fail with this error.
    """
    newer_by_offset = _find_offsets(log, offset, key)
    retention, _ = plan_pass(log, policies, tier, now_ms=now_ms)
    plans = plan_parts(log, policies, tier, now_ms=now_ms)
    rounds = list[RoundEffect]()
    for plan in plans:
        if plan.error is not None:
            raise plan.error
        rounds.append(RoundEffect(plan, preview(plan, policies, limits, now_ms, sorted(newer_by_offset))))
    times_by_base = deletion_times(retention.summary, policies, log.config, now_ms)
    ranges = tuple(_range_fates(retention, rounds, times_by_base, now_ms))
    records = tuple(_record_fates(newer_by_offset, ranges, rounds, is_by_key=bool(plans)))
    if offset is not None or key is not None:
        ranges = tuple(
            item
            for item in ranges
            if any(
                item.start <= record_offset < item.end
                for record_offset in newer_by_offset or (offset,)
                if record_offset is not None
            )
        )
    return Explanation(ranges, records)


@dataclass(frozen=True, slots=True)
class RoundEffect:
    """Preview of the next compaction round over a log's local or tier part; ``preview`` is None if no round is due."""

    plan: CompactionPlan
    preview: RoundPreview | None

    def planned_segment_of(self, segment: SegmentSummary) -> PlannedSegment | None:
        """Return the planned segment that replaces ``segment`` or its group; None if ``segment`` is not replaced."""
        planned_segments = () if self.preview is None else self.preview.segments
        return next(
            (planned for planned in planned_segments if planned.start <= segment.base_offset < planned.end), None
        )


# --- ranges ----------------------------------------------------------------------------------------------------------


def _range_fates(
    retention: RetentionPlan, rounds: Sequence[RoundEffect], times_by_base: Mapping[int, int], now_ms: int
) -> list[RangeFate]:
    fates = list[RangeFate]()
    for segment in retention.summary.segments:
        if segment.base_offset == segment.end_offset:
            continue
        part = "tier" if segment.is_remote else "local"
        effect = next((item for item in rounds if item.plan.part == part), None)
        rewrite = None if effect is None else effect.plan.rewrite
        planned = None if effect is None else effect.planned_segment_of(segment)
        removed = removal_fate(segment, retention.removal, times_by_base, now_ms)
        if removed is not None:
            fates.append(removed)
        elif planned is not None and rewrite is not None:
            if planned.start == segment.base_offset:  # one range covers all segments of the group
                fate = range_fate(
                    segment, Fate.COMPACT, None, rewrite.reason, planned.bytes_before - planned.bytes_after
                )
                fates.append(replace(fate, end=planned.end, size_bytes=planned.bytes_before))
            if planned.end == segment.end_offset:
                fates[-1] = replace(fates[-1], when_ms=times_by_base.get(segment.base_offset))
        else:
            reasons = retention.reasons_to_keep(segment)
            if effect is not None and rewrite is None:
                reasons.append(effect.plan.reason)
            if rewrite is not None and segment.end_offset <= rewrite.end:
                reasons.append("compacted, and nothing in it is outdated")
            reason = "; ".join(dict.fromkeys(reasons))
            fates.append(range_fate(segment, Fate.KEEP, times_by_base.get(segment.base_offset), reason, 0))
    return fates


def removal_fate(
    segment: SegmentSummary, removal: Removal, times_by_base: Mapping[int, int], now_ms: int
) -> RangeFate | None:
    """Return the fate of a segment that the next retention pass deletes or evicts; None for other segments."""
    if segment in removal.deleted:
        return range_fate(segment, Fate.DELETE, now_ms, "; ".join(removal.deletion.reasons), segment.size_bytes)
    if segment in removal.evicted:
        when_ms, reason = times_by_base.get(segment.base_offset), "; ".join(removal.eviction.reasons)
        return range_fate(segment, Fate.EVICT, when_ms, reason, segment.size_bytes)
    return None


def range_fate(segment: SegmentSummary, fate: Fate, when_ms: int | None, reason: str, freed_bytes: int) -> RangeFate:
    """Return the fate of one segment, with the places (local, tier) that have the segment."""
    places = ("local",) * segment.is_local + ("tier",) * segment.is_remote
    where = "active" if segment.is_active else ", ".join(places)
    return RangeFate(
        segment.base_offset, segment.end_offset, where, fate, when_ms, reason, segment.size_bytes, freed_bytes
    )


def deletion_times(
    summary: LogSummary, policies: Mapping[str, CleanupPolicy], config: TopicConfig, now_ms: int
) -> dict[int, int]:
    """Return the time (ms since 1970) when retention will delete each of the 100 oldest segments, by base offset.

    A segment that no policy deletes within 1000 years has no entry.
    """

    def end(at_ms: int) -> int:
        plans = (policy.plan(summary, config, at_ms) for policy in policies.values())
        ends = (action.end for plan in plans for action in plan if isinstance(action, DeletePrefix))
        return min(max(ends, default=0), summary.offsets.high_watermark)

    times_by_base, low = dict[int, int](), now_ms
    last_end = end(now_ms + HORIZON_MS)
    for segment in summary.segments[:_MAX_SEGMENTS]:
        if segment.end_offset > last_end:
            break
        high = now_ms + HORIZON_MS
        if end(low) >= segment.end_offset:
            high = low
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if end(middle) >= segment.end_offset else (middle + 1, high)
        times_by_base[segment.base_offset] = high
    return times_by_base


# --- records ---------------------------------------------------------------------------------------------------------


def _find_offsets(log: Log, offset: int | None, key: bytes | None) -> dict[int, int]:
    """Return a mapping from the offset of each requested record to the offset of the next record with the same key.

    The value is -1 if there is no such record.
    """
    if offset is None and key is None:
        return {}
    searched_key = key
    if offset is not None:
        record = next(log.records(offset, offset + 1, isolation="log_end"), None)
        if record is None:
            return {}
        searched_key = record.key
        if searched_key is None:
            return {offset: -1}
    offsets = list[int]()
    for columns in log.columns(offset or 0, isolation="log_end", fields=Fields.OFFSET | Fields.KEY):
        offsets += [
            row_offset
            for row_offset, row_key in zip(columns.offset, columns.keys(), strict=True)
            if row_key == searched_key
        ]
    pairs = dict(zip(offsets, [*offsets[1:], -1], strict=False))
    return pairs if offset is None else {offset: pairs[offset]}


def _record_fates(
    newer_by_offset: Mapping[int, int], ranges: Sequence[RangeFate], rounds: Sequence[RoundEffect], *, is_by_key: bool
) -> list[RecordFate]:
    fates = list[RecordFate]()
    kept_offsets = frozenset[int]().union(*(item.preview.kept for item in rounds if item.preview is not None))
    for offset, newer in newer_by_offset.items():
        containing = next((item for item in ranges if item.start <= offset < item.end), None)
        if containing is None:
            continue
        fate, reason = containing.fate, containing.reason
        if fate is Fate.COMPACT and offset in kept_offsets:
            fate, reason = Fate.KEEP, "the next round of compaction keeps it"
        elif fate is Fate.COMPACT:
            reason = f"the next round of compaction drops it: {reason}"
        if is_by_key and newer >= 0:
            reason += f"; offset {newer} has its key too"
        fates.append(RecordFate(offset, fate, newer, reason))
    return fates
