"""Deletion: plans of policies that are refused, the results of a dry run, and the cost of a pass."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from log_bed import LogBed
from stratalog import Record, open_engine
from stratalog.cleaning.plan.retention import RetentionResult, apply_retention
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import PluginError
from stratalog.log.log import Log
from stratalog.model.names import DELETED_SUFFIX
from stratalog.spi import Action, CleanupPolicy, DeletePrefix, LogSummary, Provider, hookimpl
from stratalog.testing.faults import FaultyVfs
from stratalog_compaction.delete import DeletePolicy

SMALL = {"segment.bytes": 250, "file.delete.delay.ms": 0}


def fill(bed: LogBed, count: int, **settings: object) -> None:
    """Write a log with a record each second and two records in each segment."""
    options = {name.replace("_", "."): value for name, value in settings.items()}
    bed.topic = TopicConfig.from_mapping({**SMALL, **options}, "test")
    log = bed.open()
    for _ in range(count):
        bed.clock.advance_ms(1000)
        log.append([Record(value=b"x" * 50)])


class FixedPlanPolicy(CleanupPolicy):
    """Cleanup policy whose plan is the object ``answer``; it raises the object if it is an exception."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # what a stranger may give back


# --- policies that break the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("no idea"), "no idea"),
        (None, "NoneType"),
        (["everything"], "is not an action"),
        ([DeletePrefix(4, 6, "the middle")], "is not a prefix"),
    ],
)
def test_a_policy_that_breaks_the_contract_deletes_nothing(bed: LogBed, answer: object, reason: str) -> None:
    fill(bed, 8, retention_ms=0)
    log = bed.open()
    policies = {"delete": DeletePolicy(), "strange": FixedPlanPolicy(answer)}
    for dry_run in (True, False):
        with pytest.raises(PluginError, match=f"cleanup policy strange .*{reason}"):
            apply_retention(log, policies, None, now_ms=bed.clock.now_ms(), dry_run=dry_run)
    assert [record.offset for record in log.records()] == list(range(8))


class PolicyPlugin:
    """A plugin that offers one policy."""

    def __init__(self, policy: CleanupPolicy) -> None:
        self.policy = policy

    @hookimpl
    def stratalog_cleanup_policies(self) -> list[Provider[CleanupPolicy]]:
        return [Provider(name="strange", open=lambda _: self.policy)]


def test_a_policy_that_raises_does_not_stop_other_logs(tmp_path: Path, clock: ManualClock) -> None:
    plugin = PolicyPlugin(FixedPlanPolicy(RuntimeError("no idea")))
    with open_engine(tmp_path / "data", env=Env(clock=clock), plugins=[plugin]) as engine:
        for name, policy in (("a", "strange"), ("b", "delete")):
            engine.create_topic(name, config={"cleanup.policy": policy, "retention.ms": 0})
            engine.log(name, 0).append([Record(value=b"v", timestamp_ms=1)])
        with pytest.raises(PluginError, match=r"a-0: cleanup policy 'strange' .*: plan raised RuntimeError"):
            engine.apply_retention()
        assert engine.log("a", 0).offsets().log_start == 0
        assert engine.log("b", 0).offsets().log_start == 1


