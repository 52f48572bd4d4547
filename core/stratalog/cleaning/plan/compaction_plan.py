"""What is to be compacted: which part of which log is due, as the policies of its topic say.

A policy that raises, or wants what cannot be, costs its log the compaction and nothing else.

Source: apache/kafka LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.cleaning.plan.log_summary import summarise, summarise_for_rewrite
from stratalog.cleaning.plan.retention import check_filter, deleted_to, has_filter
from stratalog.errors import PluginError, StorageError
from stratalog.log.load.tier_producers import stable_end
from stratalog.log.log import Log
from stratalog.spi.cleanup import CleanupPolicy, Keep, LogSummary, Rewrite, SegmentSummary
from stratalog.tier.tier_log import TierLog


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is to be done with one log.

    ``rewrite`` is None if nothing is; ``reason`` then says why not. ``error`` is what keeps the log from being planned.
    ``tier`` is None for what local disk has alone; for the part that is in a tier it is that, and a round downloads
    ``download_bytes``: what has no local copy, and the dirty ones of these twice.
    """

    log: Log
    rewrite: Rewrite | None
    reason: str
    error: StorageError | None = None
    tier: TierLog | None = None
    download_bytes: int = 0

    @property
    def part(self) -> str:
        """Which one it is of: "local" or "tier"."""
        return "local" if self.tier is None else "tier"


def rewriters(policies: Mapping[str, CleanupPolicy]) -> dict[str, CleanupPolicy]:
    """The policies that have a record filter. All of a topic's take part in each round, since they share a checkpoint."""
    return {name: policy for name, policy in policies.items() if has_filter(policy)}


def compacted_to(plan: CompactionPlan) -> int:
    """The offset up to which the part of a plan is compacted; -1 if it never was."""
    if plan.tier is not None:
        return plan.tier.view().first_dirty_offset
    dirty_start = plan.log.cleaning.dirty_start
    return -1 if dirty_start is None else dirty_start


def plan_parts(
    log: Log,
    policies: Mapping[str, CleanupPolicy],
    tier: TierLog | None,
    *,
    has_tier: bool,
    now_ms: int,
    asks_all: bool = False,
) -> list[CompactionPlan]:
    """What a log's policies want of its local part, and of what is in its tier; nothing if none of them rewrites logs.

    What is on its way to a tier is not rewritten before it is there: whoever finds nothing but the tier finds every record
    below its end that was not outdated below that end.

    Args:
        log: whose.
        policies: of its topic.
        tier: what it has in a tier; None if it has none.
        has_tier: whether closed segments go to a tier.
        now_ms: when the round would begin.
        asks_all: also ask where no policy has a record filter. Nothing is planned there; a Rewrite is an error.
    """
    chosen, state = rewriters(policies), log.cleaning
    if not chosen:
        return _mistaken(log, policies, has_tier=has_tier, now_ms=now_ms) if asks_all else []
    is_tiered = tier is not None and bool(tier.view().segments)
    kept = {None: state.uncleanable, tier: state.tier_uncleanable} if is_tiered else {None: state.uncleanable}
    plans = [CompactionPlan(log, None, f"uncleanable: {why}", tier=part) for part, why in kept.items() if why]
    asked = [part for part, why in kept.items() if not why]
    if not asked:
        return plans
    summary = summarise_for_rewrite(log, has_tier=has_tier)
    try:
        actions = _asked(log, policies, summary, now_ms)
    except StorageError as error:
        return [*plans, *(CompactionPlan(log, None, str(error), error, tier=part) for part in asked)]
    gone_to = deleted_to(log, policies, summary, now_ms=now_ms)
    joined = (_joined(log, summary, actions, part, gone_to) for part in asked)
    waits = tier is not None and not log.config.remote_log_copy_disable
    return [*plans, *(_waiting(plan) if waits and plan.tier is None else plan for plan in joined)]


def _mistaken(log: Log, policies: Mapping[str, CleanupPolicy], *, has_tier: bool, now_ms: int) -> list[CompactionPlan]:
    """A plan with an error if a log without record filters has a policy that is wrong; else nothing."""
    if log.cleaning.uncleanable:
        return [CompactionPlan(log, None, f"uncleanable: {log.cleaning.uncleanable}")]
    try:
        _asked(log, policies, summarise(log, has_tier=has_tier), now_ms)
    except StorageError as error:
        return [CompactionPlan(log, None, str(error), error)]
    return []


def _waiting(plan: CompactionPlan) -> CompactionPlan:
    """The plan without its rewrite: what goes to the tier is compacted there."""
    if plan.rewrite is None:
        return plan
    return replace(plan, rewrite=None, reason="on its way to the tier, where it is compacted")


