"""Compacting logs: which part of which log is due, and one round over it.

A policy that raises, or wants what cannot be, costs its log the compaction and nothing else: the log is left alone from
then on, as one with a damaged segment is.

Source: apache/kafka LogCleaner, LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.cleaning.digests import SegmentDigests
from stratalog.cleaning.part import LocalPart, Rewritable, RewriteStats, RewriteStoppedError, S
from stratalog.cleaning.rewrite import Rewriting
from stratalog.cleaning.runner import deleted_to
from stratalog.cleaning.summary import summarise_for_rewrite
from stratalog.cleaning.throttle import Throttle
from stratalog.cleaning.tierpart import Traffic, open_tier_part
from stratalog.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    FencedEpochError,
    LogDirOfflineError,
    PluginError,
    StorageError,
    StoreError,
)
from stratalog.log.log import Log
from stratalog.log.tiered import stable_end
from stratalog.model.events import LogCleaned, LogUncleanable
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import CleanupPolicy, Keep, LogSummary, RecordFilter, Rewrite, RewriteJob
from stratalog.tier.log import TierLog


@dataclass(frozen=True, slots=True)
class CleanerLimits:
    """What one thread of the cleaner may use; see the settings ``log.cleaner.*``."""

    memory_bytes: int
    load_factor: float
    read_bytes: int


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


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a round did, or would do, to one log.

    Offsets in [``start``, ``end``) were rewritten; the dirty ones begin at ``dirty_start``, and the next round begins at
    ``end``: below the planned end if the filter's memory was full, which ``reason`` says. ``map_load`` is the share of
    that memory that was filled. ``error`` is why nothing was done, or why it
    ended early: the log is uncleanable then, or, if ``stopped``, tried again at the next round. ``part`` is as in the plan,
    ``traffic`` is what came from the tier, and what went there.
    """

    log: TopicPartition
    start: int
    dirty_start: int
    end: int
    dirty_ratio: float
    reason: str
    stats: RewriteStats = field(default_factory=RewriteStats)
    map_load: float = 0.0
    elapsed_ms: int = 0
    stopped: str = ""
    error: StorageError | None = None
    part: str = "local"
    traffic: Traffic = field(default_factory=Traffic)


def rewriters(policies: Mapping[str, CleanupPolicy]) -> dict[str, CleanupPolicy]:
    """The policies that have a record filter. All of a topic's take part in each round, since they share a checkpoint."""
    return {
        name: policy
        for name, policy in policies.items()
        if type(policy).record_filter is not CleanupPolicy.record_filter
    }


def plan_compaction(
    log: Log, policies: Mapping[str, CleanupPolicy], *, has_tier: bool, now_ms: int
) -> CompactionPlan | None:
    """What a log's policies want of what local disk has alone; None if none of them rewrites logs."""
    plans = plan_parts(log, policies, None, has_tier=has_tier, now_ms=now_ms)
    return plans[0] if plans else None


