"""Compaction plans: which local and tier parts of logs are due, and in which order, by the policies of their topics.

Source: apache/kafka LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.cleaning.plan.log_summary import summarise, summarise_for_rewrite
from stratalog.cleaning.plan.policy_actions import actions_of, check_filter, check_rewrite, check_values, rewriters
from stratalog.cleaning.plan.retention import find_deletion_end
from stratalog.errors import StorageError, StoreError
from stratalog.log.load.tier_producers import stable_end
from stratalog.log.log import Log
from stratalog.spi.cleanup import Action, CleanupPolicy, Keep, LogSummary, Rewrite, SegmentSummary
from stratalog.tier.tier_log import TierLog


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Compaction plan for the local or the tier part of a log.

    Attributes:
        rewrite: bounds of the next compaction round; None if no round is due.
        reason: reason why a round is due or not, for people; may be "".
        error: error that prevented a plan; None if there was none.
        tier: the tier part of the log if the plan is for this part; None if the plan is for the local part, which
            consists of the segments that are not in the tier.
        download_bytes: bytes of ``.log`` files that the round reads from the tier: each segment without a local copy
            once, and twice if the segment is in the dirty range.
    """

    log: Log
    rewrite: Rewrite | None
    reason: str
    error: StorageError | None = None
    tier: TierLog | None = None
    download_bytes: int = 0

    @property
    def part(self) -> str:
        """Part of the log for which the plan was made: "local" or "tier"."""
        return "local" if self.tier is None else "tier"


def first_dirty_offset_of(plan: CompactionPlan) -> int:
    """Return the first dirty offset of the local or tier part that a plan is for; -1 if unknown."""
    if plan.tier is not None:
        return plan.tier.view().first_dirty_offset
    dirty_start = plan.log.maintenance.cleaning.dirty_start
    return -1 if dirty_start is None else dirty_start


def plan_parts(
    log: Log, policies: Mapping[str, CleanupPolicy], tier: TierLog | None, *, now_ms: int, asks_all: bool = False
) -> list[CompactionPlan]:
    """Return a plan for a log's local part, and one for its tier part; [] if no policy rewrites logs.

    Without segments in the tier, there is only the plan for the local part. Segments that will be offloaded are
    compacted only after they are in the tier. The plans contain the errors of policies, and errors of reads of segments
    and of the tier's manifest.

    Args:
        log: the log. If one of its parts is uncleanable, the plan of that part rewrites nothing.
        policies: policies of its topic.
        tier: the tier part of the log; None if the log has no tier.
        now_ms: time when the compaction round would begin.
        asks_all: True to call the policies even if no policy has a record filter. If the log is uncleanable, or if a
            policy then fails or plans a Rewrite, which is an error, one plan reports this. If not, the result is [].
    """
    rewriting, state, has_tier = rewriters(policies), log.maintenance.cleaning, tier is not None
    if not rewriting:
        return _plan_errors(log, policies, has_tier=has_tier, now_ms=now_ms) if asks_all else []
    try:
        is_tiered = tier is not None and bool(tier.view().segments)
    except StorageError as error:
        return [CompactionPlan(log, None, str(error), error, tier=tier)]
    uncleanable = {None: state.local.uncleanable} | ({tier: state.tier.uncleanable} if is_tiered else {})
    plans = [CompactionPlan(log, None, f"uncleanable: {why}", tier=part) for part, why in uncleanable.items() if why]
    cleanable_parts = [part for part, why in uncleanable.items() if not why]
    if not cleanable_parts:
        return plans
    try:
        summary = summarise_for_rewrite(log, has_tier=has_tier)
        actions = _actions(log, policies, summary, now_ms)
    except StorageError as error:
        return [*plans, *(CompactionPlan(log, None, str(error), error, tier=part) for part in cleanable_parts)]
    deleted_end = find_deletion_end(log, policies, summary, actions)
    part_actions = [action for name in rewriting for action in actions[name] if isinstance(action, Keep | Rewrite)]
    for part in cleanable_parts:
        plan = _merge_actions(log, summary, part_actions, part, deleted_end)
        # A compaction round over the local part could drop a record because of a newer record that is not in the tier
        # yet. A log that is restored from the tier alone would lack both records.
        if plan.rewrite is not None and part is None and has_tier and not log.config.remote_log_copy_disable:
            plan = replace(plan, rewrite=None, reason="being offloaded to the tier, where it is compacted")
        plans.append(plan)
    return plans


