"""Retention: deletion and eviction of segments as the cleanup policies plan them.

A pass first commits the deletion in the tier's manifest, and then deletes local files. A later collection deletes the
objects in the tier. A local segment of a log with a tier is deleted only if the segment is in the tier or below the log
start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from stratalog.cleaning.plan.log_summary import summarise
from stratalog.cleaning.plan.policy_actions import actions_of, check_action, check_each
from stratalog.config.topic import TopicConfig
from stratalog.errors import PluginError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.events import SegmentsDeleted
from stratalog.model.names import TopicPartition
from stratalog.segment.segment import Segment
from stratalog.spi.cleanup import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, SegmentSummary
from stratalog.tier.tier_log import TierLog


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """Result of one retention pass over one log, or expected result in a dry run.

    Attributes:
        log_start: log start offset after the pass.
        deleted_segments: number of segments that were deleted from the log, on local disk or in the tier.
        evicted_segments: number of segments that were deleted from local disk and stay in the tier.
        rolled: True if the pass closed the active segment, because local retention applies to that segment. After its
            offload, a later pass evicts the segment.
    """

    log: TopicPartition
    log_start: int
    deleted_segments: int
    deleted_bytes: int
    evicted_segments: int
    evicted_bytes: int
    reasons: tuple[str, ...]
    rolled: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Exclusive end offset of a deletion from the start of a log, and its reasons; ``end`` 0 means no deletion."""

    end: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """Segments that one retention pass removes.

    Attributes:
        deletion: exclusive end offset of the deletion in the whole log.
        eviction: exclusive end offset of the eviction from local disk.
        deleted: segments that are deleted from the log: from local disk, and from the tier if it has them.
        evicted: segments that are deleted from local disk and stay in the tier.
    """

    deletion: Cut
    eviction: Cut
    deleted: frozenset[SegmentSummary]
    evicted: frozenset[SegmentSummary]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons of the policies for the deletion, if there is one, and then for the eviction."""
        return (self.deletion.reasons if self.deleted else ()) + (self.eviction.reasons if self.evicted else ())


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Plan of one retention pass over a log.

    Attributes:
        total: actions for the whole log.
        local: actions for the segments on local disk.
    """

    summary: LogSummary
    total: Sequence[Action]
    local: Sequence[Action]
    removal: Removal

    def reasons_to_keep(self, segment: SegmentSummary) -> list[str]:
        """Return the reasons of the policies to keep a segment, or some of its offsets."""
        keeps = (action for action in (*self.total, *self.local) if isinstance(action, Keep))
        return [keep.reason for keep in keeps if keep.start < segment.end_offset and segment.base_offset < keep.end]


def plan_retention(
    log: LogReader,
    config: TopicConfig,
    policies: Mapping[str, CleanupPolicy],
    *,
    has_tier: bool,
    now_ms: int,
    dirty_start: int | None = None,
) -> RetentionPlan:
    """Return the plan of the policies for one log. For a follower with a tier, the plan only evicts local segments.

    If the manifest of the tier has pages, the summary lists the segments one by one up to the end offset of the
    deletion, and then one item for each page. See ``summarise`` for ``dirty_start``.

    Raises:
        PluginError: a policy is wrong.
        StorageError: the tier cannot be read.
    """
    summary = summarise(log, has_tier=has_tier, dirty_start=dirty_start)
    while True:
        total, local = _plan_actions(config, policies, summary, now_ms)
        end = cut_of(total, summary.offsets.high_watermark).end
        following = next((segment for segment in summary.segments if segment.end_offset > end), None)
        if following is None or not following.is_page:
            break
        summary = summarise(log, has_tier=has_tier, detailed_to=following.end_offset, dirty_start=dirty_start)
    view = log.view()
    removed = () if has_tier and not view.is_leader else total  # only the leader deletes, locally and in the tier
    removal = _removal(summary, removed, local, config, view.remote_end if has_tier else 0)
    return RetentionPlan(summary, total, local, removal)


