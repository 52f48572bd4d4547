"""Records that a filter observes: those of the dirty range, of the whole local or remote part, or of the whole log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog import Engine, Log, Record, RecordColumns, open_engine
from stratalog.config.topic import TopicConfig
from stratalog.errors import PluginError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.spi import (
    Action,
    BatchHeader,
    CleanupPolicy,
    Keep,
    LogSummary,
    Provider,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
    Verdict,
    hookimpl,
)


class ObservingPolicy(CleanupPolicy):
    """Policy that keeps all records, and notes the offsets of the records that its filter observes."""

    def __init__(self, observes: str) -> None:
        self.observes, self.offsets = observes, list[int]()

    @hookimpl
    def stratalog_cleanup_policies(self) -> list[Provider[CleanupPolicy]]:
        return [Provider(name="seen", open=lambda _: self)]

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del now_ms
        return log.rewrites(config)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        del job
        noting = Noting(self.offsets)
        noting.observes = self.observes  # type: ignore[misc,assignment]  # each test has its own
        return noting


class Noting(RecordFilter):
    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets

    def observe(self, records: RecordColumns) -> int:
        self._offsets += records.offset
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        verdicts[:] = bytes([Verdict.KEEP]) * records.count


def append(log: Log, *values: bytes) -> None:
    log.append([Record(key=b"k", value=value) for value in values])


CONFIG: dict[str, Any] = {"cleanup.policy": "seen", "min.cleanable.dirty.ratio": 0}

TIERED = {
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "cleanup.policy": "seen,delete",
    "retention.ms": -1,
}


@pytest.fixture
def tier(tmp_path: Path) -> str:
    (tmp_path / "tier").mkdir()
    return f"file://{tmp_path / 'tier'}"


def opened(tmp_path: Path, policy: ObservingPolicy, tier: str | None = None) -> Engine:
    return open_engine(tmp_path / "data", tier=tier, plugins=[policy])


@pytest.mark.parametrize(
    ("observes", "first", "second"),
    [("dirty", [0, 1], [2]), ("part", [0, 1], [0, 1, 2]), ("log", [0, 1, 2], [0, 1, 2, 3])],
)
def test_a_filter_observes_its_declared_range_in_each_round(
    tmp_path: Path, observes: str, first: list[int], second: list[int]
) -> None:
    policy = ObservingPolicy(observes)
    with opened(tmp_path, policy) as engine:
        engine.create_topic("t", config=CONFIG)
        log = engine.log("t", 0)
        for last, expected in ((2, first), (3, second)):
            if last == 2:
                append(log, b"v", b"v")
            log.roll()
            append(log, b"v")
            policy.offsets.clear()
            (result,) = engine.run_cleaner()
            assert result.error is None
            assert policy.offsets == expected


def test_the_whole_log_is_both_parts_without_aborted_records(tmp_path: Path, tier: str) -> None:
    policy = ObservingPolicy("log")
    with opened(tmp_path, policy, tier) as engine:
        engine.create_topic("t", config={**CONFIG, **TIERED})
        log = engine.log("t", 0)
        append(log, b"v", b"v")
        header = BatchHeader(base_offset=0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        aborted = log.components.formats.of(2, "", 0).encode([Record(timestamp_ms=1, value=b"v")], header, None, None)
        log.append_as_leader(bytes(aborted))
        log.end_transaction(7, 0, commit=False, coordinator_epoch=0)
        log.roll()
        engine.offload()
        engine.apply_retention()
        append(log, b"v")
        assert log.offsets().local_log_start == 4
        (result,) = [result for result in engine.run_cleaner() if result.part == "tier"]
        assert result.error is None
        assert policy.offsets == [0, 1, 4]


def test_an_unknown_kind_makes_the_log_uncleanable_and_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, ObservingPolicy("everything")) as engine:
        engine.create_topic("t", config=CONFIG)
        log = engine.log("t", 0)
        append(log, b"v")
        log.roll()
        (result,) = engine.run_cleaner()
        assert isinstance(result.error, PluginError)
        assert "observes 'everything', which is not one of dirty, part, log" in str(result.error)
        assert len(list(log.records())) == 1


# --- plans --------------------------------------------------------------------------------------------------------


def summary(*, tier_dirty_start: int = 0, dirty_start: int | None = None, last_stable: int = 44) -> LogSummary:
    """Return the summary of a log with two segments in the tier, two local ones and the active one.

    The segments begin at the offsets 0, 10, 20, 30 and 40.
    """
    segments = tuple(
        SegmentSummary(
            10 * n, 10 * n + (4 if n == 4 else 10), 100, 0, is_local=n > 1, is_remote=n < 2, is_active=n == 4
        )
        for n in range(5)
    )
    offsets = LogOffsets(0, 20, 44, 44, last_stable, 44)
    return LogSummary(TopicPartition("t", 0), offsets, segments, True, dirty_start, tier_dirty_start)


def test_each_part_has_a_rewrite_of_its_closed_segments() -> None:
    actions = summary().rewrites(TopicConfig(min_cleanable_dirty_ratio=0.5))
    assert [(type(action), action.start, action.end) for action in actions] == [(Rewrite, 0, 20), (Rewrite, 20, 40)]


def test_a_part_that_is_not_dirty_enough_is_kept_with_a_reason() -> None:
    actions = summary(tier_dirty_start=10, dirty_start=40).rewrites(TopicConfig(min_cleanable_dirty_ratio=0.5))
    assert [type(action) for action in actions] == [Keep, Keep]
    assert actions[0].reason == "not dirty enough: dirty ratio 0.50, min.cleanable.dirty.ratio=0.5"


def test_a_rewrite_ends_at_the_last_stable_offset() -> None:
    actions = summary(last_stable=35).rewrites(TopicConfig(min_cleanable_dirty_ratio=0.0))
    assert [(action.start, action.end) for action in actions] == [(0, 20), (20, 30)]
