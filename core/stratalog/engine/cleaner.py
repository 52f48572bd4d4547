"""The cleaner: of all logs, the filthiest is compacted next.

Source: apache/kafka LogCleaner, LogCleanerManager.grabFilthiestCompactedLog.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from stratalog.cleaning.compaction import (
    CleanerLimits,
    CompactionPlan,
    CompactionResult,
    compact,
    filthiest,
    give_up,
    plan_compaction,
)
from stratalog.cleaning.dryrun import RoundPreview, preview
from stratalog.cleaning.rewrite import RewriteStoppedError
from stratalog.cleaning.throttle import Throttle
from stratalog.config.engine import EngineConfig
from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.env.threads import outcomes
from stratalog.errors import DiskFullError, LogDirOfflineError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import CleanupPolicy

Policies = Callable[[TopicConfig], Mapping[str, CleanupPolicy]]


class Cleaner:
    """Compacts logs of one engine. All it is given is borrowed; thread-safe.

    Args:
        settings: ``log.cleaner.*``.
        clock: says what is due.
        policies: opens the policies of a topic.
        has_tier: whether a log has a tier.
        written: called after each round, with its log: the time to store the checkpoint.
    """

    def __init__(
        self,
        settings: EngineConfig,
        clock: Clock,
        policies: Policies,
        has_tier: Callable[[Log], bool],
        written: Callable[[Log], None],
    ) -> None:
        self._clock, self._policies, self._has_tier, self._written = clock, policies, has_tier, written
        self._threads = settings.cleaner_threads
        self.limits = CleanerLimits(
            memory_bytes=settings.cleaner_dedupe_bytes // settings.cleaner_threads,
            load_factor=settings.cleaner_load_factor,
            read_bytes=max(settings.cleaner_io_bytes // settings.cleaner_threads, 1),
        )
        self._throttle = Throttle(clock, settings.cleaner_bytes_per_second)
        self._choosing = threading.Lock()
        self._busy = set[TopicPartition]()  # logs that a thread is at; under _choosing
        self._stopping = False

    def stop(self) -> None:
        """End rounds that are under way soon, and begin none."""
        self._stopping = True

    def plan(self, logs: Sequence[Log]) -> list[CompactionPlan]:
        """What would be done with those logs that are compacted at all."""
        now_ms = self._clock.now_ms()
        plans = (
            plan_compaction(log, self._policies(log.config), has_tier=self._has_tier(log), now_ms=now_ms)
            for log in logs
        )
        return [plan for plan in plans if plan is not None]

    def preview(self, plan: CompactionPlan) -> RoundPreview | None:
        """What the round that is planned would do, by reading what it would read; None if none is."""
        if plan.rewrite is None:
            return None
        return preview(plan.log, plan.rewrite, self._policies(plan.log.config), self.limits, self._clock.now_ms())

    def run(self, logs: Sequence[Log]) -> list[CompactionResult]:
        """Compact until no log is dirty enough; each result as it came, those that could not be planned first.

        Raises:
            StorageError: a log or its directory went out of service; after all threads have ended.
        """
        results: list[CompactionResult] = []
        left = self._plannable(logs, results)

        def work(_: int) -> None:
            while (result := self._next(left)) is not None:
                results.append(result)

        failures: list[BaseException] = [
            found
            for found in outcomes(range(self._threads), work, self._threads, "stratalog-cleaner")
            if isinstance(found, BaseException)
        ]
        failures += [result.error for result in results if isinstance(result.error, LogDirOfflineError)]
        if failures:
            raise failures[0]
        return results

    def _plannable(self, logs: Sequence[Log], results: list[CompactionResult]) -> dict[TopicPartition, Log]:
        """The logs that somebody compacts; what is wrong with others becomes a result."""
        left = {}
        for plan in self.plan(logs):
            if plan.error is not None:
                give_up(plan.log, plan.error)
                results.append(CompactionResult(plan.log.name, 0, 0, 0, 0.0, plan.reason, error=plan.error))
            else:
                left[plan.log.name] = plan.log
        return left

    def _next(self, left: dict[TopicPartition, Log]) -> CompactionResult | None:
        """Clean the filthiest of the logs; None if none is dirty enough that no other thread is at."""
        with self._choosing:
            free = [log for name, log in left.items() if name not in self._busy and log.healthy]
            plan = None if self._stopping else filthiest(self.plan(free))
            if plan is None or plan.rewrite is None:
                return None
            name = plan.log.name
            self._busy.add(name)
        try:
            result = compact(
                plan, self._policies(plan.log.config), self.limits, self._throttle, self._check, self._clock.now_ms()
            )
            if result.error is not None or result.stopped:
                left.pop(name, None)
            with contextlib.suppress(DiskFullError):  # a round that is not noted is done again
                self._written(plan.log)
            return result
        finally:
            with self._choosing:
                self._busy.discard(name)

    def _check(self) -> None:
        if self._stopping:
            raise RewriteStoppedError("the engine is closing")
