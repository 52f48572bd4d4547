from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stratalog import Record, RecordColumns
from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.spi import Action, DeletePrefix, Keep, LogSummary, Rewrite, RewriteJob, SegmentSummary
from stratalog_compaction.compact import CompactPolicy, LatestWins
from stratalog_compaction.keymap import SLOT_BYTES, KeyMap, mark_bytes, open_key_map

POLICY = CompactPolicy(random.Random(0))  # noqa: S311 - no secret here
NOW_MS = 1_000_000
LOG = TopicPartition("t", 0)


def log_of(
    sizes: list[int],
    *,
    dirty_start: int | None = None,
    log_start: int = 0,
    last_stable: int | None = None,
    stamps: list[int] | None = None,
    remote: int = 0,
) -> LogSummary:
    """Return a log whose segments have ten offsets each. The last segment is active.

    ``stamps`` are both the first and the largest timestamps of the segments. The first ``remote`` segments are in the
    tier.
    """
    segments = tuple(
        SegmentSummary(
            10 * number,
            10 * number + 10,
            size,
            stamps[number] if stamps else 1,
            is_local=True,
            is_remote=number < remote,
            is_active=number == len(sizes) - 1,
            first_timestamp_ms=stamps[number] if stamps else -1,
        )
        for number, size in enumerate(sizes)
    )
    end = 10 * len(sizes)
    stable = end if last_stable is None else last_stable
    offsets = LogOffsets(log_start, log_start, end, end, stable, end)
    return LogSummary(LOG, offsets, segments, has_tier=remote > 0, dirty_start=dirty_start)


def config(**settings: object) -> TopicConfig:
    base = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.5}
    return TopicConfig.from_mapping({**base, **{name.replace("_", "."): value for name, value in settings.items()}}, "")


def plan(log: LogSummary, **settings: object) -> list[Action]:
    return list(POLICY.plan(log, config(**settings), NOW_MS))


def rewrite(actions: list[Action]) -> Rewrite | None:
    rewrites = [action for action in actions if isinstance(action, Rewrite)]
    assert len(rewrites) <= 1
    return rewrites[0] if rewrites else None


def bounds(actions: list[Action]) -> tuple[int, int, int] | None:
    action = rewrite(actions)
    return None if action is None else (action.start, action.dirty_start, action.end)


def test_a_log_that_was_never_compacted_is_dirty_up_to_the_active_segment() -> None:
    actions = plan(log_of([100, 100, 100]))
    assert bounds(actions) == (0, 0, 20)
    assert actions[-1] == Keep(20, 30, "the active segment")


@pytest.mark.parametrize(("ratio", "is_due"), [(0.49, True), (0.5, False), (0.51, False)])
def test_the_dirty_share_must_be_above_the_ratio(ratio: float, is_due: bool) -> None:  # noqa: FBT001 - by parametrize
    actions = plan(log_of([100, 100, 1000], dirty_start=10), min_cleanable_dirty_ratio=ratio)
    assert (rewrite(actions) is not None) == is_due
    action = rewrite(actions)
    if action is not None:
        assert action.dirty_ratio == pytest.approx(0.5)
        assert action.start == 0
    else:
        assert "0.50" in actions[0].reason


def test_the_segment_where_the_dirt_begins_counts_on_both_sides() -> None:
    action = rewrite(plan(log_of([100, 100, 0], dirty_start=5), min_cleanable_dirty_ratio=0))
    assert action is not None
    assert action.dirty_ratio == pytest.approx(200 / 300)


@pytest.mark.parametrize(
    ("dirty_start", "log_start", "expected"), [(3, 12, 12), (99, 12, 12), (30, 0, None), (15, 12, 15)]
)
def test_a_checkpoint_that_the_log_does_not_bear_out_begins_again_at_the_log_start(
    dirty_start: int, log_start: int, expected: int | None
) -> None:
    actions = plan(log_of([100, 100, 100], dirty_start=dirty_start, log_start=log_start), min_cleanable_dirty_ratio=0)
    action = rewrite(actions)
    assert (None if action is None else action.dirty_start) == expected


def test_nothing_from_the_last_stable_offset_on_is_touched_nor_the_segment_that_holds_it() -> None:
    """KAFKA-13194: an uncommitted record may be truncated later, so it must not replace an older record."""
    actions = plan(log_of([100, 100, 100, 100], last_stable=25))
    assert bounds(actions) == (0, 0, 20)
    assert "last stable offset 25" in actions[-1].reason
    assert bounds(plan(log_of([100, 100], last_stable=5))) is None


