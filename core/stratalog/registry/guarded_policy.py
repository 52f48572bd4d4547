"""Guards of cleanup policies, whose calls have a deadline."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.config.topic import TopicConfig
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob


def guarded_policy(policy: CleanupPolicy, guard: Guard) -> CleanupPolicy:
    """Return a policy whose calls have a deadline, and which raises only StorageErrors.

    The returned policy has a record filter if ``policy`` has one. The filter is a guarded part.
    """
    if type(policy).record_filter is CleanupPolicy.record_filter:
        return _GuardedPolicy(policy, guard)
    return _GuardedRewriting(policy, guard)


class _GuardedPolicy(CleanupPolicy):
    """A guarded policy without a record filter."""

    def __init__(self, policy: CleanupPolicy, guard: Guard) -> None:
        self._policy, self._guard = policy, guard

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``CleanupPolicy.plan``."""
        return self._guard.call("plan", lambda: tuple(self._policy.plan(log, config, now_ms)))

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``CleanupPolicy.local_plan``."""
        return self._guard.call("local_plan", lambda: tuple(self._policy.local_plan(log, config, now_ms)))


class _GuardedRewriting(_GuardedPolicy):
    """A guarded policy with a record filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """As ``CleanupPolicy.record_filter``."""
        made = self._guard.call("record_filter", lambda: self._policy.record_filter(job))
        self._guard.check_type("record_filter", made, RecordFilter)
        return guarded_part(made, RecordFilter, self._guard)
