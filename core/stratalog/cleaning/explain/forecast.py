"""Forecast of cleaning for a log that is opened for reading only: plans of its policies, without a compaction round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.cleaning.explain.explain import Fate, RangeFate, deletion_times, range_fate, removal_fate
from stratalog.cleaning.plan.policy_actions import rewriters
from stratalog.cleaning.plan.retention import plan_retention
from stratalog.config.topic import TopicConfig
from stratalog.log.read.log_reader import LogReader
from stratalog.spi.cleanup import CleanupPolicy, LogSummary, Rewrite, SegmentSummary


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of the next retention pass and compaction round over a log.

    Attributes:
        segments: the segments, oldest first. In a tier with very many segments, one item may describe all segments of a
            manifest page.
        ranges: fate of each item of ``segments``. ``Fate.COMPACT`` means that the compaction round reads the
            segment; ``freed_bytes`` is then 0, because the freed size is not known before the round.
        dirty_ratio: share of the closed segments' bytes that were not compacted yet, from 0 to 1; None if no policy
            compacts the log.
    """

    segments: tuple[SegmentSummary, ...]
    ranges: tuple[RangeFate, ...]
    dirty_ratio: float | None


def forecast(
    log: LogReader,
    config: TopicConfig,
    policies: Mapping[str, CleanupPolicy],
    *,
    has_tier: bool,
    now_ms: int,
    dirty_start: int | None = None,
) -> Forecast:
    """Return the forecast of a log of a reader. Reads no records and changes nothing.

    For a log of an engine, ``explain`` returns more exact results. ``has_tier`` is True if closed segments go to a
    tier. ``dirty_start`` is the first dirty offset of the local part, from the cleaner's checkpoint file; None if
    unknown.

    Raises:
        PluginError: a policy is wrong.
        StorageError: the log's tier cannot be read.
    """
    plan = plan_retention(log, config, policies, has_tier=has_tier, now_ms=now_ms, dirty_start=dirty_start)
    summary = plan.summary
    rewrites = [action for action in plan.total if isinstance(action, Rewrite)] if rewriters(policies) else []
    times_by_base = deletion_times(summary, policies, config, now_ms)
    ranges = list[RangeFate]()
    for segment in summary.segments:
        when_ms = times_by_base.get(segment.base_offset)
        rewrite = next((action for action in rewrites if action.start <= segment.base_offset < action.end), None)
        removed = removal_fate(segment, plan.removal, times_by_base, now_ms)
        if removed is not None:
            fate = removed
        elif rewrite is not None:
            fate = range_fate(segment, Fate.COMPACT, when_ms, rewrite.reason, 0)
        else:
            reasons = plan.reasons_to_keep(segment)
            fate = range_fate(segment, Fate.KEEP, when_ms, "; ".join(dict.fromkeys(reasons)), 0)
        ranges.append(fate)
    return Forecast(summary.segments, tuple(ranges), _dirty_ratio(summary) if rewriters(policies) else None)


def _dirty_ratio(summary: LogSummary) -> float:
    closed = [segment for segment in summary.segments if not segment.is_active]
    starts = {True: summary.tier_dirty_start, False: summary.dirty_start or 0}  # by SegmentSummary.is_remote
    dirty_bytes = sum(segment.size_bytes for segment in closed if segment.end_offset > starts[segment.is_remote])
    return dirty_bytes / max(sum(segment.size_bytes for segment in closed), 1)