def _removal(
    summary: LogSummary, total: Sequence[Action], local: Sequence[Action], config: TopicConfig, remote_end: int
) -> Removal:
    """Return the segments that a pass removes.

    ``total`` are the actions for the whole log, and ``local`` those for the segments on local disk.
    ``remote_end`` is the exclusive end offset of the tier: no segment with a higher end offset is evicted.
    """
    deletion = cut_of(total, summary.offsets.high_watermark)
    local_segments = [segment for segment in summary.segments if segment.is_local]
    eviction = cut_of(local, remote_end)
    relief = _relief_cut(local_segments, config.local_hard_limit_bytes, remote_end)
    eviction = Cut(max(eviction.end, relief.end), (*eviction.reasons, *relief.reasons))
    return Removal(
        deletion,
        eviction,
        frozenset(
            segment
            for segment in summary.segments
            if segment.end_offset <= deletion.end and (segment.size_bytes or not segment.is_active)
        ),
        frozenset(
            segment
            for segment in local_segments
            if not segment.is_active and deletion.end < segment.end_offset <= eviction.end
        ),
    )


def find_deletion_end(
    log: Log, policies: Mapping[str, CleanupPolicy], summary: LogSummary, actions: Mapping[str, Sequence[Action]]
) -> int:
    """Return the end offset up to which the next retention pass deletes segments; 0 if it deletes none or fails.

    ``actions`` are the actions of each policy for the whole log.
    """
    if summary.has_tier and not log.is_leader:
        return 0  # only the leader of the log deletes
    try:
        for name, planned in actions.items():
            check_each(name, policies[name], summary, planned, check_action)
    except PluginError:
        return 0
    end = cut_of([*chain(*actions.values())], summary.offsets.high_watermark).end
    return max((segment.end_offset for segment in summary.segments if segment.end_offset <= end), default=0)


def _plan_actions(
    config: TopicConfig, policies: Mapping[str, CleanupPolicy], summary: LogSummary, now_ms: int
) -> tuple[Sequence[Action], Sequence[Action]]:
    total = actions_of(policies, summary, lambda policy: policy.plan(summary, config, now_ms), check_action)
    if not summary.has_tier:
        return [*chain(*total.values())], ()
    local_summary = replace(summary, segments=tuple(segment for segment in summary.segments if segment.is_local))
    local = actions_of(
        policies, local_summary, lambda policy: policy.local_plan(local_summary, config, now_ms), check_action
    )
    return [*chain(*total.values())], [*chain(*local.values())]


def apply_retention(
    log: Log, policies: Mapping[str, CleanupPolicy], tier: TierLog | None, *, now_ms: int, dry_run: bool = False
) -> RetentionResult:
    """Run one retention pass over one log.

    Raises:
        PluginError: a policy is wrong, and nothing was deleted. Unless this is a dry run, the local part of the log is
            uncleanable now: compaction skips it until the log is opened again.
        StorageError: the tier or the disk failed. The log start may be higher already; the next pass continues.
    """
    try:
        plan, result = plan_pass(log, policies, tier, now_ms=now_ms)
    except PluginError as error:
        if not dry_run:
            log.maintenance.mark_uncleanable(error)
        raise
    if not dry_run:
        _execute(log, tier, plan, result)
    return result


def plan_pass(
    log: Log, policies: Mapping[str, CleanupPolicy], tier: TierLog | None, *, now_ms: int
) -> tuple[RetentionPlan, RetentionResult]:
    """Return the plan of one retention pass over one log, and its expected result. Changes nothing.

    Raises:
        PluginError: a policy is wrong.
        StorageError: the tier cannot be read.
    """
    plan = plan_retention(log, log.config, policies, has_tier=tier is not None, now_ms=now_ms)
    removal = plan.removal
    result = RetentionResult(
        log=log.name,
        log_start=max(plan.summary.offsets.log_start, removal.deletion.end),
        deleted_segments=len(removal.deleted),
        deleted_bytes=sum(segment.size_bytes for segment in removal.deleted),
        evicted_segments=len(removal.evicted),
        evicted_bytes=sum(segment.size_bytes for segment in removal.evicted),
        reasons=removal.reasons,
        rolled=tier is not None and _rolls(log, plan),
    )
    follows_tier = tier is not None and not log.is_leader
    if not (removal.deleted or removal.evicted or result.rolled or follows_tier):
        _check_deletes(policies, plan.summary, plan.total)
    return plan, result


