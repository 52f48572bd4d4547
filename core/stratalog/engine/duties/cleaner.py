"""Cleaner: compacts the logs of an engine. Each log has a local part and, with a tier, a tier part.

Source: apache/kafka LogCleaner, LogCleanerManager.grabFilthiestCompactedLog.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.cleaning.compact.compaction_round import CleanerLimits, CompactionResult, compact
from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.cleaning.plan.compaction_plan import CompactionPlan, dirtiest, first_dirty_offset_of, plan_parts
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.env.progress import Progress, ProgressSum
from stratalog.env.rate_limit import Throttle
from stratalog.env.threads import outcomes
from stratalog.errors import (
    ClosedError,
    LogDirError,
    LogDirOfflineError,
    OutOfResourcesError,
    PluginError,
    StorageError,
    StoreError,
)
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.spi.cleanup import Rewrite

_Part: TypeAlias = tuple[TopicPartition, str]  # name of a log, and CompactionPlan.part


@dataclass(slots=True)
class _CleanedPart:
    """State of the local or the tier part of a log during one run of the cleaner.

    A compaction round makes progress if the part is compacted up to a higher offset, or has fewer bytes or segments
    afterwards. A policy is wrong if it plans the same compaction round again after a round without progress.

    Attributes:
        reached: greatest exclusive end of the compacted offsets; -1 if it is unknown.
        idle: the plan of the latest compaction round if that round made no progress, otherwise None.
    """

    log: Log
    reached: int
    idle: Rewrite | None = None

    def note(self, rewrite: Rewrite, result: CompactionResult) -> bool:
        """Record the result of a compaction round. Return False if it and the previous round made no progress."""
        stats = result.stats
        progress = result.end > self.reached or stats.bytes_freed > 0 or stats.segments_after < stats.segments_before
        was_idle, self.idle = self.idle is not None, None if progress else rewrite
        self.reached = max(self.reached, result.end)
        return progress or not was_idle

    def repeats(self, rewrite: Rewrite) -> bool:
        """Return True if the latest compaction round made no progress, and ``rewrite`` has the bounds of that round."""
        idle = self.idle
        return idle is not None and _bounds(idle) == _bounds(rewrite)


class Cleaner:
    """Compactor of the logs of one engine. Closes none of its arguments; thread-safe.

    After each compaction round, the checkpoint of compacted offsets is stored.

    Attributes:
        limits: memory and buffer size of each thread.
    """

    def __init__(self, host: ComponentHost, opener: LogOpener, open_logs: OpenLogs) -> None:
        self._clock, self._policies, settings = host.env.clock, host.policies, host.settings.engine
        self._opener, self._open_logs = opener, open_logs
        self._threads = settings.cleaner_threads
        self.limits = CleanerLimits(
            memory_bytes=settings.cleaner_dedupe_bytes // settings.cleaner_threads,
            load_factor=settings.cleaner_load_factor,
            read_bytes=max(settings.cleaner_io_bytes // settings.cleaner_threads, 1),
        )
        self._throttle = Throttle(self._clock, settings.cleaner_bytes_per_second)
        self._plan_lock = threading.Lock()
        self._busy = set[_Part]()  # parts of logs that a thread is compacting; under _plan_lock
        self._stopping = False

    def stop(self) -> None:
        """Stop running compaction rounds early, and start no further round. Does not wait for the rounds to end."""
        self._stopping = True

    def plan(self, logs: Sequence[Log], *, asks_all: bool = False) -> list[CompactionPlan]:
        """Return one plan for each part (local or tier) of each log with a compacting policy. Changes nothing.

        A plan contains a compaction round, the reason why no round is due, or an error. ``asks_all`` is True to call
        policies even if none of them has a record filter; see ``plan_parts``.
        """
        now_ms = self._clock.now_ms()
        plans = list[CompactionPlan]()
        for log in logs:
            try:
                policies = self._policies(log.config)
            except StorageError as error:  # for instance a policy that is not installed: continue with the other logs
                plans.append(CompactionPlan(log, None, str(error), error))
                continue
            tier = self._opener.remote_of(log)
            plans += plan_parts(log, policies, tier, now_ms=now_ms, asks_all=asks_all)
        return plans

    def run(
        self, logs: Sequence[Log], *, asks_all: bool = False, progress: Progress | None = None
    ) -> list[CompactionResult]:
        """Compact the local and tier parts of logs, the dirtiest first; return the result of each compaction round.

        The call returns when no part is dirty enough. Errors of planning come first in the result, then the rounds in
        the order in which they ended. If a policy plans the same round again after that round changed nothing, the part
        of the log becomes uncleanable.

        Args:
            logs: logs to compact.
            asks_all: True to call policies even if none of them has a record filter; see ``plan_parts``.
            progress: called with the bytes that the compaction rounds have read.

        Raises:
            StorageError: a log directory went out of service, or its checkpoint cannot be written. Raised after all
                threads have ended.
        """
        results: list[CompactionResult] = []
        progress_sum = None if progress is None else ProgressSum(progress)
        parts = self._plannable_parts(logs, results, asks_all=asks_all)

        def work(_: int) -> None:
            while (result := self._run_next(parts, progress_sum)) is not None:
                results.append(result)

        failures: list[BaseException] = [
            outcome
            for outcome in outcomes(range(self._threads), work, self._threads, "stratalog-cleaner")
            if isinstance(outcome, BaseException)
        ]
        failures += [result.error for result in results if isinstance(result.error, LogDirOfflineError)]
        if failures:
            raise failures[0]
        return results

    def _plannable_parts(
        self, logs: Sequence[Log], results: list[CompactionResult], *, asks_all: bool
    ) -> dict[_Part, _CleanedPart]:
        """Return the local and tier parts of logs that can be planned. Add the error of each other part to ``results``.

        A part with an error becomes uncleanable, unless a later plan may succeed.
        """
        parts = {}
        for plan in self.plan(logs, asks_all=asks_all):
            if plan.error is not None:
                if not isinstance(plan.error, StoreError | LogDirError | ClosedError):
                    plan.log.maintenance.mark_uncleanable(plan.error, plan.part)
                results.append(
                    CompactionResult(plan.log.name, 0, 0, 0, 0.0, plan.reason, error=plan.error, part=plan.part)
                )
            else:
                parts[_part(plan)] = _CleanedPart(plan.log, first_dirty_offset_of(plan))
        return parts

    def _run_next(self, parts: dict[_Part, _CleanedPart], progress: ProgressSum | None) -> CompactionResult | None:
        """Compact the dirtiest part of a log that no other thread compacts; return the result, None if none is due.

        If the plan repeats a compaction round that made no progress, mark the part as uncleanable instead.
        """
        with self._plan_lock:
            cleaned_parts = list(parts.values())  # a copy: other threads remove parts of logs after their rounds
            logs = {cleaned.log.name: cleaned.log for cleaned in cleaned_parts if cleaned.log.healthy}
            plans = [] if self._stopping else self.plan(list(logs.values()))
            plan = dirtiest(
                [candidate for candidate in plans if _part(candidate) in parts and _part(candidate) not in self._busy]
            )
            if plan is None or plan.rewrite is None:
                return None
            part = _part(plan)
            cleaned = parts[part]
            if cleaned.repeats(plan.rewrite):
                del parts[part]
                return self._refuse_plan(plan, plan.rewrite)
            self._busy.add(part)
        try:
            result = compact(
                plan,
                self._policies(plan.log.config),
                self.limits,
                self._throttle,
                self._check,
                self._clock.now_ms(),
                None if progress is None else progress.part(),
            )
            if result.error is not None or result.stopped or not cleaned.note(plan.rewrite, result):
                parts.pop(part, None)
            with contextlib.suppress(OutOfResourcesError):  # without the checkpoint, the round is done again
                self._open_logs.write_dirty_starts(plan.log)
            return result
        finally:
            with self._plan_lock:
                self._busy.discard(part)

    def _refuse_plan(self, plan: CompactionPlan, rewrite: Rewrite) -> CompactionResult:
        """Mark a part of a log as uncleanable: its policies repeat a round without progress. Return the error."""
        log, name = plan.log, "LogSummary.dirty_start" if plan.tier is None else "LogSummary.tier_dirty_start"
        error = PluginError(
            f"cleanup.policy={','.join(self._policies(log.config))} plans {rewrite} of {log.name} again, although a "
            "round with these bounds changed nothing: correct the policy, which must plan a Rewrite only if "
            f"dirty_start is at least {name}, or choose another policy with `stratalog topics alter`; then open the "
            "log again"
        )
        log.maintenance.mark_uncleanable(error, plan.part)
        bounds = rewrite.start, rewrite.dirty_start, rewrite.dirty_start, rewrite.dirty_ratio
        return CompactionResult(log.name, *bounds, rewrite.reason, error=error, part=plan.part)

    def _check(self) -> None:
        if self._stopping:
            raise RewriteStoppedError("the engine is closing")


def _bounds(rewrite: Rewrite) -> tuple[int, int, int]:
    return rewrite.start, rewrite.end, rewrite.dirty_start


def _part(plan: CompactionPlan) -> _Part:
    return plan.log.name, plan.part