def _plan_errors(
    log: Log, policies: Mapping[str, CleanupPolicy], *, has_tier: bool, now_ms: int
) -> list[CompactionPlan]:
    """Return a plan with the error if a policy is wrong, a plan without rewrite if the log is uncleanable, else []."""
    if log.maintenance.cleaning.local.uncleanable:
        return [CompactionPlan(log, None, f"uncleanable: {log.maintenance.cleaning.local.uncleanable}")]
    try:
        _actions(log, policies, summarise(log, has_tier=has_tier), now_ms)
    except StoreError:  # without the tier's segments the policies cannot plan, and nothing is rewritten here anyway
        return []
    except StorageError as error:
        return [CompactionPlan(log, None, str(error), error)]
    return []


def _actions(
    log: Log, policies: Mapping[str, CleanupPolicy], summary: LogSummary, now_ms: int
) -> dict[str, tuple[Action, ...]]:
    """Return the actions of each policy; raise PluginError if a policy fails or plans a wrong Keep or Rewrite."""

    def check(policy: CleanupPolicy, summary: LogSummary, action: object) -> None:
        if isinstance(action, Keep | Rewrite):  # the retention pass checks and reports all other actions
            check_values(action)
        if isinstance(action, Rewrite):
            check_filter(policy, action)
            check_rewrite(summary, action)

    return actions_of(policies, summary, lambda policy: policy.plan(summary, log.config, now_ms), check)


def _merge_actions(
    log: Log, summary: LogSummary, actions: Sequence[Keep | Rewrite], tier: TierLog | None, deleted_end: int
) -> CompactionPlan:
    """Return one plan for the local or the tier part of a log, from the actions of all policies.

    The plan begins at or above ``deleted_end``, the exclusive end offset of the segments that the next
    retention pass deletes.
    """
    tiered = [segment for segment in summary.segments if segment.is_remote]
    border = tiered[-1].end_offset if tiered else 0
    part_actions = [action for action in actions if (action.end <= border) == (tier is not None)]
    rewrites = [action for action in part_actions if isinstance(action, Rewrite)]
    if tier is not None and rewrites and not (log.is_leader and not log.config.remote_log_copy_disable):
        why = "its leader compacts it" if not log.is_leader else "remote.log.copy.disable"
        return CompactionPlan(log, None, why, tier=tier)
    if not rewrites:
        return CompactionPlan(log, None, "; ".join(dict.fromkeys(action.reason for action in part_actions)), tier=tier)
    part = [segment for segment in summary.segments if segment.is_remote == (tier is not None)]
    # the first local segment may begin in the deleted part of the tier
    first_offset = next((segment.base_offset for segment in part if segment.end_offset > deleted_end), deleted_end)
    merged = Rewrite(
        start=max(min(action.start for action in rewrites), first_offset),
        end=min(action.end for action in rewrites),
        dirty_start=max(min(action.dirty_start for action in rewrites), deleted_end),
        reason="; ".join(dict.fromkeys(action.reason for action in rewrites)),
        dirty_ratio=max(action.dirty_ratio for action in rewrites),
    )
    if tier is None:
        return CompactionPlan(log, merged if merged.dirty_start < merged.end else None, merged.reason)
    return _limit_to_stable(log, merged, tier, tiered)


def _limit_to_stable(log: Log, merged: Rewrite, tier: TierLog, segments: Sequence[SegmentSummary]) -> CompactionPlan:
    """Return the plan for the tier part, up to the first transaction whose marker is not in the tier."""
    # If the local disk is lost before the marker is offloaded, that transaction counts as aborted. A record that was
    # dropped because of a newer record of the transaction would then be missing.
    try:
        stable = stable_end(tier.view(), log.components)
    except StorageError as error:
        return CompactionPlan(log, None, str(error), error, tier=tier)
    if stable < merged.end:
        end = max((segment.end_offset for segment in segments if segment.end_offset <= stable), default=0)
        why = f"the end of a transaction from {stable} is not in the tier yet"
        merged = replace(merged, end=end, reason=why if end <= merged.dirty_start else merged.reason)
    downloads = [
        segment for segment in segments if not segment.is_local and merged.start <= segment.base_offset < merged.end
    ]
    dirty = [segment for segment in downloads if segment.end_offset > merged.dirty_start]
    download_bytes = sum(segment.size_bytes for segment in (*downloads, *dirty))
    rewrite = merged if merged.dirty_start < merged.end else None
    return CompactionPlan(log, rewrite, merged.reason, tier=tier, download_bytes=download_bytes)


def dirtiest(plans: Sequence[CompactionPlan]) -> CompactionPlan | None:
    """Return the plan with a rewrite and the greatest dirty ratio; None if no plan has a rewrite."""
    due = [plan for plan in plans if plan.rewrite is not None]
    return max(due, key=lambda plan: 0.0 if plan.rewrite is None else plan.rewrite.dirty_ratio, default=None)
