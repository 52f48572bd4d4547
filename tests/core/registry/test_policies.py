from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from stratalog.cleaning.plan.retention import has_filter
from stratalog.config.topic import TopicConfig
from stratalog.errors import PluginError
from stratalog.registry.guard import Guard
from stratalog.registry.policies import guarded_policy
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob

GUARD = Guard("cleanup policy 'odd' version 1", "plugin odd of odd-policies 2.1")
NOTHING: Any = None  # Any: these policies look at nothing


class Failing(CleanupPolicy):
    """Raises in each method."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        raise ZeroDivisionError("plan")

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        raise ZeroDivisionError("local")


class Rewriting(Failing):
    """Gives what is no filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        return cast(RecordFilter, str(job))


def test_what_a_policy_raises_names_it() -> None:
    guarded = guarded_policy(Failing(), GUARD)
    with pytest.raises(PluginError, match=r"'odd' version 1 \(plugin odd of odd-policies 2\.1\): plan raised Zero"):
        guarded.plan(NOTHING, TopicConfig(), 0)
    with pytest.raises(PluginError, match="local_plan raised Zero"):
        guarded.local_plan(NOTHING, TopicConfig(), 0)


def test_a_filter_that_is_none_is_refused() -> None:
    with pytest.raises(PluginError, match="record_filter returned a str, not RecordFilter"):
        guarded_policy(Rewriting(), GUARD).record_filter(NOTHING)


def test_a_guarded_policy_rewrites_if_the_policy_does() -> None:
    assert has_filter(guarded_policy(Rewriting(), GUARD))
    assert not has_filter(guarded_policy(Failing(), GUARD))
