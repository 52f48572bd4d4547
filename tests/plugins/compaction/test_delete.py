from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.spi import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, SegmentSummary
from stratalog.testing.contracts import CleanupPolicyContract
from stratalog_compaction.compact import CompactPolicy
from stratalog_compaction.delete import DeletePolicy

FOREVER = TopicConfig(retention_ms=-1)
COMPACT = CompactPolicy(random.Random(0))  # noqa: S311 - no secret here


def log_of(
    sizes: Sequence[int],
    *,
    ages_from: Sequence[int] | None = None,
    high_watermark: int | None = None,
    log_start: int = 0,
) -> LogSummary:
    """Return a log with one segment of ten offsets for each size.

    The last segment is active. If its size is 0, it has no offsets. ``ages_from`` are the timestamps that retention
    uses.
    """
    stamps = list(ages_from) if ages_from is not None else [0] * len(sizes)
    segments = []
    for index, (size, stamp) in enumerate(zip(sizes, stamps, strict=True)):
        base, active = index * 10, index == len(sizes) - 1
        end = base if active and not size else base + 10
        segments.append(SegmentSummary(base, end, size, stamp, is_local=True, is_remote=False, is_active=active))
    end = segments[-1].end_offset
    watermark = end if high_watermark is None else high_watermark
    offsets = LogOffsets(log_start, log_start, end, watermark, watermark, end)
    return LogSummary(TopicPartition("t", 0), offsets, tuple(segments), has_tier=False)


def deleted(plan: Sequence[Action]) -> int:
    """Return the number of segments of ten offsets that a plan deletes."""
    return sum((action.end - action.start) // 10 for action in plan if isinstance(action, DeletePrefix))


def reasons(plan: Sequence[Action]) -> str:
    return "; ".join(action.reason for action in plan if isinstance(action, DeletePrefix))


class TestDeletePolicy(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return DeletePolicy()


class TestCompactPolicy(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return COMPACT


# --- by time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention_ms", "stamps", "expected"),
    [
        (6000, [1000, 5000, 2000], 1),
        (9000, [1000, 5000, 2000], 0),
        (8999, [1000, 5000, 2000], 1),
        (4999, [1000, 5000, 2000], 3),
        (6000, [20_000, 1000, 1000], 0),
        (0, [9999, 9999, 10_000], 2),
        (-1, [0, 0, 0], 0),
    ],
    ids=["Kafka's example", "exactly as old", "one older", "all", "a future record pins all", "zero", "off"],
)
def test_segments_are_deleted_when_their_newest_record_is_too_old(
    retention_ms: int, stamps: list[int], expected: int
) -> None:
    config = TopicConfig(retention_ms=retention_ms)
    plan = DeletePolicy().plan(log_of([100, 100, 100], ages_from=stamps), config, 10_000)
    assert deleted(plan) == expected
    assert ("retention.ms" in reasons(plan)) is bool(expected)


@pytest.mark.parametrize("policy", [DeletePolicy(), COMPACT], ids=["delete", "compact"])
def test_a_segment_of_the_tier_is_deleted_up_to_its_end_inside_a_local_segment(policy: CleanupPolicy) -> None:
    """The tier has [0, 12). The local segment [10, 20) is from another leader, which had other segment bounds.

    The plan once ended at offset 10. It deleted nothing, and the policy counted as wrong.
    """
    log = log_of([100, 100, 100], log_start=15)
    first = replace(log.segments[0], end_offset=12, is_local=False, is_remote=True)
    plan = policy.plan(replace(log, segments=(first, *log.segments[1:]), has_tier=True), FOREVER, 0)
    assert [(action.start, action.end) for action in plan if isinstance(action, DeletePrefix)] == [(0, 12)]
    if policy is COMPACT:
        assert [action.start for action in plan] == [0, 10, 20]


# --- by size -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention_bytes", "expected"),
    [(250, 0), (240, 1), (140, 2), (139, 2), (40, 3), (1, 3), (0, 4), (340, 0), (1000, 0), (-1, 0), (-5, 0)],
)
def test_segments_are_deleted_while_the_log_stays_above_its_size(retention_bytes: int, expected: int) -> None:
    config = replace(FOREVER, retention_bytes=retention_bytes)
    plan = DeletePolicy().plan(log_of([100, 100, 100, 40]), config, 10_000)
    assert deleted(plan) == expected
    assert ("retention.bytes" in reasons(plan)) is bool(expected)


def test_a_large_segment_shields_the_ones_after_it() -> None:
    config = replace(FOREVER, retention_bytes=50)
    assert deleted(DeletePolicy().plan(log_of([10, 1000, 10, 40]), config, 0)) == 2
    assert deleted(DeletePolicy().plan(log_of([1000, 10, 10, 40]), replace(config, retention_bytes=100), 0)) == 0


# --- by log start offset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("log_start", "expected"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 2)])
@pytest.mark.parametrize("policy", [DeletePolicy(), COMPACT], ids=["delete", "compact"])
def test_segments_are_deleted_when_the_next_one_begins_below_the_log_start(
    policy: CleanupPolicy, log_start: int, expected: int
) -> None:
    plan = policy.plan(log_of([100, 100, 100], log_start=log_start), FOREVER, 10_000)
    assert deleted(plan) == expected
    assert ("log start" in reasons(plan)) is bool(expected)


def test_compaction_deletes_neither_by_time_nor_by_size() -> None:
    config = TopicConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert deleted(COMPACT.plan(log_of([100, 100, 100]), config, 10_000)) == 0


# --- segments that are never deleted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("high_watermark", "expected"), [(0, 0), (9, 0), (10, 1), (25, 2), (29, 2), (30, 3)])
def test_nothing_at_or_above_the_high_watermark_is_deleted(high_watermark: int, expected: int) -> None:
    config = TopicConfig(retention_ms=0, retention_bytes=0)
    assert (
        deleted(DeletePolicy().plan(log_of([100, 100, 100], high_watermark=high_watermark), config, 10**6)) == expected
    )


def test_an_active_segment_is_deleted_when_it_is_too_old() -> None:
    config = TopicConfig(retention_ms=5000)
    assert DeletePolicy().plan(log_of([100]), config, 10_000)[0].end == 10


def test_an_empty_active_segment_stays() -> None:
    config = TopicConfig(retention_ms=0, retention_bytes=0)
    assert deleted(DeletePolicy().plan(log_of([100, 100, 0]), config, 10_000)) == 2
    assert DeletePolicy().plan(log_of([0]), config, 10_000) == ()


# --- rules one after the other -----------------------------------------------------------------------------------


def test_each_rule_continues_where_the_one_before_it_stopped() -> None:
    """In an earlier release, the plan was the longest prefix of a single rule.

    A young segment that the size limit deletes then protected older segments after it.
    """
    config = TopicConfig(retention_ms=5000, retention_bytes=300)
    plan = DeletePolicy().plan(log_of([100, 100, 100, 100], ages_from=[9999, 0, 0, 9999]), config, 10_000)
    assert deleted(plan) == 3
    assert reasons(plan).index("retention.bytes") < reasons(plan).index("retention.ms")


def test_size_excludes_segments_below_the_log_start() -> None:
    config = replace(FOREVER, retention_bytes=200)
    assert deleted(DeletePolicy().plan(log_of([100, 100, 100, 100], log_start=20), config, 0)) == 2


def test_kept_segments_are_explained_too() -> None:
    config = TopicConfig(retention_ms=6000)
    first, second = DeletePolicy().plan(log_of([1, 1, 1], ages_from=[1000, 5000, 2000]), config, 10_000)
    assert isinstance(first, DeletePrefix)
    assert isinstance(second, Keep)
    assert (first.start, first.end, second.start, second.end) == (0, 10, 10, 30)


def kafkas_deletion(log: LogSummary, config: TopicConfig, now_ms: int) -> int:
    """Return the number of segments that Kafka deletes: a literal translation of ``UnifiedLog.deleteOldSegments``."""
    remaining = list(log.segments)

    def run(breached: list[bool]) -> None:
        """Delete the segments of ``left`` from the first one on, as long as the rule is True for them."""
        while breached and breached.pop(0):
            segment = remaining[0]
            if log.offsets.high_watermark < segment.end_offset or (len(remaining) == 1 and not segment.size_bytes):
                return
            remaining.pop(0)

    run(
        [
            bool(after) and after[0].base_offset <= log.offsets.log_start
            for after in (remaining[i + 1 :] for i in range(len(remaining)))
        ]
    )
    sizes = [segment.size_bytes for segment in remaining]
    excess, by_size = sum(sizes) - config.retention_bytes, []
    for size in sizes:
        by_size.append(config.retention_bytes >= 0 and excess - size >= 0)
        excess -= size
    run(by_size)
    run([0 <= config.retention_ms < now_ms - segment.age_from_ms for segment in remaining])
    return len(log.segments) - len(remaining)


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 10_000)), min_size=1, max_size=6),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(-1, 12_000),
    st.integers(-1, 900),
)
def test_it_deletes_what_kafka_deletes(
    segments: list[tuple[int, int]], high_watermark: int, log_start: int, retention_ms: int, retention_bytes: int
) -> None:
    end = 10 * len(segments)
    watermark = min(high_watermark, end)
    log = log_of(
        [size for size, _ in segments],
        ages_from=[stamp for _, stamp in segments],
        high_watermark=watermark,
        log_start=min(log_start, watermark),
    )
    config = TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert deleted(DeletePolicy().plan(log, config, 10_000)) == kafkas_deletion(log, config, 10_000)


