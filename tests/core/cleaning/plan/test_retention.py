from __future__ import annotations

from collections.abc import Sequence

import pytest

from log_bed import LogBed
from stratalog.cleaning.plan.log_summary import summarise
from stratalog.cleaning.plan.retention import RetentionResult, apply_retention
from stratalog.config.topic import TopicConfig
from stratalog.errors import PluginError
from stratalog.log.log import Log
from stratalog.model.events import LogUncleanable, SegmentsDeleted
from stratalog.model.offsets import Watermark
from stratalog.model.records import Record
from stratalog.spi.cleanup import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, Rewrite
from stratalog_compaction.delete import DeletePolicy

COUNT = 8


class ActionsPolicy(CleanupPolicy):
    """Policy that plans the given actions, also for local retention."""

    def __init__(self, *actions: Action) -> None:
        self.actions = actions

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return self.actions

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        return self.plan(log, config, now_ms)


def filled(bed: LogBed, **settings: object) -> Log:
    """Return a log with eight records, one each second, two in each segment.

    The clock is two seconds after the last record.
    """
    bed.topic = TopicConfig.from_mapping({"segment.bytes": 250, "file.delete.delay.ms": 0, **settings}, "test")
    log = bed.open()
    for _ in range(COUNT):
        bed.clock.advance_ms(1000)
        log.append([Record(value=b"x" * 50)])
    bed.clock.advance_ms(2000)
    assert [segment.base_offset for segment in log.segments()] == [0, 2, 4, 6]
    return log


def run(log: Log, bed: LogBed, *policies: CleanupPolicy, dry_run: bool = False) -> RetentionResult:
    named_policies = {str(number): policy for number, policy in enumerate(policies)}
    return apply_retention(log, named_policies, None, now_ms=bed.clock.now_ms(), dry_run=dry_run)