def test_young_segments_stay() -> None:
    stamps = [1, NOW_MS - 50, 1, 1]
    assert bounds(plan(log_of([100] * 4, stamps=stamps), min_compaction_lag_ms=50)) == (0, 0, 30)
    actions = plan(log_of([100] * 4, stamps=stamps), min_compaction_lag_ms=51)
    assert bounds(actions) == (0, 0, 10)
    assert "min.compaction.lag.ms=51" in actions[-1].reason


def test_a_log_with_an_old_dirty_record_is_due_however_clean_it_is() -> None:
    log = log_of([1000, 10, 10], dirty_start=10, stamps=[1, NOW_MS - 101, 1])
    assert rewrite(plan(log, max_compaction_lag_ms=101)) is None
    action = rewrite(plan(log, max_compaction_lag_ms=100))
    assert action is not None
    assert "max.compaction.lag.ms=100" in action.reason


def test_segments_below_the_log_start_are_deleted_first() -> None:
    actions = plan(log_of([100, 100, 100, 100], log_start=15))
    assert isinstance(actions[0], DeletePrefix)
    assert bounds(actions) == (10, 15, 30)


def test_a_log_start_in_the_active_segment_leaves_nothing_to_do() -> None:
    """Kafka's cleaner selected such a log in each round (KAFKA-9826)."""
    assert bounds(plan(log_of([100, 100], log_start=15), min_cleanable_dirty_ratio=0)) is None


def test_the_tier_and_the_local_rest_are_compacted_separately() -> None:
    log = replace(log_of([100] * 5, remote=3, dirty_start=5), tier_dirty_start=10)
    rewrites = [action for action in plan(log) if isinstance(action, Rewrite)]
    assert [(action.start, action.dirty_start, action.end) for action in rewrites] == [(0, 10, 30), (30, 30, 40)]
    assert [round(action.dirty_ratio, 2) for action in rewrites] == [0.67, 1]
    clean_actions = plan(replace(log, tier_dirty_start=30))
    assert clean_actions[0] == Keep(0, 30, "compacted; nothing after it can be compacted yet")
    assert bounds(clean_actions) == (30, 30, 40)


def test_an_empty_log_has_no_plan() -> None:
    log = log_of([0])
    empty = replace(log, segments=(replace(log.segments[0], end_offset=0),), offsets=LogOffsets(0, 0, 0, 0, 0, 0))
    assert plan(empty) == []


def job(memory_bytes: int, end: int = 1000) -> RewriteJob:
    return RewriteJob(LOG, 0, end, 0, NOW_MS, memory_bytes, 0.5)


def test_the_filter_takes_as_many_keys_as_its_share_of_the_memory_holds() -> None:
    record_filter = POLICY.record_filter(job(20 * SLOT_BYTES))
    records = RecordColumns.from_records(Record(offset=number, key=b"%d" % number) for number in range(30))
    assert record_filter.observe(records) == 10
    assert record_filter.load == pytest.approx(1.0)


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("end", [1, 1000, 40_000, 10**9])
@pytest.mark.parametrize("memory_bytes", [4096, 100_000, 1 << 20])
def test_marks_neither_exceed_the_memory_nor_cost_a_key(
    memory_bytes: int, end: int, load_factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(slots: int, usable: int, secret: bytes, *, sums_up: bool, marked: range) -> KeyMap:
        assert slots * SLOT_BYTES + mark_bytes(marked) <= memory_bytes
        assert usable == min(int(memory_bytes // SLOT_BYTES * load_factor), slots - 1)
        assert marked in (range(0), range(end))
        assert usable >= min(end, int(memory_bytes // SLOT_BYTES * load_factor) - 1)
        return open_key_map(slots, usable, secret, sums_up=sums_up, marked=marked)

    monkeypatch.setattr("stratalog_compaction.compact.open_key_map", opened)
    LatestWins(RewriteJob(LOG, 0, end, 0, NOW_MS, memory_bytes, load_factor), bytes(16))


def test_a_round_allocates_only_memory_that_it_can_fill() -> None:
    """A map of the size of ``log.cleaner.dedupe.buffer.size`` would waste memory for a small log."""
    record_filter = POLICY.record_filter(job(1 << 40, end=10))
    records = RecordColumns.from_records(Record(offset=number, key=b"%d" % number) for number in range(10))
    assert record_filter.observe(records) == 10
