"""What a cleanup policy sees of a log."""

from __future__ import annotations

from dataclasses import replace

from stratalog.log.reader import LogReader, summaries
from stratalog.spi.cleanup import LogSummary


def summarise(log: LogReader, *, has_tier: bool) -> LogSummary:
    """All segments of both tiers, oldest first."""
    view = log.view()
    return LogSummary(log=log.name, offsets=view.offsets, segments=summaries(view), has_tier=has_tier)


def evictable(summary: LogSummary) -> LogSummary:
    """The local part of a log alone: what local retention decides over."""
    return replace(summary, segments=tuple(segment for segment in summary.segments if segment.is_local))