def _check_deletes(policies: Mapping[str, CleanupPolicy], before: LogSummary, total: Sequence[Action]) -> None:
    """Raise PluginError if the end of each planned deletion is at or below the log start: they delete nothing."""
    log_start = before.offsets.log_start
    prefixes = [action for action in total if isinstance(action, DeletePrefix)]
    if prefixes and all(action.end <= log_start for action in prefixes):
        raise PluginError(
            f"cleanup.policy={','.join(policies)} plans {prefixes[0]} of {before.log}, which deletes nothing: the log "
            f"starts at {log_start}. Correct the policy, which must plan a DeletePrefix only above the log start or "
            "over whole segments, or choose another policy with `stratalog topics alter`; then open the log again"
        )


def _rolls(log: Log, plan: RetentionPlan) -> bool:
    """Return True if local retention applies to the active segment, which must first be closed and offloaded.

    Source: apache/kafka UnifiedLog.deleteOldSegments (deletableSegments, shouldRoll).
    """
    offsets, segments, end = plan.summary.offsets, plan.summary.segments, plan.removal.deletion.end
    active = segments[-1] if segments else None
    if active is None or not active.is_active or not active.size_bytes or log.config.remote_log_copy_disable:
        return False
    is_next = max(end, log.view().remote_end) >= active.base_offset
    return is_next and end < offsets.log_end <= cut_of(plan.local, offsets.high_watermark).end


def cut_of(actions: Sequence[Action], limit: int) -> Cut:
    """Return the greatest end of all DeletePrefix actions, but at most ``limit``, with all reasons; end 0 if none."""
    prefixes = [action for action in actions if isinstance(action, DeletePrefix)]
    end = max((min(action.end, limit) for action in prefixes), default=0)
    return Cut(end, tuple(dict.fromkeys(action.reason for action in prefixes)))


def relieve(log: Log) -> int:
    """Evict local segments, oldest first, down to three quarters of ``local.hard.limit.bytes``.

    Only segments that are in the tier are evicted. Return the number of evicted segments.
    """
    view = log.view()
    end = _relief_cut(view.segments, log.config.local_hard_limit_bytes, view.remote_end).end
    return log.maintenance.evict(end)


def _relief_cut(segments: Sequence[Segment] | Sequence[SegmentSummary], limit: int, remote_end: int) -> Cut:
    """Return the end offset for an eviction down to three quarters of ``limit``; a negative limit evicts nothing."""
    remaining_bytes = sum(segment.size_bytes for segment in segments)
    end = 0
    for segment in segments[:-1]:
        if limit < 0 or remaining_bytes <= limit - limit // 4 or segment.end_offset > remote_end:
            break
        remaining_bytes, end = remaining_bytes - segment.size_bytes, segment.end_offset
    return Cut(end, (f"the local part is close to local.hard.limit.bytes={limit}",) if end else ())


def _execute(log: Log, tier: TierLog | None, plan: RetentionPlan, result: RetentionResult) -> None:
    removal, deletion = plan.removal, plan.removal.deletion
    local_end = max(removal.eviction.end if removal.evicted else 0, deletion.end)
    if deletion.end > plan.summary.offsets.log_start:
        log.maintenance.raise_log_start(deletion.end)
    view = log.view()
    if tier is not None and deletion.end and view.is_leader:  # the log may be a follower now, unlike in the plan
        with log.maintenance.stop_if_fenced(view.leader_epoch):
            tier.expire(deletion.end, leader_epoch=view.leader_epoch, reason="; ".join(deletion.reasons))
        log.maintenance.refresh_remote()
    if result.deleted_segments:
        log.maintenance.notify(
            SegmentsDeleted(
                log=log.name,
                log_start=result.log_start,
                segments=result.deleted_segments,
                size_bytes=result.deleted_bytes,
            )
        )
    log.maintenance.evict(local_end, above=deletion.end)
    if result.rolled:
        log.roll()
    log.maintenance.delete_expired()