class Slow(CleanupPolicy):
    """Policy whose ``plan`` waits until ``go_on`` is set."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        self.asked.set()
        assert self.go_on.wait(60)
        return ()


def test_a_slow_policy_delays_no_append_and_no_read(tmp_path: Path) -> None:
    policy = Slow()
    config = {"log.dirs": [str(tmp_path / "data")], "log.retention.check.interval.ms": 1, "sync.interval.ms": 20}
    with open_engine(config=config, plugins=[PolicyPlugin(policy)]) as engine:
        engine.create_topic("t", config={"cleanup.policy": "strange"})
        log = engine.log("t", 0)
        engine.start()
        try:
            assert policy.asked.wait(60)
            log.append([Record(value=b"v")], durability="durable")
            log.roll()
            assert [record.offset for record in log.records()] == [0]
            end, advanced = log.offsets().log_end + 1, threading.Event()
            log.subscribe(lambda offsets: advanced.set() if offsets.recovery_point >= end else None)
            log.append([Record(value=b"w")])
            assert advanced.wait(60), "the duty that syncs waits for the policy"
        finally:
            policy.go_on.set()


# --- a dry run reports exactly what a pass deletes --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_dry_run_reports_the_deletions_of_the_real_run(bed: LogBed, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret here
    bed.topic = TopicConfig.from_mapping(
        {
            **SMALL,
            "cleanup.policy": chance.choice(["delete", "compact", "compact,delete"]),
            "retention.ms": chance.choice([-1, 0, 3000, 9000]),
            "retention.bytes": chance.choice([-1, 0, 300, 700]),
        },
        "test",
    )
    log = bed.open()
    policies = {name: bed.host.policy(name) for name in bed.topic.cleanup_policy}
    for _ in range(6):
        for _ in range(chance.randrange(5)):
            bed.clock.advance_ms(chance.randrange(2000))
            log.append([Record(key=b"k", value=bytes(chance.randrange(120)), timestamp_ms=bed.clock.now_ms())])
        if chance.random() < 0.5:
            log.maintenance.raise_log_start(chance.randint(log.offsets().log_start, log.offsets().log_end))
        before = {segment.base_offset: segment.size_bytes for segment in log.segments()}
        now_ms, contents = bed.clock.now_ms(), bed.contents()
        planned = apply_retention(log, policies, None, now_ms=now_ms, dry_run=True)
        assert bed.contents() == contents
        actual = apply_retention(log, policies, None, now_ms=now_ms)
        after = {segment.base_offset for segment in log.segments()}
        deleted_sizes = {base: size for base, size in before.items() if base not in after}
        assert planned == actual
        assert (planned.deleted_segments, planned.deleted_bytes) == (len(deleted_sizes), sum(deleted_sizes.values()))
        assert planned.log_start == log.offsets().log_start


# --- deleted files -----------------------------------------------------------------------------------------------------


def test_files_stay_under_another_name_for_their_delay_and_readers_continue(bed: LogBed) -> None:
    fill(bed, 6, retention_ms=0, file_delete_delay_ms=5000)
    log = bed.open()
    bed.clock.advance_ms(1)
    with log.fetch(0) as fetched:
        assert retained(bed, log).deleted_segments == 3
        deleted_names = [name for name in bed.names() if name.endswith(DELETED_SUFFIX)]
        assert sum(".log" in name for name in deleted_names) == 3
        bed.clock.advance_ms(4999)
        log.maintenance.delete_expired()
        assert [name for name in bed.names() if name.endswith(DELETED_SUFFIX)] == deleted_names
        bed.clock.advance_ms(1)
        log.maintenance.delete_expired()
        assert not [name for name in bed.names() if name.endswith(DELETED_SUFFIX)]
        assert len(fetched.read()) == fetched.size_bytes > 0


def retained(bed: LogBed, log: Log) -> RetentionResult:
    return apply_retention(log, {"delete": DeletePolicy()}, None, now_ms=bed.clock.now_ms())


# --- the cost of a pass ------------------------------------------------------------------------------------------------


def test_a_pass_over_idle_logs_touches_no_file(tmp_path: Path, clock: ManualClock) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path / "data", env=Env(clock=clock, files=files), topic_defaults=SMALL) as engine:
        engine.create_topic("t", partitions=20)
        for partition in range(20):
            log = engine.log("t", partition)
            for _ in range(4):
                log.append([Record(value=b"x" * 50, timestamp_ms=clock.now_ms())])
        engine.apply_retention()
        files.done.clear()
        clock.advance_ms(60_000)
        engine.apply_retention()
        assert files.done == []


# --- with a tier -------------------------------------------------------------------------------------------------------


def test_an_active_segment_that_is_too_old_for_local_disk_is_closed_sent_and_evicted(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A topic that gets no more records must not keep its active segment on local disk until ``segment.ms``."""
    (tmp_path / "bucket").mkdir()
    settings = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.ms": 5000}
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log = engine.log("t", 0)
        log.append([Record(value=b"v", timestamp_ms=clock.now_ms())])
        clock.advance_ms(5000)
        assert not engine.apply_retention()[0].rolled
        clock.advance_ms(1)
        (planned,) = engine.apply_retention(dry_run=True)
        assert (planned.rolled, len(log.segments())) == (True, 1)
        assert engine.apply_retention() == (planned,)
        assert [segment.size_bytes > 0 for segment in log.segments()] == [True, False]
        assert (planned.evicted_segments, log.offsets().local_log_start) == (0, 0)
        engine.offload()
        (evicted,) = engine.apply_retention()
        assert (evicted.rolled, evicted.evicted_segments, log.offsets().local_log_start) == (False, 1, 1)
        assert [record.value for record in log.records()] == [b"v"]


def test_a_topic_whose_copying_is_disabled_is_not_rolled_for_the_tier(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "bucket").mkdir()
    settings = {"remote.storage.enable": True, "remote.log.copy.disable": True, "retention.ms": 5000}
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        engine.log("t", 0).append([Record(value=b"v", timestamp_ms=clock.now_ms())])
        clock.advance_ms(5001)
        (result,) = engine.apply_retention()
        assert (result.rolled, result.deleted_segments, result.log_start) == (False, 1, 1)


def test_segments_that_the_tier_has_not_count_for_no_size_limit_there(tmp_path: Path, clock: ManualClock) -> None:
    """Objects of failed uploads once counted for ``retention.bytes``, and valid segments were deleted (KAFKA-17062)."""
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config={"remote.storage.enable": True, **SMALL, "retention.bytes": 1000})
        log = engine.log("t", 0)
        for _ in range(6):
            log.append([Record(value=b"x" * 50, timestamp_ms=clock.now_ms())])
        engine.offload()
        for segment in sorted((tmp_path / "bucket").rglob("*.seg")):  # the object of an upload that was never committed
            segment.with_name("0" * 20 + "-0-failed.seg").write_bytes(bytes(100_000))
        (result,) = engine.apply_retention()
        assert (result.deleted_segments, [record.offset for record in log.records()]) == (0, list(range(6)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