def offsets_left(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


@pytest.mark.parametrize(
    ("retention_ms", "first"), [(-1, 0), (9000, 0), (8000, 0), (7999, 2), (6000, 2), (5000, 4), (1999, 8), (0, 8)]
)
def test_segments_that_are_too_old_are_deleted(bed: LogBed, retention_ms: int, first: int) -> None:
    log = filled(bed, **{"retention.ms": retention_ms})
    sizes = [segment.size_bytes for segment in log.segments()]
    result = run(log, bed, DeletePolicy())
    assert offsets_left(log) == list(range(first, COUNT))
    assert (result.log_start, result.deleted_segments) == (first, first // 2)
    assert result.deleted_bytes == sum(sizes[: first // 2])
    assert (result.evicted_segments, result.evicted_bytes) == (0, 0)
    assert bool(result.reasons) is bool(first)
    deleted = [event for event in bed.events if isinstance(event, SegmentsDeleted)]
    assert [(event.log_start, event.segments) for event in deleted] == ([(first, first // 2)] if first else [])
    assert log.append([Record(value=b"next")]).base_offset == COUNT


def test_a_dry_run_reports_the_plan_and_changes_nothing(bed: LogBed) -> None:
    log = filled(bed, **{"retention.ms": 5000})
    before, events = bed.contents(), list(bed.events)
    promised = run(log, bed, DeletePolicy(), dry_run=True)
    assert (bed.contents(), bed.events) == (before, events)
    assert offsets_left(log) == list(range(COUNT))
    assert run(log, bed, DeletePolicy()) == promised


def test_a_second_pass_finds_nothing(bed: LogBed) -> None:
    log = filled(bed, **{"retention.ms": 0})
    assert run(log, bed, DeletePolicy()).deleted_segments == 4
    second = run(log, bed, DeletePolicy())
    assert (second.deleted_segments, second.deleted_bytes, second.reasons) == (0, 0, ())


def test_segments_below_the_log_start_are_deleted(bed: LogBed) -> None:
    log = filled(bed, **{"retention.ms": -1})
    log.delete_records(5)
    result = run(log, bed, DeletePolicy())
    assert (result.log_start, result.deleted_segments) == (5, 2)
    assert [segment.base_offset for segment in log.segments()] == [4, 6]
    assert offsets_left(log) == [5, 6, 7]


def test_the_policy_that_deletes_most_wins(bed: LogBed) -> None:
    log = filled(bed)
    result = run(
        log,
        bed,
        ActionsPolicy(DeletePrefix(0, 2, "little")),
        ActionsPolicy(Keep(0, 8, "all"), DeletePrefix(0, 4, "more")),
    )
    assert (result.log_start, result.deleted_segments) == (4, 2)
    assert result.reasons == ("little", "more")


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (
            DeletePrefix(0, COUNT + 1, "everything there will ever be"),
            f"ends beyond the log, whose end offset is {COUNT}",
        ),
        (DeletePrefix(0, 0, "an empty range"), "is empty"),
        (DeletePrefix(2, 4, "the middle"), "is not a prefix"),
        (Rewrite(0, 2, 0, "no filter"), "implement its method record_filter"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_makes_the_log_uncleanable_and_deletes_nothing(
    bed: LogBed, action: Action, problem: str
) -> None:
    log = filled(bed)
    for dry_run in (True, False, False):
        with pytest.raises(PluginError, match=problem):
            run(log, bed, ActionsPolicy(DeletePrefix(0, 2, "a right one")), ActionsPolicy(action), dry_run=dry_run)
        assert (problem in log.maintenance.cleaning.local.uncleanable) == (not dry_run)
    assert offsets_left(log) == list(range(COUNT))
    uncleanable = [event for event in bed.events if isinstance(event, LogUncleanable)]
    assert [problem in event.reason for event in uncleanable] == [True]


def test_a_deletion_that_deletes_nothing_makes_the_log_uncleanable(bed: LogBed) -> None:
    """Without this error, the policy would plan the same deletion in each later pass."""
    log = filled(bed)
    log.delete_records(3)
    policy = ActionsPolicy(DeletePrefix(0, 3, "up to there"))
    assert run(log, bed, policy).deleted_segments == 1
    policy.actions = (DeletePrefix(2, 3, "up to there"),)
    with pytest.raises(PluginError, match="which deletes nothing: the log starts at 3"):
        run(log, bed, policy)
    assert "which deletes nothing" in log.maintenance.cleaning.local.uncleanable
    assert run(log, bed, policy, ActionsPolicy(DeletePrefix(2, 4, "more"))).log_start == 4


@pytest.mark.parametrize(("watermark", "left"), [(0, [0, 2, 4, 6]), (3, [2, 4, 6]), (4, [4, 6]), (7, [6])])
def test_no_segment_that_reaches_above_the_high_watermark_is_deleted(
    bed: LogBed, watermark: int, left: list[int]
) -> None:
    bed.watermark = Watermark.EXTERNAL
    log = filled(bed, **{"retention.ms": 0})
    log.follow(1)  # the high watermark of a follower can decrease
    log.set_high_watermark(watermark)
    log.lead(2)
    result = run(log, bed, DeletePolicy(), ActionsPolicy(DeletePrefix(0, COUNT, "everything")))
    assert [segment.base_offset for segment in log.segments()] == left
    assert result.log_start == log.offsets().log_start == watermark


def test_a_prefix_may_end_inside_a_segment(bed: LogBed) -> None:
    log = filled(bed)
    result = run(log, bed, ActionsPolicy(DeletePrefix(0, 5, "up to there")))
    assert (result.log_start, result.deleted_segments) == (5, 2)
    assert offsets_left(log) == [5, 6, 7]
    assert [segment.base_offset for segment in log.segments()] == [4, 6]


def test_without_a_tier_nothing_is_evicted(bed: LogBed) -> None:
    log = filled(bed, **{"retention.ms": -1, "local.retention.ms": 0})
    assert run(log, bed, DeletePolicy()).evicted_segments == 0
    assert offsets_left(log) == list(range(COUNT))


def test_a_summary_describes_all_segments(bed: LogBed) -> None:
    log = filled(bed)
    summary = summarise(log, has_tier=False)
    assert [(segment.base_offset, segment.end_offset) for segment in summary.segments] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
    ]
    assert [segment.is_active for segment in summary.segments] == [False, False, False, True]
    assert all(segment.is_local and not segment.is_remote for segment in summary.segments)
    newest = [bed.clock.now_ms() - 2000 - 1000 * after for after in (6, 4, 2, 0)]
    assert [segment.age_from_ms for segment in summary.segments] == newest
    assert (summary.offsets, summary.has_tier) == (log.offsets(), False)