def _asked(
    log: Log, policies: Mapping[str, CleanupPolicy], summary: LogSummary, now_ms: int
) -> Sequence[Keep | Rewrite]:
    """What those with a record filter want; PluginError names the policy that fails, or wants what cannot be."""
    found, chosen = list[Keep | Rewrite](), rewriters(policies)
    for name, policy in policies.items():
        try:
            actions = policy.plan(summary, log.config, now_ms)
            for action in actions:
                if isinstance(action, Rewrite):
                    check_filter(policy, action)
                    check_rewrite(summary, action)
            found += [action for action in actions if isinstance(action, Keep | Rewrite) and name in chosen]
        except PluginError as error:
            raise PluginError(f"policy {name}: {error}") from error
        except StorageError:
            raise
        except Exception as error:  # a plugin may raise anything, and the other logs go on
            raise PluginError(f"cleanup policy {name} failed on {log.name}: {error!r}") from error
    return found


def _joined(
    log: Log, summary: LogSummary, actions: Sequence[Keep | Rewrite], tier: TierLog | None, gone_to: int
) -> CompactionPlan:
    """One plan of what the policies want of one part, above ``gone_to``, which retention deletes first."""
    tiered = [segment for segment in summary.segments if segment.is_remote]
    border = tiered[-1].end_offset if tiered else 0
    mine = [action for action in actions if (action.start < border) == (tier is not None)]
    wanted = [action for action in mine if isinstance(action, Rewrite)]
    if tier is not None and wanted and not (log.is_leader and not log.config.remote_log_copy_disable):
        why = "its leader compacts it" if not log.is_leader else "remote.log.copy.disable"
        return CompactionPlan(log, None, why, tier=tier)
    if not wanted:
        return CompactionPlan(log, None, "; ".join(dict.fromkeys(action.reason for action in mine)), tier=tier)
    joined = Rewrite(
        start=max(min(action.start for action in wanted), gone_to),
        end=min(action.end for action in wanted),
        dirty_start=max(min(action.dirty_start for action in wanted), gone_to),
        reason="; ".join(dict.fromkeys(action.reason for action in wanted)),
        dirty_ratio=max(action.dirty_ratio for action in wanted),
    )
    if tier is None:
        return CompactionPlan(log, joined if joined.dirty_start < joined.end else None, joined.reason)
    return _joined_in_tier(log, joined, tier, tiered)


def _joined_in_tier(log: Log, joined: Rewrite, tier: TierLog, segments: Sequence[SegmentSummary]) -> CompactionPlan:
    """The plan for what is in a tier, which ends where the tier tells how all transactions ended.

    What a later one wrote is left alone until the tier has its end, too: were local disk lost before that, the transaction
    would count as aborted, and a value that it had outdated would be missing.
    """
    try:
        stable = stable_end(tier.view(), log.parts)
    except StorageError as error:
        return CompactionPlan(log, None, str(error), error, tier=tier)
    if stable < joined.end:
        end = max((found.end_offset for found in segments if found.end_offset <= stable), default=0)
        why = f"how a transaction from {stable} on ended is not in the tier yet"
        joined = replace(joined, end=end, reason=why if end <= joined.dirty_start else joined.reason)
    read = [found for found in segments if not found.is_local and joined.start <= found.base_offset < joined.end]
    dirty = [found for found in read if found.end_offset > joined.dirty_start]
    download_bytes = sum(found.size_bytes for found in (*read, *dirty))
    rewrite = joined if joined.dirty_start < joined.end else None
    return CompactionPlan(log, rewrite, joined.reason, tier=tier, download_bytes=download_bytes)


def check_rewrite(summary: LogSummary, action: Rewrite) -> None:
    """Raise PluginError unless a rewrite has the bounds of closed segments of one part and leaves alone what it must."""
    tiered = [segment for segment in summary.segments if segment.is_remote]
    own = [segment for segment in summary.segments if not segment.is_remote]
    border = tiered[-1].end_offset if tiered else 0
    part = tiered if action.start < border else own
    active = next((segment.base_offset for segment in own if segment.is_active), border)
    limit = min(summary.offsets.last_stable, active)
    starts = {segment.base_offset for segment in part}
    ends = {segment.end_offset for segment in part}
    if action.start not in starts or action.end not in ends:
        raise PluginError(
            f"{action} does not begin and end where closed segments of {summary.log} do, in its tier or on local disk alone"
        )
    if not action.start <= action.dirty_start < action.end <= limit:
        raise PluginError(f"{action} is not in order, or goes past {limit}, up to which {summary.log} may be rewritten")


def filthiest(plans: Sequence[CompactionPlan]) -> CompactionPlan | None:
    """The plan to carry out first."""
    due = [plan for plan in plans if plan.rewrite is not None]
    return max(due, key=lambda plan: 0.0 if plan.rewrite is None else plan.rewrite.dirty_ratio, default=None)
