"""Compacting logs: which part of which log is due, and one round over it.

A policy that raises, or wants what cannot be, costs its log the compaction and nothing else: the log is left alone from
then on, as one with a damaged segment is.

Source: apache/kafka LogCleaner, LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.cleaning.rewrite import LocalPart, RewriteStats, RewriteStoppedError, Rewriting
from stratalog.cleaning.summary import summarise_for_rewrite
from stratalog.cleaning.throttle import Throttle
from stratalog.errors import ClosedError, DiskFullError, LogDirOfflineError, PluginError, StorageError
from stratalog.log.log import Log
from stratalog.model.events import LogCleaned, LogUncleanable
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import CleanupPolicy, Keep, LogSummary, Rewrite, RewriteJob


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
    """

    log: Log
    rewrite: Rewrite | None
    reason: str
    error: StorageError | None = None


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a round did, or would do, to one log.

    Offsets in [``start``, ``end``) were rewritten; the dirty ones begin at ``dirty_start``, and the next round begins at
    ``end``. ``map_load`` is the share of its memory that the filter filled. ``error`` is why nothing was done, or why it
    ended early: the log is uncleanable then, or, if ``stopped``, tried again at the next round.
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
    """What a log's policies want; None if none of them rewrites logs."""
    chosen = rewriters(policies)
    if not chosen:
        return None
    if log.cleaning.uncleanable:
        return CompactionPlan(log, None, f"uncleanable: {log.cleaning.uncleanable}")
    summary = summarise_for_rewrite(log, has_tier=has_tier)
    wanted, kept = list[Rewrite](), list[str]()
    for name, policy in chosen.items():
        try:
            actions = policy.plan(summary, log.config, now_ms)
            found = [action for action in actions if isinstance(action, Rewrite)]
            for action in found:
                check_rewrite(summary, action)
            kept += [action.reason for action in actions if isinstance(action, Keep)]
        except StorageError as error:
            return CompactionPlan(log, None, f"policy {name}: {error}", error)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and the other logs go on
            wrapped = PluginError(f"cleanup policy {name} failed on {log.name}: {error!r}")
            wrapped.__cause__ = error
            return CompactionPlan(log, None, str(wrapped), wrapped)
        wanted += found
    if not wanted:
        return CompactionPlan(log, None, "; ".join(dict.fromkeys(kept)))
    joined = Rewrite(
        start=min(action.start for action in wanted),
        end=min(action.end for action in wanted),
        dirty_start=min(action.dirty_start for action in wanted),
        reason="; ".join(dict.fromkeys(action.reason for action in wanted)),
        dirty_ratio=max(action.dirty_ratio for action in wanted),
    )
    return CompactionPlan(log, joined if joined.dirty_start < joined.end else None, joined.reason)


def check_rewrite(summary: LogSummary, action: Rewrite) -> None:
    """Raise PluginError unless a rewrite has the bounds of closed local segments and leaves alone what it must."""
    own = [segment for segment in summary.segments if segment.is_local and not segment.is_remote]
    active = next((segment for segment in own if segment.is_active), None)
    limit = min(summary.offsets.last_stable, active.base_offset if active is not None else 0)
    starts = {segment.base_offset for segment in own}
    ends = {segment.end_offset for segment in own}
    if action.start not in starts or action.end not in ends:
        raise PluginError(f"{action} does not begin and end where closed local segments of {summary.log} do")
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
    job = job_of(plan.log, rewrite, limits, now_ms)
    stats, stopped, end, load = RewriteStats(), "", rewrite.dirty_start, 0.0
    error: StorageError | None = None
    try:
        if not log.cleaning.busy.acquire(blocking=False):
            raise RewriteStoppedError(f"{log.name} is being offloaded, or compacted by somebody else")  # noqa: TRY301 - one end for all
        try:
            end, load = _carry_out(log, job, policies, limits, throttle, check, ticket, stats)
        finally:
            log.cleaning.busy.release()
    except RewriteStoppedError as reason:
        stopped = str(reason)
    except DiskFullError as full:
        error, stopped = full, "the disk is full"
    except LogDirOfflineError as offline:
        error, stopped = offline, "the log directory is out of service"
        log.fail(offline)
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
        end=end,
        dirty_ratio=rewrite.dirty_ratio,
        reason=rewrite.reason,
        stats=stats,
        map_load=load,
        elapsed_ms=(clock.monotonic_ns() - began_ns) // 1_000_000,
        stopped=stopped,
        error=error,
    )
    _conclude(log, result, ticket)
    return result


def _carry_out(
    log: Log,
    job: RewriteJob,
    policies: Mapping[str, CleanupPolicy],
    limits: CleanerLimits,
    throttle: Throttle,
    check: Callable[[], None],
    ticket: int,
    stats: RewriteStats,
) -> tuple[int, float]:
    """The end of the round, and how full its memory was."""
    filters = [policy.record_filter(job) for policy in rewriters(policies).values()]
    remote = log.view().remote
    below = remote is not None and bool(remote.segments)
    part = LocalPart(log)
    end = Rewriting(part, job, filters, below, limits.read_bytes, throttle, check, ticket, stats=stats).run()
    return end, max((found.load for found in filters), default=0.0)


def job_of(log: Log, rewrite: Rewrite, limits: CleanerLimits, now_ms: int) -> RewriteJob:
    """What filters are told of a round."""
    bounds = (rewrite.start, rewrite.end, rewrite.dirty_start)
    return RewriteJob(log.name, *bounds, now_ms, limits.memory_bytes, limits.load_factor, log.config)


def give_up(log: Log, error: StorageError) -> None:
    """Leave a log alone until it is opened again, and tell of it."""
    log.cleaning.uncleanable = str(error)
    log.notify(LogUncleanable(log=log.name, reason=str(error)))


def _conclude(log: Log, result: CompactionResult, ticket: int) -> None:
    if result.error is not None and not result.stopped:
        give_up(log, result.error)
    if result.error is not None or result.stopped:
        return
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
        )
    )


def filthiest(plans: Sequence[CompactionPlan]) -> CompactionPlan | None:
    """The plan to carry out first."""
    due = [plan for plan in plans if plan.rewrite is not None]
    return max(due, key=lambda plan: 0.0 if plan.rewrite is None else plan.rewrite.dirty_ratio, default=None)