def plan_parts(
    log: Log, policies: Mapping[str, CleanupPolicy], tier: TierLog | None, *, has_tier: bool, now_ms: int
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
    """
    chosen, state = rewriters(policies), log.cleaning
    if not chosen:
        return []
    is_tiered = tier is not None and bool(tier.view().segments)
    kept = {None: state.uncleanable, tier: state.tier_uncleanable} if is_tiered else {None: state.uncleanable}
    plans = [CompactionPlan(log, None, f"uncleanable: {why}", tier=part) for part, why in kept.items() if why]
    asked = [part for part, why in kept.items() if not why]
    if not asked:
        return plans
    summary = summarise_for_rewrite(log, has_tier=has_tier)
    try:
        actions = _asked(log, chosen, summary, now_ms)
    except StorageError as error:
        return [*plans, *(CompactionPlan(log, None, str(error), error, tier=part) for part in asked)]
    gone_to = deleted_to(log, policies, summary, now_ms=now_ms)
    joined = (_joined(log, summary, actions, part, gone_to) for part in asked)
    waits = tier is not None and not log.config.remote_log_copy_disable
    return [*plans, *(_waiting(plan) if waits and plan.tier is None else plan for plan in joined)]


def _waiting(plan: CompactionPlan) -> CompactionPlan:
    if plan.rewrite is None:
        return plan
    return replace(plan, rewrite=None, reason="on its way to the tier, where it is compacted")


def _asked(
    log: Log, policies: Mapping[str, CleanupPolicy], summary: LogSummary, now_ms: int
) -> Sequence[Keep | Rewrite]:
    """What all of them want; PluginError names the policy that fails, or wants what cannot be."""
    found = list[Keep | Rewrite]()
    for name, policy in policies.items():
        try:
            actions = policy.plan(summary, log.config, now_ms)
            for action in actions:
                if isinstance(action, Rewrite):
                    check_rewrite(summary, action)
            found += [action for action in actions if isinstance(action, Keep | Rewrite)]
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
    """One plan of what the policies want of one part, above ``gone_to``, which retention deletes first.

    Of a tier, what a transaction wrote is left alone until the tier has its end, too: were local disk lost before that,
    the transaction would count as aborted, and a value from before it that it outdated would be missing.
    """
    tiered = [segment for segment in summary.segments if segment.is_remote]
    border = tiered[-1].end_offset if tiered else 0
    mine = [action for action in actions if (action.start < border) == (tier is not None)]
    wanted = [action for action in mine if isinstance(action, Rewrite)]
    if tier is not None and wanted and not (log.is_leader and not log.config.remote_log_copy_disable):
        why = "its leader compacts it" if not log.is_leader else "remote.log.copy.disable"
        return CompactionPlan(log, None, why, tier=tier)
    if not wanted:
        return CompactionPlan(log, None, "; ".join(dict.fromkeys(action.reason for action in mine)), tier=tier)
    end, reason = min(action.end for action in wanted), "; ".join(dict.fromkeys(action.reason for action in wanted))
    dirty_start = max(min(action.dirty_start for action in wanted), gone_to)
    if tier is not None:
        try:
            stable = stable_end(tier.view(), log.parts)
        except StorageError as error:
            return CompactionPlan(log, None, str(error), error, tier=tier)
        if stable < end:
            end = max((found.end_offset for found in tiered if found.end_offset <= stable), default=0)
            if end <= dirty_start:
                reason = f"how a transaction from {stable} on ended is not in the tier yet"
    joined = Rewrite(
        start=max(min(action.start for action in wanted), gone_to),
        end=end,
        dirty_start=dirty_start,
        reason=reason,
        dirty_ratio=max(action.dirty_ratio for action in wanted),
    )
    read = [segment for segment in tiered if not segment.is_local and joined.start <= segment.base_offset < joined.end]
    dirty = [segment for segment in read if segment.end_offset > joined.dirty_start]
    return CompactionPlan(
        log,
        joined if joined.dirty_start < joined.end else None,
        joined.reason,
        tier=tier,
        download_bytes=sum(segment.size_bytes for segment in (*read, *dirty)) if tier is not None else 0,
    )


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


def compact(
    plan: CompactionPlan,
    policies: Mapping[str, CleanupPolicy],
    limits: CleanerLimits,
    throttle: Throttle,
    check: Callable[[], None],
    now_ms: int,
) -> CompactionResult:
    """One round over one log; what is wrong is in the result."""
    log, rewrite = plan.log, plan.rewrite
    assert rewrite is not None
    clock, ticket = log.parts.env.clock, log.cleaning.changes
    began_ns = clock.monotonic_ns()
    round_ = _Round(plan, job_of(log, rewrite, limits, now_ms), rewriters(policies), limits, throttle, check, ticket)
    stopped = ""
    error: StorageError | None = None
    try:
        round_.run()
    except RewriteStoppedError as reason:
        stopped = str(reason)
    except DiskFullError as full:
        error, stopped = full, "the disk is full"
    except LogDirOfflineError as offline:
        error, stopped = offline, "the log directory is out of service"
        log.fail(offline)
    except FencedEpochError as fenced:
        error, stopped = fenced, "another writer owns the log"
    except StoreError as store:
        error, stopped = store, "the store failed"
    except ClosedError as closed:
        stopped = str(closed)
    except StorageError as wrong:
        error = wrong
    except Exception as wrong:  # noqa: BLE001 - a filter is a plugin's, and the other logs go on
        error = PluginError(f"compaction of {log.name} failed: {wrong!r}")
        error.__cause__ = wrong
    result = CompactionResult(
        log=log.name,
        start=rewrite.start,
        dirty_start=rewrite.dirty_start,
        end=round_.end,
        dirty_ratio=rewrite.dirty_ratio,
        reason=reason_of(rewrite, rewrite.end if error is not None or stopped else round_.end, limits),
        stats=round_.stats,
        map_load=round_.load,
        elapsed_ms=(clock.monotonic_ns() - began_ns) // 1_000_000,
        stopped=stopped,
        error=error,
        part=plan.part,
        traffic=round_.traffic,
    )
    _conclude(log, result, ticket)
    return result


@dataclass(slots=True)
class _Round:
    """One round over one part of a log, and what is known of it however it ends."""

    plan: CompactionPlan
    job: RewriteJob
    policies: Mapping[str, CleanupPolicy]
    limits: CleanerLimits
    throttle: Throttle
    check: Callable[[], None]
    ticket: int
    end: int = 0
    load: float = 0.0
    stats: RewriteStats = field(default_factory=RewriteStats)
    traffic: Traffic = field(default_factory=Traffic)

    def run(self) -> None:
        """Both passes, unless somebody else is at the same part."""
        self.end = self.job.dirty_start
        log, tier = self.plan.log, self.plan.tier
        lock = log.cleaning.busy if tier is None else log.cleaning.tier_busy
        if not lock.acquire(blocking=False):
            raise RewriteStoppedError(f"{log.name} is being offloaded, or compacted by somebody else")
        try:
            digests = SegmentDigests(log) if tier is None else None
            if digests is not None:
                self.job = replace(self.job, secret=digests.secret)
            filters = [policy.record_filter(self.job) for policy in self.policies.values()]
            self.end = self._local(filters, digests) if tier is None else self._tiered(tier, filters)
            self.load = max((found.load for found in filters), default=0.0)
        finally:
            lock.release()

    def _local(self, filters: Sequence[RecordFilter], digests: SegmentDigests | None) -> int:
        log = self.plan.log
        check_settled(log)
        log.flush()  # a marker that a loss of power takes would make aborted what outdates something here
        rewriting = self._rewriting(LocalPart(log), filters, keeps_tombstones=has_older(log, self.job))
        rewriting.digests = digests
        return rewriting.run()

    def _tiered(self, tier: TierLog, filters: Sequence[RecordFilter]) -> int:
        log, state = self.plan.log, self.plan.log.cleaning
        part = open_tier_part(log, tier, self.traffic, f"compaction: {self.plan.reason}")
        try:
            rewriting = self._rewriting(part, filters, keeps_tombstones=has_older(log, self.job))
            rewriting.is_copied = True
            end = rewriting.run()
            part.commit(end)
        except CorruptionError as error:
            part.forget(error.file)
            if state.tier_doubt == str(error):
                raise
            state.tier_doubt = str(error)
            raise RewriteStoppedError(f"damaged, perhaps on its way here: {error}") from error
        finally:
            part.abandon()
        state.tier_doubt = ""
        return end

    def _rewriting(
        self, part: Rewritable[S], filters: Sequence[RecordFilter], *, keeps_tombstones: bool
    ) -> Rewriting[S]:
        return Rewriting(
            part,
            self.job,
            filters,
            keeps_tombstones,
            self.limits.read_bytes,
            self.throttle,
            self.check,
            self.ticket,
            stats=self.stats,
        )


def reason_of(rewrite: Rewrite, end: int, limits: CleanerLimits) -> str:
    """Why a round is or was due, and if it ends before its bounds, why that is and what else there is."""
    if end >= rewrite.end:
        return rewrite.reason
    return (
        f"{rewrite.reason}; too many keys for one round: its memory is full at offset {end}, the next one goes on there up "
        f"to {rewrite.end}. log.cleaner.dedupe.buffer.size gives it {limits.memory_bytes} bytes; of what is in a tier, "
        "`stratalog spark compact` takes any number of keys at once"
    )


def check_settled(log: Log) -> None:
    """Raise RewriteStoppedError while the tier may have, or be about to have, more than is known.

    What would be rewritten here could be what was committed there; and tombstones would go above records that stay.
    """
    if not log.settle_remote():
        raise RewriteStoppedError(
            f"whether the last commit to the tier of {log.name} took effect shows with the next one"
        )


def has_older(log: Log, job: RewriteJob) -> bool:
    """Whether records come before those of a round: neither tombstones nor markers may go then.

    A tier has them, or retention is about to delete them, and may yet be told otherwise.
    """
    view = log.view()
    remote = view.remote
    start = None if remote is None else remote.segments.start_offset
    if start is not None and start < job.start:
        return True
    log_start = view.offsets.log_start
    return any(segment.base_offset < job.start and segment.end_offset > log_start for segment in view.segments)


def job_of(log: Log, rewrite: Rewrite, limits: CleanerLimits, now_ms: int) -> RewriteJob:
    """What filters are told of a round."""
    bounds = (rewrite.start, rewrite.end, rewrite.dirty_start)
    return RewriteJob(log.name, *bounds, now_ms, limits.memory_bytes, limits.load_factor, log.config)


def give_up(log: Log, error: StorageError, part: str = "local") -> None:
    """Leave a part of a log alone until it is opened again, and tell of it."""
    if part == "local":
        log.cleaning.uncleanable = str(error)
    else:
        log.cleaning.tier_uncleanable = str(error)
    log.notify(LogUncleanable(log=log.name, reason=str(error)))


def _conclude(log: Log, result: CompactionResult, ticket: int) -> None:
    if result.error is not None and not result.stopped:
        give_up(log, result.error, result.part)
    if result.error is not None or result.stopped:
        return
    if result.part == "local":
        log.cleaned_up_to(result.end, ticket)
    stats = result.stats
    log.notify(
        LogCleaned(
            log=log.name,
            bytes_before=stats.bytes_read,
            bytes_after=stats.bytes_written,
            records_before=stats.records_read,
            records_after=stats.records_kept,
            segments_before=stats.segments_before,
            segments_after=stats.segments_after,
            dirty_start=result.dirty_start,
            end=result.end,
            map_load=result.map_load,
            elapsed_ms=result.elapsed_ms,
            part=result.part,
        )
    )


def filthiest(plans: Sequence[CompactionPlan]) -> CompactionPlan | None:
    """The plan to carry out first."""
    due = [plan for plan in plans if plan.rewrite is not None]
    return max(due, key=lambda plan: 0.0 if plan.rewrite is None else plan.rewrite.dirty_ratio, default=None)
