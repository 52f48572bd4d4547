"""The cleaner of an engine: order of the logs, checkpoint, duty, tiers, and logs that cannot be cleaned."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from inside import tell_listeners
from stratalog import Engine, Record, RecordColumns, open_engine
from stratalog.cleaning.compact.compaction_round import CompactionResult, compact
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties import cleaner
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.epochs.checkpoint import parse_offsets
from stratalog.errors import LogDirOfflineError, ObjectNotFoundError, PluginError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.spi import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    Keep,
    LogCleaned,
    LogSummary,
    LogUncleanable,
    Provider,
    RecordFilter,
    Rewrite,
    RewriteJob,
    hookimpl,
)
from stratalog.testing.faults import FaultyVfs, failing
from tiered_logs import remote_of

COMPACTED: dict[str, object] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
    "segment.bytes": 1 << 20,
}
CHECKPOINT = "cleaner-offset-checkpoint"
WAIT_S = 30


class Listener:
    def __init__(self) -> None:
        self.events: list[LogCleaned | LogUncleanable] = []

    @hookimpl
    def stratalog_on_log_cleaned(self, event: LogCleaned) -> None:
        self.events.append(event)

    @hookimpl
    def stratalog_on_log_uncleanable(self, event: LogUncleanable) -> None:
        self.events.append(event)


class BrokenPolicy(CleanupPolicy):
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        raise RuntimeError(f"bug over {log.log} {config.cleanup_policy} {now_ms}")

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        raise AssertionError(f"asked for {job}, which was never planned")


class KeepsAll(RecordFilter):
    def observe(self, records: RecordColumns) -> int:
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        verdicts[:] = bytes(records.count)


class UnfilteredPolicy(CleanupPolicy):
    """Policy that plans the same rewrite each time, also after the rewrite was done."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del config, now_ms
        tiered = [segment for segment in log.segments if segment.is_remote]
        part = tiered or [segment for segment in log.segments if not segment.is_active]
        return [Rewrite(part[0].base_offset, part[-1].end_offset, part[0].base_offset, "always")] if part else []


class EndlessPolicy(UnfilteredPolicy):
    def record_filter(self, job: RewriteJob) -> RecordFilter:
        del job
        return KeepsAll()


class UnopenedPolicy(UnfilteredPolicy):
    """Policy whose filter cannot be opened."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        raise RuntimeError(f"no filter for {job.log}")


class WanderingPolicy(EndlessPolicy):
    """Policy that plans a different rewrite each time."""

    def __init__(self) -> None:
        self.asked = 0

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        self.asked += 1
        return [
            replace(action, dirty_start=action.start + self.asked % 9) if isinstance(action, Rewrite) else action
            for action in super().plan(log, config, now_ms)
        ]


class MistypedPolicy(EndlessPolicy):
    """Policy that plans a rewrite from an offset that is not an integer."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return [Rewrite(cast(int, "0"), 2, 0, "always")]


class MistypedKeepPolicy(EndlessPolicy):
    """Policy that keeps records from an offset that is not an integer."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return [Keep(cast(int, "0"), 2, "always")]


class UnexplainedPolicy(EndlessPolicy):
    """Policy that gives no text as the reason of a rewrite."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        return [replace(action, reason=cast(str, None)) for action in super().plan(log, config, now_ms)]


class UnmeasuredPolicy(EndlessPolicy):
    """Policy that gives no number as the dirty ratio of a rewrite."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        return [
            replace(action, dirty_ratio=cast(float, None)) if isinstance(action, Rewrite) else action
            for action in super().plan(log, config, now_ms)
        ]


class MistypedDeletionPolicy(CleanupPolicy):
    """Policy that plans a deletion up to an offset that is not an integer."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return [DeletePrefix(0, cast(int, "2"), "always")]


class Broken:
    @hookimpl
    def stratalog_cleanup_policies(self) -> Sequence[Provider[CleanupPolicy]]:
        policies = (
            BrokenPolicy(),
            EndlessPolicy(),
            MistypedDeletionPolicy(),
            MistypedKeepPolicy(),
            MistypedPolicy(),
            UnexplainedPolicy(),
            UnfilteredPolicy(),
            UnmeasuredPolicy(),
            UnopenedPolicy(),
            WanderingPolicy(),
        )
        return [offered(policy) for policy in policies]


