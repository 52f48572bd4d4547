"""Summaries of logs, which are the arguments of cleanup policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stratalog.config.keys import LONG_MAX
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader, summaries
from stratalog.log.read.view import LogView
from stratalog.model.segment_info import share_bytes
from stratalog.segment.search import batch_at
from stratalog.spi.cleanup import LogSummary, SegmentSummary
from stratalog.tier.manifest.pages import page_of
from stratalog.tier.manifest.root import PageRef
from stratalog.tier.read.remote_segment import PagedSegments


def summarise(log: LogReader, *, has_tier: bool, detailed_to: int = 0, dirty_start: int | None = None) -> LogSummary:
    """Return the summary of a log with all segments, in the tier and local, oldest first.

    Args:
        log: a log of a reader or of an engine.
        has_tier: True if closed segments of the topic are offloaded.
        detailed_to: for a tier whose manifest has pages: pages that begin below this offset are read, and their
            segments are listed one by one. The summary has one item for each other page.
        dirty_start: first dirty offset of the local part, from the cleaner's checkpoint file; None if unknown. Ignored
            for a log of an engine, which knows the offset.
    """
    view = log.view()
    if view.remote is not None and isinstance(view.remote.segments, PagedSegments):
        all_segments = (*_coarse(view, view.remote.segments, detailed_to), *summaries(view._replace(remote=None)))
        remote_end = view.remote.end_offset
        segments = tuple(
            replace(segment, is_remote=True)
            if segment.is_local and not segment.is_active and segment.end_offset <= remote_end
            else segment
            for segment in all_segments
        )
    else:
        segments = summaries(view)
    if isinstance(log, Log):
        dirty_start = log.maintenance.cleaning.dirty_start
    return LogSummary(
        log=log.name,
        offsets=view.offsets,
        segments=segments,
        has_tier=has_tier,
        dirty_start=dirty_start,
        tier_dirty_start=0 if view.remote is None else view.remote.first_dirty_offset,
    )


def summarise_for_rewrite(log: Log, *, has_tier: bool) -> LogSummary:
    """Return the summary of a log for compaction.

    If the topic sets ``max.compaction.lag.ms``, the summary has the first timestamps of the local dirty segments and of
    the first dirty segment, which are read from the segments.

    Raises:
        StoreError: the first dirty segment is only in the tier, and the store failed.
    """
    summary = summarise(log, has_tier=has_tier)
    if log.config.max_compaction_lag_ms == LONG_MAX:
        return summary
    view, local_dirty = log.view(), summary.dirty_start or 0
    dirty = [
        segment
        for segment in summary.segments
        if not segment.is_active
        and segment.end_offset > (summary.tier_dirty_start if segment.is_remote else local_dirty)
    ]
    bases_to_read = {segment.base_offset for segment in dirty if segment.is_local}
    bases_to_read |= {segment.base_offset for segment in dirty[:1]}
    return replace(
        summary,
        segments=tuple(
            _add_first_timestamp(segment, view, log) if segment.base_offset in bases_to_read else segment
            for segment in summary.segments
        ),
    )


def _add_first_timestamp(summary: SegmentSummary, view: LogView, log: Log) -> SegmentSummary:
    segment = view.segment_at(summary.base_offset)
    first = None if segment is None else batch_at(segment, 0, log.components)
    return summary if first is None else replace(summary, first_timestamp_ms=first.max_timestamp_ms)


def _coarse(view: LogView, remote: PagedSegments, detailed_to: int) -> Iterator[SegmentSummary]:
    """Yield the segments and manifest pages of the tier below the first local segment."""
    local_start = view.segments[0].base_offset if view.segments else view.offsets.log_end
    for item in remote.coarse(detailed_to, local_start):
        page = item if isinstance(item, PageRef) else page_of(item)
        if page.base_offset >= local_start:
            return
        size_bytes = page.size_bytes
        if page.end_offset > local_start:  # the rest is on local disk, in segments with other bounds
            size_bytes = share_bytes(size_bytes, page.base_offset, page.end_offset, page.base_offset, local_start)
        yield SegmentSummary(
            base_offset=page.base_offset,
            end_offset=page.end_offset,
            size_bytes=size_bytes,
            age_from_ms=page.newest_ms,
            is_local=False,
            is_remote=True,
            is_active=False,
            is_page=isinstance(item, PageRef),
        )