# --- local disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local_ms", "local_bytes", "expected"),
    [(-2, -2, 1), (2000, -2, 2), (-2, 140, 2), (5000, 300, 1), (0, 0, 4), (6000, 340, 1)],
    ids=["as the whole log", "time", "size", "longer of both", "nothing stays", "time as the log, size off"],
)
def test_local_limits_take_segments_off_local_disk(local_ms: int, local_bytes: int, expected: int) -> None:
    config = TopicConfig(
        retention_ms=6000, retention_bytes=10_000, local_retention_ms=local_ms, local_retention_bytes=local_bytes
    )
    log = log_of([100, 100, 100, 40], ages_from=[1000, 7000, 8500, 9000])
    assert deleted(DeletePolicy().local_plan(log, config, 10_000)) == expected


def test_local_limits_do_not_bound_the_whole_log() -> None:
    config = TopicConfig(retention_ms=-1, local_retention_ms=0, local_retention_bytes=0)
    assert deleted(DeletePolicy().plan(log_of([100, 100]), config, 10_000)) == 0


def test_compaction_evicts_local_copies_by_the_local_retention_of_the_topic_only() -> None:
    """retention.ms does not apply to topics that are only compacted.

    So the default local.retention.ms=-2, which refers to retention.ms, keeps everything.
    """
    config = TopicConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert COMPACT.local_plan(log_of([100, 100]), config, 10_000) == ()
    local = replace(config, retention_ms=-1, local_retention_ms=0)
    assert deleted(COMPACT.local_plan(log_of([100, 100]), local, 10_000)) == 2