def offered(policy: CleanupPolicy) -> Provider[CleanupPolicy]:
    name = type(policy).__name__.removesuffix("Policy").lower()
    return Provider(name=name, open=lambda _: policy)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock, files: FaultyVfs, listener: Listener) -> Iterator[Engine]:
    env = Env(clock=clock, files=files)
    plugins = [listener, Broken()]
    with open_engine(tmp_path / "a", env=env, plugins=plugins) as new_engine:
        yield new_engine


def dirty(engine: Engine, topic: str, keys: int, records: int, **settings: object) -> Log:
    """Create a topic with this number of records and keys in one closed segment."""
    engine.create_topic(
        topic, config={**COMPACTED, **{name.replace("_", "."): word for name, word in settings.items()}}
    )
    log = engine.log(topic, 0)
    add(log, keys, records)
    return log


def add(log: Log, keys: int, records: int) -> None:
    log.append([Record(key=b"%d" % (number % keys), value=b"%d" % number) for number in range(records)])
    log.roll()


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


def checkpoint(folder: Path) -> dict[TopicPartition, int]:
    return parse_offsets((folder / CHECKPOINT).read_bytes(), CHECKPOINT)


def test_the_dirtiest_log_comes_first_and_clean_ones_not_at_all(engine: Engine) -> None:
    half, full = dirty(engine, "half", 5, 10), dirty(engine, "full", 5, 10)
    engine.run_cleaner([half.name])
    add(half, 5, 10)
    engine.create_topic("other")
    engine.log("other", 0).append([Record(value=b"v")])
    assert [plan.log.name.topic for plan in engine.plan_cleaner()] == ["full", "half"]
    results = engine.run_cleaner()
    assert [result.log.topic for result in results] == ["full", "half"]
    assert results[0].dirty_ratio > results[1].dirty_ratio > 0.5
    assert engine.run_cleaner() == ()
    assert offsets(full) == [5, 6, 7, 8, 9]
    assert offsets(half) == [15, 16, 17, 18, 19]


def test_the_checkpoint_is_kafkas_and_survives_reopening(tmp_path: Path, engine: Engine) -> None:
    dirty(engine, "t", 5, 10)
    engine.run_cleaner()
    assert (tmp_path / "a" / CHECKPOINT).read_text() == "0\n1\nt 0 10\n"
    engine.close()
    with open_engine(tmp_path / "a") as reopened:
        assert reopened.log("t", 0).maintenance.cleaning.dirty_start == 10
        assert [plan.rewrite for plan in reopened.plan_cleaner()] == [None]
        reopened.delete_topic("t")
        assert (tmp_path / "a" / CHECKPOINT).read_text() == "0\n0\n"


def test_a_checkpoint_above_the_log_end_is_forgotten_at_once(tmp_path: Path, engine: Engine) -> None:
    """Otherwise the log would grow past the checkpoint, and its new records would count as clean."""
    dirty(engine, "t", 5, 10)
    engine.close()
    (tmp_path / "a" / CHECKPOINT).write_text("0\n1\nt 0 11\n")
    with open_engine(tmp_path / "a") as reopened:
        log = reopened.log("t", 0)
        add(log, 5, 10)
        reopened.run_cleaner()
        assert offsets(log) == [15, 16, 17, 18, 19]


def test_no_two_directories_have_a_checkpoint_of_one_log(tmp_path: Path) -> None:
    """Kafka's cleaner thread ends if it finds a log in the checkpoints of two directories."""
    with open_engine([tmp_path / "a", tmp_path / "b"]) as engine:
        dirty(engine, "t", 5, 10)
        engine.run_cleaner()
        source = next(tmp_path / name for name in "ab" if (tmp_path / name / "t-0").exists())
        target = tmp_path / ("b" if source.name == "a" else "a")
        add(engine.move_partition("t", 0, target), 5, 10)
        assert checkpoint(source) == {}
        engine.run_cleaner()
        assert checkpoint(target) == {TopicPartition("t", 0): 20}
    (source / CHECKPOINT).write_text("0\n1\nt 0 10\n")  # as an interrupted move leaves it
    with open_engine([tmp_path / "a", tmp_path / "b"]):
        pass
    assert (checkpoint(source), checkpoint(target)) == ({}, {TopicPartition("t", 0): 20})


