"""Cleanup policies that break one rule each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, altered, result_of
from stratalog import RecordColumns
from stratalog.config.topic import TopicConfig
from stratalog.spi import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, RecordFilter, Rewrite, Verdict
from stratalog.testing.contracts import CleanupPolicyContract
from stratalog_compaction.compact import CompactPolicy, LatestWins
from stratalog_compaction.delete import DeletePolicy

Plan = Callable[[LogSummary, int], Sequence[Action]]
_PERIOD_MS: Final = 10_000


class PlanPolicy(CleanupPolicy):
    """A policy whose plan is a function of the log and the time."""

    def __init__(self, planned: Plan) -> None:
        self._planned = planned

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return the planned actions."""
        del config
        return self._planned(log, now_ms)


class RewritingPolicy(PlanPolicy):
    """A ``PlanPolicy`` that also has the record filter of the policy ``compact``."""

    record_filter = CompactPolicy.record_filter


def _planned(plan: Plan) -> Callable[[Path], CleanupPolicy]:
    return lambda _: PlanPolicy(plan)


def _filters(**changes: Any) -> Callable[[Path], CleanupPolicy]:
    """Return the policy ``compact`` with filters of which some methods are changed."""
    change = result_of(CompactPolicy, "record_filter", lambda record_filter: altered(record_filter, **changes))
    return lambda _: altered(CompactPolicy(random.Random(0)), record_filter=change)  # noqa: S311 - the same each time


def _overlapping(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    first = next((segment for segment in log.segments if segment.base_offset < segment.end_offset), None)
    return () if first is None else [Keep(first.base_offset, first.end_offset, "twice")] * 2


def _beyond(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    return [Keep(log.segments[0].base_offset, 1 << 40, "all there will be")] if log.segments else ()


def _closed(log: LogSummary) -> list[tuple[int, int]]:
    """Return the ranges of the committed closed segments."""
    return [
        (segment.base_offset, segment.end_offset)
        for segment in log.segments
        if not segment.is_active and segment.end_offset <= log.offsets.high_watermark
    ]


def _second_alone(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    closed = _closed(log)
    return [DeletePrefix(*closed[1], "not the first one")] if len(closed) == 4 else ()


def _nothing(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    first = log.segments[0] if log.segments else None
    if first is None or not first.base_offset < log.offsets.log_start < first.end_offset:
        return ()
    return [DeletePrefix(first.base_offset, log.offsets.log_start, "below the log start")]


def _all_that_is_closed(log: LogSummary) -> tuple[int, int] | None:
    last = log.offsets.last_stable
    part = [f for f in log.segments if not f.is_active and not f.is_remote and f.end_offset <= last]
    return (part[0].base_offset, part[-1].end_offset) if part else None


def _without_end(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    part = _all_that_is_closed(log)
    return () if part is None else [Rewrite(*part, part[0], "always")]


def _once(log: LogSummary, now_ms: int) -> Sequence[Action]:
    part = _all_that_is_closed(log)
    return () if part is None or (log.dirty_start or 0) >= part[1] else _without_end(log, now_ms)


def _uncommitted(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    closed = [segment for segment in log.segments if not segment.is_active]
    return [DeletePrefix(closed[0].base_offset, closed[0].end_offset, "too old")] if closed else ()


def _empty_active(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    is_empty = len(log.segments) == 1 and log.segments[0].base_offset == log.segments[0].end_offset
    return [DeletePrefix(0, 0, "it is empty")] if is_empty else ()


def _without_a_reason(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    closed = _closed(log)
    return [Keep(*closed[0], " ")] if closed else ()


def _counting(folder: Path) -> CleanupPolicy:
    calls = list[int]()

    def plan(log: LogSummary, now_ms: int) -> Sequence[Action]:
        del now_ms
        calls.append(0)
        closed = _closed(log)
        return [Keep(*closed[0], f"call {len(calls)}")] if closed else ()

    return _planned(plan)(folder)


def _changing(log: LogSummary, now_ms: int) -> Sequence[Action]:
    del now_ms
    object.__setattr__(log, "dirty_start", (log.dirty_start or 0) + 1)
    return ()


def _by_the_hour(log: LogSummary, now_ms: int) -> Sequence[Action]:
    closed = _closed(log)
    is_due = closed and not now_ms % _PERIOD_MS
    return [DeletePrefix(*closed[0], "the hour has come")] if is_due and len(closed) == 4 else ()


def _one_more(self: RecordFilter, records: RecordColumns) -> int:
    return LatestWins.observe(self, records) + 1  # type: ignore[arg-type] # a subclass


def _no_verdicts(_: RecordFilter, records: RecordColumns, verdicts: bytearray) -> None:
    del records, verdicts


def _alternating(folder: Path) -> CleanupPolicy:
    calls = list[int]()

    def judge(self: Any, records: RecordColumns, verdicts: bytearray) -> None:
        LatestWins.judge(self, records, verdicts)
        calls.append(0)
        if len(calls) % 2:
            verdicts[-1:] = bytes([Verdict.DROP]) * len(verdicts[-1:])

    return _filters(judge=judge)(folder)


MUTANTS: Final = ContractMutants(
    contract=CleanupPolicyContract,
    fixture="policy",
    sound=lambda _: DeletePolicy(),
    mutants={
        "test_ranges_ascend_without_overlap": _planned(_overlapping),
        "test_ranges_lie_inside_the_log": _planned(_beyond),
        "test_deletion_takes_a_prefix": _planned(_second_alone),
        "test_a_deletion_has_bounds_that_the_core_takes_and_deletes_something": _planned(_nothing),
        "test_a_plan_that_is_carried_out_is_not_planned_again": lambda _: RewritingPolicy(_without_end),
        "test_nothing_above_the_high_watermark_is_deleted": _planned(_uncommitted),
        "test_a_rewrite_has_bounds_that_the_core_takes": _planned(_once),
        "test_an_empty_active_segment_stays": _planned(_empty_active),
        "test_every_action_has_a_reason": _planned(_without_a_reason),
        "test_the_same_log_gives_the_same_plan": _counting,
        "test_arguments_stay_as_they_are": _planned(_changing),
        "test_time_brings_no_deletion_back": _planned(_by_the_hour),
        "test_a_filter_takes_records_from_the_first_on": _filters(observe=_one_more),
        "test_a_filter_gives_a_verdict_for_each_record": _filters(judge=_no_verdicts),
        "test_filters_do_not_know_of_each_other": _alternating,
        "test_records_that_a_digest_spares_would_stay": _filters(spares=lambda *_: True),
    },
)
