"""The cleaner: of all logs, the filthiest is compacted next.

Source: apache/kafka LogCleaner, LogCleanerManager.grabFilthiestCompactedLog.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from stratalog.cleaning.compaction import CleanerLimits, CompactionResult, compact, give_up
from stratalog.cleaning.dryrun import RoundPreview, preview
from stratalog.cleaning.part import RewriteStoppedError
from stratalog.cleaning.plan import CompactionPlan, filthiest, plan_parts
from stratalog.cleaning.throttle import Throttle
from stratalog.config.engine import EngineConfig
from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.env.threads import outcomes
from stratalog.errors import DiskFullError, LogDirOfflineError, StoreError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.tier.log import TierLog

_Part: TypeAlias = tuple[TopicPartition, str]  # of a log: as CompactionPlan.part
Policies = Callable[[TopicConfig], Mapping[str, CleanupPolicy]]


class Cleaner:
    """Compacts logs of one engine. All it is given is borrowed; thread-safe.

    Args:
        settings: ``log.cleaner.*``.
        clock: says what is due.
        policies: opens the policies of a topic.
        tier_of: what a log has in a tier, None if it has none.
        written: called after each round, with its log: the time to store the checkpoint.
    """

    def __init__(
        self,
        settings: EngineConfig,
        clock: Clock,
        policies: Policies,
        tier_of: Callable[[Log], TierLog | None],
        written: Callable[[Log], None],
    ) -> None:
        self._clock, self._policies, self._tier_of, self._written = clock, policies, tier_of, written
        self._threads = settings.cleaner_threads
        self.limits = CleanerLimits(
            memory_bytes=settings.cleaner_dedupe_bytes // settings.cleaner_threads,
            load_factor=settings.cleaner_load_factor,
            read_bytes=max(settings.cleaner_io_bytes // settings.cleaner_threads, 1),
        )
        self._throttle = Throttle(clock, settings.cleaner_bytes_per_second)
        self._choosing = threading.Lock()
        self._busy = set[_Part]()  # parts of logs that a thread is at; under _choosing
        self._stopping = False

    def stop(self) -> None:
        """End rounds that are under way soon, and begin none."""
        self._stopping = True

    def plan(self, logs: Sequence[Log]) -> list[CompactionPlan]:
        """What would be done with those logs that are compacted at all: one plan for each part."""
        now_ms = self._clock.now_ms()
        found = list[CompactionPlan]()
        for log in logs:
            tier = self._tier_of(log)
            found += plan_parts(log, self._policies(log.config), tier, has_tier=tier is not None, now_ms=now_ms)
        return found

    def preview(self, plan: CompactionPlan) -> RoundPreview | None:
        """What the round that is planned would do, by reading what it would read; None if none is."""
        return preview(plan, self._policies(plan.log.config), self.limits, self._clock.now_ms())

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

    def _plannable(self, logs: Sequence[Log], results: list[CompactionResult]) -> dict[_Part, Log]:
        """The logs that somebody compacts; what is wrong with others becomes a result."""
        left = {}
        for plan in self.plan(logs):
            if plan.error is not None:
                if not isinstance(plan.error, StoreError):
                    give_up(plan.log, plan.error, plan.part)
                results.append(
                    CompactionResult(plan.log.name, 0, 0, 0, 0.0, plan.reason, error=plan.error, part=plan.part)
                )
            else:
                left[_part(plan)] = plan.log
        return left

    def _next(self, left: dict[_Part, Log]) -> CompactionResult | None:
        """Clean the filthiest part of the logs; None if none is dirty enough that no other thread is at."""
        with self._choosing:
            logs = {log.name: log for log in left.values() if log.healthy}
            plans = [] if self._stopping else self.plan(list(logs.values()))
            plan = filthiest([found for found in plans if _part(found) in left and _part(found) not in self._busy])
            if plan is None:
                return None
            part = _part(plan)
            self._busy.add(part)
        try:
            result = compact(
                plan, self._policies(plan.log.config), self.limits, self._throttle, self._check, self._clock.now_ms()
            )
            if result.error is not None or result.stopped:
                left.pop(part, None)
            with contextlib.suppress(DiskFullError):  # a round that is not noted is done again
                self._written(plan.log)
            return result
        finally:
            with self._choosing:
                self._busy.discard(part)

    def _check(self) -> None:
        if self._stopping:
            raise RewriteStoppedError("the engine is closing")


def _part(plan: CompactionPlan) -> _Part:
    return plan.log.name, plan.part