def test_a_move_from_a_full_disk_ends_without_an_error_if_the_log_is_moved(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine([tmp_path / "a", tmp_path / "b"], env=Env(files=files)) as engine:
        dirty(engine, "t", 5, 10)
        engine.run_cleaner()
        source = next(tmp_path / name for name in "ab" if (tmp_path / name / "t-0").exists())
        target = tmp_path / ("b" if source.name == "a" else "a")
        files.rule = failing("write", errno.ENOSPC, path=f"{source}/{CHECKPOINT}.tmp")
        log = engine.move_partition("t", 0, target)
        files.rule = None
        assert log.offsets().log_end == 10
        assert checkpoint(source) == {TopicPartition("t", 0): 10}
    assert (checkpoint(source), checkpoint(target)) == ({}, {TopicPartition("t", 0): 10})


def test_a_checkpoint_moves_with_its_log(tmp_path: Path) -> None:
    with open_engine([tmp_path / "a", tmp_path / "b"]) as engine:
        log = dirty(engine, "t", 5, 10)
        engine.run_cleaner()
        source = next(name for name in "ab" if (tmp_path / name / "t-0").exists())
        target = tmp_path / ("b" if source == "a" else "a")
        moved_log = engine.move_partition("t", 0, target)
        assert moved_log.maintenance.cleaning.dirty_start == 10
        del log
    assert checkpoint(target) == {TopicPartition("t", 0): 10}


def test_a_duty_compacts(engine: Engine, clock: ManualClock) -> None:
    log = dirty(engine, "t", 5, 10)
    clock.advance_ms(14_999)
    engine.run_duties()
    assert len(offsets(log)) == 10
    clock.advance_ms(1)
    engine.run_duties()
    assert len(offsets(log)) == 5


def test_the_duty_can_be_switched_off(tmp_path: Path, clock: ManualClock) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('"log.cleaner.enable" = false\n')
    with open_engine(tmp_path / "a", env=Env(clock=clock), config=settings) as engine:
        log = dirty(engine, "t", 5, 10)
        clock.advance_ms(60_000)
        engine.run_duties()
        assert len(offsets(log)) == 10
        engine.run_cleaner()
        assert len(offsets(log)) == 5


def test_several_threads_compact_several_logs(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('"log.cleaner.threads" = 3\n')
    with open_engine(tmp_path / "a", config=settings) as engine:
        logs = [dirty(engine, f"t{number}", 5, 50) for number in range(6)]
        assert len(engine.run_cleaner()) == 6
        assert [len(offsets(log)) for log in logs] == [5] * 6


def test_a_thread_chooses_a_log_while_another_thread_finishes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning, choosing, finished = threading.Event(), threading.Event(), threading.Event()
    healthy = vars(Log)["healthy"].fget

    def stopped(*arguments: Any) -> CompactionResult:
        if not cleaning.is_set():
            cleaning.set()
            choosing.wait(WAIT_S)
        return replace(compact(*arguments), stopped="by the test")

    def is_healthy(log: Log) -> bool:
        if cleaning.is_set() and not choosing.is_set():
            choosing.set()
            finished.wait(WAIT_S)
        return bool(healthy(log))

    monkeypatch.setattr(OpenLogs, "write_dirty_starts", lambda *_: finished.set())
    with open_engine(tmp_path / "a", config={"log.cleaner.threads": 2}) as engine:
        for topic in ("one", "two", "three"):
            dirty(engine, topic, 5, 10)
        monkeypatch.setattr(cleaner, "compact", stopped)
        monkeypatch.setattr(Log, "healthy", property(is_healthy))
        assert len(engine.run_cleaner()) == 3
        monkeypatch.undo()


def test_memory_that_is_too_small_for_one_round_needs_more(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('"log.cleaner.dedupe.buffer.size" = 1024\n')
    with open_engine(tmp_path / "a", config=settings) as engine:
        log = dirty(engine, "t", 100, 300)
        results = engine.run_cleaner()
        assert len(results) > 3
        assert offsets(log) == list(range(200, 300))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("broken", "bug over bad-0"),
        ("mistyped", "TypeError"),
        ("mistypedkeep", "offsets must be integers"),
        ("unexplained", "the reason must be a text"),
        ("unmeasured", "the dirty ratio must be a number"),
    ],
)
def test_a_log_with_a_broken_policy_is_left_alone_and_the_others_have_their_turn(
    engine: Engine, listener: Listener, policy: str, reason: str
) -> None:
    log = dirty(engine, "good", 5, 10)
    bad_log = dirty(engine, "bad", 5, 10, cleanup_policy=f"{policy},compact")
    results = engine.run_cleaner()
    assert {result.log.topic: type(result.error) for result in results} == {"bad": PluginError, "good": type(None)}
    assert len(offsets(log)) == 5
    assert len(offsets(bad_log)) == 10
    assert reason in bad_log.maintenance.cleaning.local.uncleanable
    assert engine.run_cleaner() == ()
    tell_listeners(engine)
    assert [type(event) for event in listener.events] == [LogUncleanable, LogCleaned]


@pytest.mark.parametrize("policy", ["endless", "endless,compact"])
def test_a_round_that_changed_nothing_and_is_planned_once_more_makes_the_log_uncleanable(
    engine: Engine, listener: Listener, policy: str
) -> None:
    log, good_log = dirty(engine, "bad", 10, 10, cleanup_policy=policy), dirty(engine, "good", 5, 10)
    results = [result for result in engine.run_cleaner() if result.log == log.name]
    assert [(result.end, type(result.error)) for result in results[:-1]] == [(10, type(None))] * 2
    assert isinstance(results[-1].error, PluginError)
    assert f"cleanup.policy={policy} plans Rewrite(" in log.maintenance.cleaning.local.uncleanable
    assert "a round with these bounds changed nothing" in log.maintenance.cleaning.local.uncleanable
    assert len(offsets(good_log)) == 5
    assert [plan.rewrite for plan in engine.plan_cleaner() if plan.log is log] == [None]
    assert engine.run_cleaner() == ()
    tell_listeners(engine)
    assert [event.log.topic for event in listener.events if isinstance(event, LogUncleanable)] == ["bad"]


def test_the_duty_ends_for_a_policy_that_always_plans_the_same(engine: Engine, clock: ManualClock) -> None:
    log = dirty(engine, "t", 10, 10, cleanup_policy="endless")
    clock.advance_ms(15_000)
    engine.run_duties()
    assert "changed nothing" in log.maintenance.cleaning.local.uncleanable
    log.append([Record(key=b"k", value=b"v")])
    assert len(offsets(log)) == 11


def test_a_run_ends_for_a_policy_that_plans_another_rewrite_each_time(engine: Engine) -> None:
    log = dirty(engine, "t", 10, 10, cleanup_policy="wandering")
    assert 0 < len(engine.run_cleaner()) <= 4
    assert len(offsets(log)) == 10


def test_the_tiers_part_ends_for_a_policy_that_always_plans_the_same(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}", plugins=[Broken()]) as engine:
        log = dirty(engine, "t", 10, 10, cleanup_policy="endless")
        engine.offload()
        results = engine.run_cleaner()
        assert [result.part for result in results] == ["tier"] * len(results)
        assert [type(result.error) for result in results] == [type(None), type(None), PluginError]
        assert "LogSummary.tier_dirty_start" in log.maintenance.cleaning.tier.uncleanable
        figures = {metric.name: value for metric, labels, value in engine.metrics() if labels == ("t", "0")}
        assert figures["stratalog_log_uncleanable"] == 1
        assert engine.run_cleaner() == ()


def test_a_filter_that_cannot_be_opened_ends_the_round_before_the_tier_changes(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}", plugins=[Broken()]) as engine:
        log = dirty(engine, "t", 10, 10, cleanup_policy="unopened")
        engine.offload()
        log.lead(log.leader_epoch + 1)  # the tier gets this epoch with the next commit
        version = remote_of(log).version
        (result,) = engine.run_cleaner()
        assert (result.part, type(result.error)) == ("tier", PluginError)
        assert remote_of(log).version == version


@pytest.mark.parametrize("policy", ["unfiltered", "unfiltered,compact"])
def test_a_rewrite_of_a_policy_without_a_record_filter_makes_the_log_uncleanable(engine: Engine, policy: str) -> None:
    log = dirty(engine, "t", 5, 10, cleanup_policy=policy)
    (plan,) = engine.plan_cleaner()
    assert isinstance(plan.error, PluginError)
    assert not log.maintenance.cleaning.local.uncleanable
    (result,) = engine.run_cleaner()
    assert isinstance(result.error, PluginError)
    assert "implement its method record_filter" in log.maintenance.cleaning.local.uncleanable
    assert len(offsets(log)) == 10
    assert engine.run_cleaner() == ()


@pytest.mark.parametrize("policy", ["mistypedkeep", "unexplained", "unmeasured"])
def test_retention_notices_an_action_with_a_value_of_a_wrong_type(engine: Engine, policy: str) -> None:
    log = dirty(engine, "t", 5, 10, cleanup_policy=policy)
    with pytest.raises(PluginError, match=r"is wrong about t-0: TypeError"):
        engine.apply_retention()
    assert "TypeError" in log.maintenance.cleaning.local.uncleanable


def test_retention_notices_a_deletion_with_an_offset_that_is_not_an_integer(engine: Engine) -> None:
    log = dirty(engine, "t", 5, 10, cleanup_policy="mistypeddeletion,compact")
    assert [result.error for result in engine.run_cleaner()] == [None]
    assert len(offsets(log)) == 5
    with pytest.raises(PluginError, match=r"is wrong about t-0: TypeError"):
        engine.apply_retention()
    assert "TypeError" in log.maintenance.cleaning.local.uncleanable


def test_retention_notices_a_rewrite_of_a_policy_without_a_record_filter(engine: Engine) -> None:
    log = dirty(engine, "t", 5, 10, cleanup_policy="unfiltered")
    with pytest.raises(PluginError, match=r"implement its method record_filter"):
        engine.apply_retention()
    assert "implement its method record_filter" in log.maintenance.cleaning.local.uncleanable


def test_a_log_whose_tier_cannot_be_read_is_left_alone_and_the_others_have_their_turn(tmp_path: Path) -> None:
    clock = ManualClock(Env().clock.now_ms())
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}") as engine:
        bad_log = dirty(engine, "bad", 5, 10, max_compaction_lag_ms=1000, local_hard_limit_bytes=0)
        engine.offload()
    objects = {file: file.read_bytes() for file in (tmp_path / "bucket").rglob("bad-*/**/segments/*")}
    for file in objects:
        file.unlink()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        bad_log, good_log = engine.log("bad"), dirty(engine, "good", 5, 10, remote_storage_enable=False)
        results = {result.log.topic: result.error for result in engine.run_cleaner()}
        assert (type(results["bad"]), results["good"]) == (ObjectNotFoundError, None)
        assert len(offsets(good_log)) == 5
        assert {plan.log.name.topic for plan in engine.plan_cleaner() if plan.error is not None} == {"bad"}
        assert not bad_log.maintenance.cleaning.local.uncleanable
        clock.advance_ms(20_000)
        engine.run_duties()
        (status,) = [duty for duty in engine.duties() if duty.name == "cleaner"]
        assert (status.failures, status.error.partition(":")[0]) == (1, "ObjectNotFoundError")
        for file, data in objects.items():
            file.write_bytes(data)
        assert [result.error for result in engine.run_cleaner()] == [None]
        assert len(offsets(bad_log)) == 5


