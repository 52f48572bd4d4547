"""Policies that break one rule each, and the test of the contract that notices it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.errors import PluginError
from stratalog.spi import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    LogSummary,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
)
from stratalog.testing.contracts import CleanupPolicyContract


def closed(log: LogSummary) -> list[SegmentSummary]:
    """The segments of the local part that a rewrite may hold."""
    last = log.offsets.last_stable
    return [found for found in log.segments if not found.is_active and not found.is_remote and found.end_offset <= last]


class AlwaysTheSame(CleanupPolicy):
    """Rewrites all that is closed, and never reads ``dirty_start``."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del config, now_ms
        part = closed(log)
        return [Rewrite(part[0].base_offset, part[-1].end_offset, part[0].base_offset, "always")] if part else []

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        raise AssertionError(f"{job} is only planned")


class Once(AlwaysTheSame):
    """The same, and only what is dirty."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        part, done = closed(log), log.dirty_start or 0
        return () if part and done >= part[-1].end_offset else super().plan(log, config, now_ms)


class Unfiltered(Once):
    """The same, without a filter."""

    record_filter = CleanupPolicy.record_filter


class DeletesNothing(CleanupPolicy):
    """Deletes up to the log start, where that is inside the first segment."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del config, now_ms
        first = log.segments[0] if log.segments else None
        if first is None or not first.base_offset < log.offsets.log_start < first.end_offset:
            return ()
        return [DeletePrefix(first.base_offset, log.offsets.log_start, "below the log start")]


class DeletesBeyond(CleanupPolicy):
    """Deletes more than there is."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del config, now_ms
        return [DeletePrefix(log.segments[0].base_offset, 1 << 40, "all there will be")] if log.segments else ()


class Contract(CleanupPolicyContract):
    __test__ = False


CONTRACT = Contract()


@pytest.mark.parametrize("policy", [AlwaysTheSame(), DeletesNothing()])
def test_the_contract_refuses_a_policy_that_plans_without_end(policy: CleanupPolicy) -> None:
    with pytest.raises(AssertionError, match="whose work is done"):
        CONTRACT.test_a_plan_that_is_carried_out_is_not_planned_again(policy)


def test_the_contract_accepts_a_policy_that_uses_the_checkpoint() -> None:
    CONTRACT.test_a_plan_that_is_carried_out_is_not_planned_again(Once())
    CONTRACT.test_a_rewrite_has_bounds_that_the_core_takes(Once())


def test_the_contract_refuses_a_rewrite_without_a_filter() -> None:
    with pytest.raises(PluginError, match="needs a record filter: implement its method record_filter"):
        CONTRACT.test_a_rewrite_has_bounds_that_the_core_takes(Unfiltered())


def test_the_contract_refuses_deletions_of_nothing_and_beyond_the_end() -> None:
    with pytest.raises(AssertionError):
        CONTRACT.test_a_deletion_has_bounds_that_the_core_takes_and_deletes_something(DeletesNothing())
    with pytest.raises(PluginError, match="ends beyond the log"):
        CONTRACT.test_a_deletion_has_bounds_that_the_core_takes_and_deletes_something(DeletesBeyond())
