"""One compaction round: it rewrites the local part or the tier part of one log.

If a policy or its filter fails, or if a segment is damaged, this part of the log is uncleanable: no further compaction
round rewrites it until the log is opened again. Other logs are still compacted.

Source: apache/kafka LogCleaner, LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.cleaning.compact.part_rewrite import PartRewrite, filters_of
from stratalog.cleaning.compact.segment_digests import SegmentDigests
from stratalog.cleaning.compact.segment_range import (
    LocalRange,
    RewriteStats,
    RewriteStoppedError,
    S,
    SegmentPublisher,
    SegmentRange,
)
from stratalog.cleaning.compact.tier_range import CommittedPublisher, TierRange, Traffic
from stratalog.cleaning.compact.two_pass import run_passes
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.env.progress import Progress, counted, is_from_progress
from stratalog.env.rate_limit import Throttle
from stratalog.errors import (
    ClosedError,
    CorruptionError,
    FencedEpochError,
    LogDirOfflineError,
    OutOfResourcesError,
    PluginError,
    StorageError,
    StoreError,
)
from stratalog.log.change.local_publisher import LocalPublisher
from stratalog.log.log import Log
from stratalog.model.events import LogCleaned
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import CleanupPolicy, RecordFilter, Rewrite, RewriteJob
from stratalog.tier.tier_log import TierLog


@dataclass(frozen=True, slots=True)
class CleanerLimits:
    """Limits for one cleaner thread: memory of the filters, its usable share (0 to 1), and number of bytes per read."""

    memory_bytes: int
    load_factor: float
    read_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a compaction round over the local or the tier part of a log, or of a failed attempt to plan a round.

    Attributes:
        start: first offset that the round rewrites.
        dirty_start: first offset that no earlier round has compacted.
        end: exclusive end of the compacted offsets after the round. If the filters' memory was full, ``end`` is below
            the planned end, and ``reason`` mentions this.
        dirty_ratio: share of dirty bytes before the round, from 0 to 1.
        reason: cause of the round, for people.
        map_load: used share of the filters' memory, from 0 to 1.
        stopped: reason why the round ended early, if the next round can compact this part of the log; otherwise "".
        error: error that ended the round or its planning; None if there was none. If ``stopped`` is "" and the error is
            not a StoreError, this part of the log is uncleanable until the log is opened again.
        part: the compacted part of the log, "local" or "tier".
        traffic: bytes of ``.log`` files that were read from the tier and uploaded to it.
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


def compact(
    plan: CompactionPlan,
    policies: Mapping[str, CleanupPolicy],
    limits: CleanerLimits,
    throttle: Throttle,
    check: Callable[[], None],
    now_ms: int,
    progress: Progress | None = None,
) -> CompactionResult:
    """Run a planned compaction round over the local or the tier part of a log, and return its result.

    If the round fails, the error is in the result. The call raises only exceptions of ``progress``. ``plan.rewrite``
    must not be None. ``progress`` is called with the bytes that the round has read.
    """
    log, rewrite = plan.log, plan.rewrite
    assert rewrite is not None
    clock, publisher = log.components.env.clock, log.maintenance.publisher()
    began_ns = clock.monotonic_ns()
    job = job_of(log, rewrite, limits, now_ms)
    round_ = _Round(plan, job, policies, limits, throttle, check, publisher, progress)
    stopped = ""
    error: StorageError | None = None
    try:
        round_.run()
    except (RewriteStoppedError, ClosedError) as reason:
        stopped = str(reason)
    except OutOfResourcesError as failure:
        error, stopped = failure, failure.reason
    except LogDirOfflineError as failure:
        error, stopped = failure, "the log directory is out of service"
        log.maintenance.fail(failure)
    except FencedEpochError as failure:
        error, stopped = failure, "another writer owns the log"
    except StoreError as failure:
        error, stopped = failure, "the store failed"
    except StorageError as failure:
        error = failure
    except Exception as failure:  # a plugin's filter may raise anything; the cleaner must continue with the other logs
        if is_from_progress(failure):
            raise
        error = PluginError(f"compaction of {log.name} failed: {failure!r}")
        error.__cause__ = failure
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
    _conclude(log, result, publisher.generation)
    return result


@dataclass(slots=True)
class _Round:
    """One compaction round over the local or the tier part of a log.

    ``end``, ``load``, ``stats`` and ``traffic`` are valid even if the round fails.
    """

    plan: CompactionPlan
    job: RewriteJob
    policies: Mapping[str, CleanupPolicy]
    limits: CleanerLimits
    throttle: Throttle
    check: Callable[[], None]
    publisher: LocalPublisher
    progress: Progress | None
    filters: Sequence[RecordFilter] = ()
    end: int = 0
    load: float = 0.0
    stats: RewriteStats = field(default_factory=RewriteStats)
    traffic: Traffic = field(default_factory=Traffic)

    def run(self) -> None:
        """Run both passes, or raise RewriteStoppedError if another thread compacts or offloads this part of the log."""
        self.end = self.job.dirty_start
        log, tier = self.plan.log, self.plan.tier
        lock = log.maintenance.cleaning.part(self.plan.part).busy
        if not lock.acquire(blocking=False):
            raise RewriteStoppedError(f"{log.name} is being offloaded, or compacted by another thread")
        try:
            self.end = self._run_locally() if tier is None else self._run_in_tier(tier)
            self.load = max((record_filter.load for record_filter in self.filters), default=0.0)
        finally:
            lock.release()

    def _run_locally(self) -> int:
        log = self.plan.log
        digests = SegmentDigests(log)
        self.job = replace(self.job, secret=digests.secret)
        self.filters = filters_of(self.policies, self.job)
        check_settled(log)
        log.flush()  # otherwise a power loss could lose a transaction marker because of which older records are dropped
        work = self._prepare_rewrite(LocalRange(log), self.publisher)
        work.digests = digests
        return run_passes(work)

    def _run_in_tier(self, tier: TierLog) -> int:
        log, state = self.plan.log, self.plan.log.maintenance.cleaning
        self.filters = filters_of(self.policies, self.job)
        publisher = CommittedPublisher.open(log, tier, f"compaction: {self.plan.reason}", self.traffic)
        part, dirty_start = TierRange.of(log, self.traffic), tier.view().first_dirty_offset
        try:
            work = self._prepare_rewrite(part, publisher)
            work.is_copied = True
            end = run_passes(work)
            if log.config.cleanup_policy != self.job.config.cleanup_policy or (
                tier.view().first_dirty_offset < dirty_start
            ):
                raise RewriteStoppedError(f"cleanup.policy of {log.name} changed")
            publisher.commit(end)
        except CorruptionError as error:
            part.forget(error.file)
            if state.doubt_tier(str(error)):
                raise
            raise RewriteStoppedError(f"the bytes are damaged, or were changed by the network: {error}") from error
        finally:
            publisher.abandon()
        state.doubt_tier("")
        return end

    def _prepare_rewrite(self, part: SegmentRange[S], publisher: SegmentPublisher[S]) -> PartRewrite[S]:
        job = self.job
        work = PartRewrite.of_log(self.plan.log, part, publisher, job, self.filters, self.limits.read_bytes)
        work.throttle, work.check, work.stats = self.throttle.count_and_wait, self.check, self.stats
        if self.progress is not None:
            planned_bytes = sum(segment.size_bytes for segment in work.segments(job.dirty_start, job.end))
            planned_bytes += sum(segment.size_bytes for segment in work.segments(job.start, job.end))
            work.on_bytes = counted(self.progress, planned_bytes)
        return work


def reason_of(rewrite: Rewrite, end: int, limits: CleanerLimits) -> str:
    """Return the cause of a compaction round as a text.

    If ``end`` (exclusive) is below the planned end, the text also has the reason for the lower end.
    """
    if end >= rewrite.end:
        return rewrite.reason
    return (
        f"{rewrite.reason}; too many keys for one round: its memory is full at offset {end}, and the next round "
        f"continues there up to {rewrite.end}. Raise log.cleaner.dedupe.buffer.size above {limits.memory_bytes} bytes; "
        "for a tier, `stratalog spark compact` has no such limit"
    )


def check_settled(log: Log) -> None:
    """Raise RewriteStoppedError if it is unknown whether the last commit to the tier took effect.

    In that state, a compaction round over the local part could rewrite segments that the tier has already, or drop
    a tombstone while the tier contains older records of its key.
    """
    if not log.maintenance.settle_remote():
        raise RewriteStoppedError(
            f"it is unknown if the last commit to the tier of {log.name} took effect; the next commit shows it"
        )


def job_of(log: Log, rewrite: Rewrite, limits: CleanerLimits, now_ms: int) -> RewriteJob:
    """Return the ``RewriteJob`` that describes a compaction round to the record filters."""
    bounds = (rewrite.start, rewrite.end, rewrite.dirty_start)
    return RewriteJob(log.name, *bounds, now_ms, limits.memory_bytes, limits.load_factor, log.config)


def _conclude(log: Log, result: CompactionResult, generation: int) -> None:
    if result.error is not None and not result.stopped:
        log.maintenance.mark_uncleanable(result.error, result.part)
    if result.error is not None or result.stopped:
        return
    if result.part == "local":
        log.maintenance.note_cleaned(result.end, generation)
    stats = result.stats
    log.maintenance.notify(
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