def test_an_error_of_the_disk_is_raised_when_all_had_their_turn(engine: Engine, files: FaultyVfs) -> None:
    dirty(engine, "t", 5, 10)
    files.rule = failing("sync", 5, path=".cleaned")
    with pytest.raises(LogDirOfflineError):
        engine.run_cleaner()
    assert not engine.log("t", 0).healthy


def test_compaction_and_retention_work_together(engine: Engine, clock: ManualClock) -> None:
    log = dirty(engine, "t", 5, 10, cleanup_policy="compact,delete", retention_ms=60_000)
    engine.run_cleaner()
    assert len(offsets(log)) == 5
    clock.advance_ms(60_001)
    engine.apply_retention()
    assert offsets(log) == []
    assert log.offsets().log_start == 10
    add(log, 5, 10)
    engine.run_cleaner()
    assert offsets(log) == [15, 16, 17, 18, 19]


def test_tombstones_above_a_tier_stay_while_it_has_older_records(tmp_path: Path, clock: ManualClock) -> None:
    """If the tombstone were deleted, a reader of both tiers would return the old value.

    The local part of a log is compacted separately only if no more segments are offloaded.
    """
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        log = dirty(engine, "t", 5, 10, delete_retention_ms=0)
        engine.offload()
        engine.alter_topic("t", {"remote.log.copy.disable": True})
        for _ in range(3):
            log.append([Record(key=b"0", value=None), Record(key=b"1", value=b"n")])
            log.roll()
            clock.advance_ms(1000)
            engine.run_cleaner()
        assert offsets(log) == [*range(10), 14, 15]
        engine.alter_topic("t", {"remote.log.copy.disable": None})
        assert engine.run_cleaner() != ()
        assert offsets(log) == [*range(5, 10), 14, 15]
        engine.offload()
        engine.run_cleaner()
        assert offsets(log) == [7, 8, 9, 14, 15]
        clock.advance_ms(1)
        log.append([Record(key=b"2", value=b"n")])
        log.roll()
        engine.offload()
        engine.run_cleaner()
        assert offsets(log) == [8, 9, 15, 16]
