"""Guards of cleanup policies, whose calls have a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stratalog.config.topic import TopicConfig
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import Guarded, guarded_part
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob


def guarded_policy(policy: CleanupPolicy, guard: Guard) -> CleanupPolicy:
    """Return a policy that calls ``policy`` with a deadline. Exceptions that are not StorageErrors become PluginErrors.

    If ``policy`` has a record filter, the returned policy has a record filter that is a guarded part
    (``guarded_parts``).
    """
    if type(policy).record_filter is CleanupPolicy.record_filter:
        return _GuardedPolicy(policy, guard)
    return _GuardedRewriting(policy, guard)


class _GuardedPolicy(Guarded, CleanupPolicy):
    """A guarded policy without a record filter."""

    inner: CleanupPolicy

    def __init__(self, policy: CleanupPolicy, guard: Guard) -> None:
        self.inner, self.guard = policy, guard

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Call ``plan`` of the plugin's policy with a deadline, and return its result."""
        return self._actions("plan", lambda: self.inner.plan(log, config, now_ms))

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Call ``local_plan`` of the plugin's policy with a deadline, and return its result."""
        return self._actions("local_plan", lambda: self.inner.local_plan(log, config, now_ms))

    def _actions(self, method: str, plan: Callable[[], Iterable[Action]]) -> tuple[Action, ...]:
        def work() -> tuple[Action, ...]:
            actions = plan()
            self.guard.check_type(method, actions, Iterable)
            return tuple(actions)

        return self.guard.call(method, work)


class _GuardedRewriting(_GuardedPolicy):
    """A guarded policy with a record filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a guarded part that calls a new filter of the plugin's policy.

        Only the creation of the filter has a deadline.
        """
        record_filter = self.guard.call("record_filter", lambda: self.inner.record_filter(job))
        self.guard.check_type("record_filter", record_filter, RecordFilter)
        return guarded_part(record_filter, RecordFilter, self.guard)
