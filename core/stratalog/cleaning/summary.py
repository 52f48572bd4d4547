"""What a cleanup policy sees of a log."""

from __future__ import annotations

from dataclasses import replace

from stratalog.config.keys import LONG_MAX
from stratalog.log.log import Log
from stratalog.log.reader import LogReader, summaries
from stratalog.log.view import LogView
from stratalog.segment.search import batch_at
from stratalog.spi.cleanup import LogSummary, SegmentSummary


def summarise(log: LogReader, *, has_tier: bool) -> LogSummary:
    """All segments of both tiers, oldest first."""
    view = log.view()
    dirty_start = log.cleaning.dirty_start if isinstance(log, Log) else None
    return LogSummary(
        log=log.name, offsets=view.offsets, segments=summaries(view), has_tier=has_tier, dirty_start=dirty_start
    )


def summarise_for_rewrite(log: Log, *, has_tier: bool) -> LogSummary:
    """The same, with what ``max.compaction.lag.ms`` goes by, if the topic sets it: that is read from the segments."""
    found = summarise(log, has_tier=has_tier)
    if log.config.max_compaction_lag_ms == LONG_MAX:
        return found
    view = log.view()
    dirty_start = found.dirty_start or 0
    return replace(found, segments=tuple(_with_first(one, view, log, dirty_start) for one in found.segments))


def _with_first(summary: SegmentSummary, view: LogView, log: Log, dirty_start: int) -> SegmentSummary:
    if summary.is_active or not summary.is_local or summary.end_offset <= dirty_start:
        return summary
    segment = next((one for one in view.segments if one.base_offset == summary.base_offset), None)
    first = None if segment is None else batch_at(segment, 0, log.parts)
    return summary if first is None else replace(summary, first_timestamp_ms=first.max_timestamp_ms)


def evictable(summary: LogSummary) -> LogSummary:
    """The local part of a log alone: what local retention decides over."""
    return replace(summary, segments=tuple(segment for segment in summary.segments if segment.is_local))
