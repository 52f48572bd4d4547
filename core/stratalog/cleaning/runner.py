"""Carrying out what cleanup policies plan: they choose, this module deletes.

Order: the tier's manifest first, then local files, then the tier's objects. A local segment of a tiered log goes only
when a manifest root names it or the log start has passed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.cleaning.summary import evictable, summarise
from stratalog.log.log import Log
from stratalog.model.events import SegmentEvicted, SegmentsDeleted
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import Action, CleanupPolicy, DeletePrefix, LogSummary
from stratalog.tier.log import TierLog


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What one pass did, or would do, to one log.

    ``deleted_*`` are gone from every tier, ``evicted_*`` from local disk alone. ``reasons`` are the policies' words.
    """

    log: TopicPartition
    log_start: int
    deleted_segments: int
    deleted_bytes: int
    evicted_segments: int
    evicted_bytes: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Everything below ``end`` goes; 0 is nothing."""

    end: int
    reasons: tuple[str, ...]


def plan_retention(
    log: Log, policies: Mapping[str, CleanupPolicy], *, has_tier: bool, now_ms: int
) -> tuple[Sequence[Action], Sequence[Action]]:
    """What the policies want: for the whole log, and for its local part."""
    summary = summarise(log, has_tier=has_tier)
    total = [action for policy in policies.values() for action in policy.plan(summary, log.config, now_ms)]
    if not has_tier:
        return total, ()
    local_summary = evictable(summary)
    local = [action for policy in policies.values() for action in policy.local_plan(local_summary, log.config, now_ms)]
    return total, local


def apply_retention(
    log: Log, policies: Mapping[str, CleanupPolicy], tier: TierLog | None, *, now_ms: int, dry_run: bool = False
) -> RetentionResult:
    """One pass over one log."""
    total, local = plan_retention(log, policies, has_tier=tier is not None, now_ms=now_ms)
    before = summarise(log, has_tier=tier is not None)
    follows_tier = tier is not None and not log.is_leader  # its leader says what goes, from the tier too
    whole = _cut(() if follows_tier else total, before.offsets.high_watermark)
    deleted = [
        segment
        for segment in before.segments
        if segment.end_offset <= whole.end and (segment.size_bytes or not segment.is_active)
    ]
    remote_end = tier.view().end_offset if tier is not None else 0
    evict = _cut(local, remote_end)
    evicted = [
        segment
        for segment in before.segments
        if segment.is_local and not segment.is_active and whole.end < segment.end_offset <= evict.end
    ]
    result = RetentionResult(
        log=log.name,
        log_start=max(before.offsets.log_start, whole.end),
        deleted_segments=len(deleted),
        deleted_bytes=sum(segment.size_bytes for segment in deleted),
        evicted_segments=len(evicted),
        evicted_bytes=sum(segment.size_bytes for segment in evicted),
        reasons=(whole.reasons if deleted else ()) + (evict.reasons if evicted else ()),
    )
    if not dry_run:
        _execute(log, tier, before, whole, max(evict.end if evicted else 0, whole.end), result)
    return result


def _cut(actions: Sequence[Action], limit: int) -> _Cut:
    """How far the prefix deletions go, but never past ``limit``, whatever a policy wants."""
    prefixes = [action for action in actions if isinstance(action, DeletePrefix)]
    end = max((min(action.end, limit) for action in prefixes), default=0)
    return _Cut(end, tuple(dict.fromkeys(action.reason for action in prefixes)))


def _execute(
    log: Log, tier: TierLog | None, before: LogSummary, whole: _Cut, local_end: int, result: RetentionResult
) -> None:
    notify = log.notify
    if whole.end > before.offsets.log_start:
        log.raise_log_start(whole.end)
    if tier is not None and whole.end:
        tier.expire(whole.end, leader_epoch=log.leader_epoch, reason="; ".join(whole.reasons))
        log.refresh_remote()
    if result.deleted_segments:
        notify(
            SegmentsDeleted(
                log=log.name,
                log_start=result.log_start,
                segments=result.deleted_segments,
                size_bytes=result.deleted_bytes,
            )
        )
    for segment in log.drop_local(local_end) if local_end else ():
        if segment.end_offset > whole.end:
            notify(SegmentEvicted(log=log.name, base_offset=segment.base_offset, size_bytes=segment.size_bytes))
    log.remove_left()
