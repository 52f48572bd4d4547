"""Duties of a tier: offload, its rate, delay and lag; disabling the tier; backpressure; two engines on one bucket."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.engine.engine import Engine
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.tiering.tier_duties import TierDuties
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.env.rate_limit import CopyRate
from stratalog.errors import (
    ConfigError,
    CorruptManifestError,
    FencedEpochError,
    LocalLimitError,
    OffsetInTierError,
    OffsetOutOfRangeError,
    StorageError,
    StoreTimeoutError,
    UnknownTopicError,
)
from stratalog.model.names import TopicPartition
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.testing.faults import FaultyVfs
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.commit.trim_change import ExpireReport
from stratalog.tier.manifest.root import Head, TopicNote
from stratalog.tier.takeover.take_over import has_log
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS, Collector, CollectReport
from stratalog.tier.upload.uploader import SegmentUploader

TOPIC = TopicPartition("t", 0)
LEAVING = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def opened(
    tmp_path: Path, bucket: Path, clock: ManualClock, name: str = "data", settings: dict[str, object] | None = None
) -> Engine:
    config = {"log.dirs": [str(tmp_path / name)], **(settings or {})}
    return open_engine(config=config, tier=f"file://{bucket}", env=Env(clock=clock))


def fill(engine: Engine, segments: int, *, topic: str = "t", partition: int = 0) -> None:
    """Append closed segments with one record of 1,000 bytes each; the active segment is empty."""
    log = engine.log(topic, partition)
    for _ in range(segments):
        log.append([Record(key=b"k", value=os.urandom(1_000))])
        log.roll()


def age(tmp_path: Path, clock: ManualClock, name: str = "data") -> None:
    """Set the modification times of the log files to the time of the clock."""
    for file in (tmp_path / name).rglob("*.log"):
        os.utime(file, (clock.now_ms() / 1000, clock.now_ms() / 1000))


def test_an_offload_without_waiting_segments_describes_no_topic(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, describe_topic = list[str](), LogOpener.note_of

    def note_of(opener: LogOpener, topic: str) -> TopicNote:  # it searches the folders of all logs
        described.append(topic)
        return describe_topic(opener, topic)

    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", partitions=3, config={"remote.storage.enable": True})
        fill(engine, 1)
        monkeypatch.setattr(LogOpener, "note_of", note_of)
        engine.offload()
        assert described == ["t"], "only for the partition that has a segment to copy"
        engine.offload()
        assert described == ["t"]


# --- rate, delay, lag --------------------------------------------------------------------------------------------


def test_segments_wait_for_the_rate(clock: ManualClock) -> None:
    rate = CopyRate(1_000, clock)
    began = clock.now_ms()
    moments = [clock.now_ms() - began for _ in range(4) if rate.take(5_000, lambda: True)]
    assert moments == [0, 5_000, 10_000, 15_000]
    assert rate.waited_ms == 15_000


def test_a_wait_ends_when_its_caller_gives_up(clock: ManualClock) -> None:
    rate = CopyRate(1, clock)
    assert rate.take(1 << 40, lambda: True)
    answers = iter([True, True, False])
    assert not rate.take(1, lambda: next(answers))


def test_uploads_of_an_engine_keep_to_the_rate(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    key = "remote.log.manager.copy.max.bytes.per.second"
    with opened(tmp_path, bucket, clock, settings={key: 100}) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        size = sum(segment.size_bytes for segment in engine.log("t", 0).view().segments)
        began = clock.now_ms()
        engine.offload()
        assert clock.now_ms() - began >= size / 100 * 1_000 * 2 / 3 - 3_000
        assert engine.tier_lag()[0].segments == 0


class CollectingClock(ManualClock):
    """A clock that collects the tier of ``engine`` in another thread during each wait for the rate."""

    engine: Engine | None = None

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        if self.engine is not None:
            pool = ThreadPoolExecutor(1)
            try:
                pool.submit(self.engine.collect).result(60)
            finally:
                pool.shutdown(wait=False)  # if the collection waits for this thread, the test fails without a deadlock


def test_a_tier_is_collected_while_an_upload_waits_for_the_rate(tmp_path: Path, bucket: Path) -> None:
    clock = CollectingClock()
    key = "remote.log.manager.copy.max.bytes.per.second"
    with opened(tmp_path, bucket, clock, settings={key: 100}) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        began_ms, clock.engine = clock.now_ms(), engine
        (result,) = engine.offload()
        assert clock.now_ms() - began_ms >= 20_000  # two segments of more than 1,000 bytes have waited
        assert (result.segments, result.size_bytes > 3_000) == (3, True)


class FillingClock(ManualClock):
    """A clock that fills segments of ``engine``, at most 20, during each wait for the rate."""

    engine: Engine | None = None
    filled = 0

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        if self.engine is not None and self.filled < 20:
            self.filled += 1
            fill(self.engine, 1)


def test_an_offload_ends_although_the_log_grows_faster_than_the_rate(tmp_path: Path, bucket: Path) -> None:
    """Otherwise the other logs would never be offloaded."""
    clock = FillingClock()
    key = "remote.log.manager.copy.max.bytes.per.second"
    with opened(tmp_path, bucket, clock, settings={key: 100}) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        clock.engine = engine
        (result,) = engine.offload()
        assert result.segments == 3
        assert clock.filled > 10


class ChangingClock(ManualClock):
    """A clock that calls ``change`` during the first wait for the rate."""

    change: Callable[[], object] | None = None

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        if self.change is not None:
            change, self.change = self.change, None
            change()


@pytest.mark.parametrize(
    "settings",
    [None, {"remote.log.copy.disable": True}, LEAVING],
)
def test_an_upload_that_waits_for_the_rate_ends_if_its_topic_is_deleted_or_not_copied_any_more(
    tmp_path: Path, bucket: Path, settings: dict[str, object] | None
) -> None:
    clock = ChangingClock()
    key = "remote.log.manager.copy.max.bytes.per.second"
    with opened(tmp_path, bucket, clock, settings={key: 100}) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        clock.change = lambda: engine.delete_topic("t") if settings is None else engine.alter_topic("t", settings)
        began_ms = clock.now_ms()
        (result,) = engine.offload()
        assert (result.segments, clock.now_ms() - began_ms <= 1000) == (1, True)


def test_a_segment_waits_for_its_delay(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={"segment.offload.delay.ms": 60_000})
        fill(engine, 2)
        age(tmp_path, clock)
        clock.advance_ms(59_000)
        assert engine.offload()[0].segments == 0
        (lag,) = engine.tier_lag()
        assert (lag.log, lag.segments, lag.lag_ms) == (TOPIC, 2, 59_000)
        assert lag.size_bytes > 2_000
        clock.advance_ms(1_000)
        assert engine.offload()[0].segments == 2
        assert (engine.tier_lag()[0].segments, engine.tier_lag()[0].lag_ms) == (0, 0)


def test_copying_can_be_stopped_and_what_is_there_expires_all_the_same(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 2)
        engine.offload()
        engine.alter_topic("t", {"remote.log.copy.disable": True})
        fill(engine, 2)
        assert engine.offload() == ()
        assert engine.tier_lag()[0].segments == 2
        clock.advance_ms(8 * 86_400_000)
        engine.apply_retention()
        log = engine.log("t", 0)
        remote = log.view().remote
        assert remote is not None
        assert (log.offsets().log_start, remote.log_start) == (4, 4)


def test_several_partitions_are_offloaded_at_the_same_time(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock, settings={"remote.log.manager.copier.thread.pool.size": 3}) as engine:
        engine.create_topic("t", partitions=5)
        for partition in range(5):
            fill(engine, 2, partition=partition)
        results = engine.offload()
        assert [(result.log.partition, result.segments) for result in results] == [(number, 2) for number in range(5)]


# --- Kafka's rules for settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"retention.bytes": 100, "local.retention.bytes": 200},
            "must not be more than property: retention.bytes value",
        ),
        (
            {"retention.bytes": 100, "local.retention.bytes": -1},
            "must not be -1 as retention.bytes value is set as 100",
        ),
        ({"retention.ms": 100, "local.retention.ms": 200}, "must not be more than property: retention.ms value"),
        ({"retention.ms": 100, "local.retention.ms": -1}, "must not be -1 as retention.ms value is set as 100"),
        (
            {"remote.log.copy.disable": True, "retention.ms": 100, "local.retention.ms": 50},
            "must be set to the identical value because there will be no more logs copied",
        ),
    ],
)
def test_local_retention_follows_kafkas_rules(
    tmp_path: Path, bucket: Path, clock: ManualClock, config: dict[str, object], message: str
) -> None:
    with opened(tmp_path, bucket, clock) as engine, pytest.raises(ConfigError, match=message):
        engine.create_topic("t", config=config)


def test_a_topic_uses_a_tier_only_if_the_engine_has_one(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 1)
        engine.offload()
    with open_engine(tmp_path / "data") as engine:
        with pytest.raises(ConfigError, match="Topic cannot be configured with remote log storage"):
            engine.create_topic("u", config={"remote.storage.enable": True})
        with pytest.raises(ConfigError, match="Topic cannot be configured with remote log storage"):
            engine.alter_topic("t", {"remote.storage.enable": True})
        engine.alter_topic("t", {"retention.ms": -1})
        assert len(list(engine.log("t", 0).records())) == 1


def test_a_topic_leaves_the_tier_only_with_all_it_has_there(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1, "retention.bytes": -1})
        fill(engine, 3)
        engine.offload()
        engine.apply_retention()
        fill(engine, 2)
        engine.offload()
        log = engine.log("t", 0)
        assert (log.offsets().log_start, log.offsets().local_log_start) == (0, 2)
        with pytest.raises(ConfigError, match=r"remote\.log\.delete\.on\.disable=true"):
            engine.alter_topic("t", {"remote.storage.enable": False})
        engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        assert (log.offsets().log_start, log.view().remote, len(list(log.records()))) == (2, None, 3)
        with pytest.raises(OffsetOutOfRangeError):
            log.fetch(1)
        fill(engine, 1)
        assert len(list(log.records())) == 4


def test_a_topic_that_comes_back_does_not_count_as_uploaded(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    """The highest remote offset of KIP-405 never decreases.

    After the tier was deleted, local segments would therefore count as uploaded.
    """
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1, "retention.bytes": -1})
        fill(engine, 3)
        engine.offload()
        engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        engine.alter_topic("t", {"remote.storage.enable": True})
        log = engine.log("t", 0)
        engine.apply_retention()
        assert (log.offsets().local_log_start, len(list(log.records()))) == (0, 3)
        assert engine.offload()[0].segments == 3
        engine.apply_retention()
        assert (log.offsets().local_log_start, len(list(log.records()))) == (2, 3)


def test_a_topic_comes_back_to_the_tier_in_the_epoch_in_which_it_left(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    """The log has no record of the epoch, in which the engine attached the tier."""
    with opened(tmp_path, bucket, clock, "before") as engine:
        engine.create_topic("t")
    with open_engine(tmp_path / "data", tier=f"file://{bucket}", env=Env(clock=clock), attach=True) as engine:
        engine.alter_topic("t", LEAVING)
    with opened(tmp_path, bucket, clock) as engine:
        fill(engine, 1)
        engine.alter_topic("t", {"remote.storage.enable": True})
        fill(engine, 1)
        assert engine.offload()[0].segments == 2
        assert {record.leader_epoch for record in engine.log("t", 0).records()} == {1}


def test_a_log_that_starts_inside_a_batch_is_offloaded(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with open_engine(tmp_path / "data", env=Env(clock=clock)) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"%d" % number) for number in range(10)])
        engine.log("t", 0).delete_records(5)
    with opened(tmp_path, bucket, clock) as engine:
        assert engine.offload()[0].segments == 0  # only the active segment has records
    with opened(tmp_path, bucket, clock) as engine:
        log = engine.log("t", 0)
        log.roll()
        assert engine.offload()[0].segments == 1
        engine.alter_topic("t", {"local.retention.bytes": 0})
        engine.apply_retention()
        assert log.offsets().local_log_start == 10
        assert [record.value for record in log.records()] == [b"%d" % number for number in range(5, 10)]


def before_the_next_commit(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Call ``change`` on another thread after the next upload, and before the commit of the uploaded segment."""
    upload = SegmentUploader.upload

    def uploaded(self: SegmentUploader, source: SegmentSource, leader_epoch: int) -> StoredSegment:
        entry = upload(self, source, leader_epoch)
        monkeypatch.setattr(SegmentUploader, "upload", upload)
        with ThreadPoolExecutor() as threads:
            threads.submit(change).result()
        return entry

    monkeypatch.setattr(SegmentUploader, "upload", uploaded)


@pytest.mark.parametrize("deletes", [False, True], ids=["leaves the tier", "is deleted"])
def test_an_offload_in_progress_does_not_bring_a_topic_back_to_the_tier(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 0, "retention.bytes": -1})
        fill(engine, 2)
        engine.offload()
        engine.apply_retention()
        fill(engine, 3)

        def leave() -> None:
            if deletes:
                engine.delete_topic("t")
            else:
                engine.alter_topic("t", LEAVING)

        before_the_next_commit(monkeypatch, leave)
        with pytest.raises(StorageError, match="deleted" if deletes else "left the tier"):
            engine.offload()
        engine.offload()
        assert not [
            sample for sample in engine.metrics() if sample.metric.name.endswith("tier_failing") and sample.value
        ]
        assert engine.tier is not None
        (name,) = engine.tier.logs()
        assert not has_log(engine.tier.log(*name))
        with open_reader(f"file://{bucket}") as reader:
            assert reader.log("t").segments() == ()
        settle(bucket, clock)
        engine.collect()
        assert not list(bucket.glob("*/0/segments/*"))


def test_the_duties_evict_nothing_while_a_topic_leaves_the_tier(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", partitions=2, config={"local.retention.bytes": 0, "retention.bytes": -1})
        fill(engine, 5)
        clear = TierLog.clear

        def cleared(self: TierLog, log_start: int, *, leader_epoch: int, reason: str) -> ExpireReport:
            report = clear(self, log_start, leader_epoch=leader_epoch, reason=reason)
            if self.name == TOPIC:  # the other partition has not left the tier yet
                with ThreadPoolExecutor() as threads:
                    threads.submit(engine.offload).result()
                    threads.submit(engine.apply_retention).result()
            return report

        monkeypatch.setattr(TierLog, "clear", cleared)
        engine.alter_topic("t", LEAVING)
        assert len(list(engine.log("t", 0).records())) == 5
        assert engine.tier is not None
        assert not any(has_log(engine.tier.log(*name)) for name in engine.tier.logs())


def test_a_compaction_in_progress_evicts_nothing_of_a_topic_that_left_the_tier(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0})
        fill(engine, 3)
        engine.offload()
        before_the_next_commit(monkeypatch, lambda: engine.alter_topic("t", LEAVING))
        assert [result.part for result in engine.run_cleaner()] == ["tier", "local"]
        assert [record.offset for record in engine.log("t", 0).records()] == [2]


def test_a_topic_that_could_not_leave_the_tier_still_uses_it(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        engine.offload()
        with monkeypatch.context() as broken:
            broken.setattr(TierLog, "clear", lambda *_, **__: (_ for _ in ()).throw(StoreTimeoutError("no reply", "")))
            with pytest.raises(StoreTimeoutError):
                engine.alter_topic("t", LEAVING)
        fill(engine, 1)
        assert [result.segments for result in engine.offload()] == [1]
        assert engine.topics()["t"].config.remote_storage_enable


# --- collecting --------------------------------------------------------------------------------------------------


def files(bucket: Path) -> list[Path]:
    return [path for path in bucket.rglob("*") if path.is_file()]


def settle(bucket: Path, clock: ManualClock) -> None:
    """Set the times of the objects to the time of the clock, then advance the clock by the grace time."""
    for path in files(bucket):
        os.utime(path, (clock.now_ms() / 1000, clock.now_ms() / 1000))
    clock.advance_ms(GRACE_MS)


def test_a_deleted_topic_leaves_nothing_in_the_bucket(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        engine.offload()
        engine.delete_topic("t")
        assert files(bucket)
        settle(bucket, clock)
        assert engine.tier is not None
        assert [open_log.name.topic for open_log in engine.tier.open_logs()] == ["t"]
        engine.collect()
        assert files(bucket) == []
        assert engine.tier.open_logs() == (), "its state in memory is released"


@pytest.mark.parametrize("reopens", [False, True])
def test_a_topic_that_leaves_the_tier_leaves_no_segment_in_the_bucket(
    tmp_path: Path, bucket: Path, clock: ManualClock, *, reopens: bool
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        engine.offload()
        engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        settle(bucket, clock)
        if not reopens:
            engine.collect()
    if reopens:
        with opened(tmp_path, bucket, clock) as engine:
            engine.collect()
    assert files(bucket) == roots(bucket, "t")
    assert len(roots(bucket, "t")) == 1


def test_a_reader_uses_the_current_topic_instead_of_a_deleted_one(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        for segments in range(1, 6):
            engine.create_topic("t", config={"file.delete.delay.ms": 0})
            fill(engine, segments)
            engine.offload()
            with open_reader(f"file://{bucket}") as reader:
                assert len(list(reader.log("t", 0).records())) == segments
            clock.advance_ms(1_000)
            engine.delete_topic("t")


def during_the_first_upload(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Call ``change`` once in another thread, after the first segment was uploaded and before its commit."""
    real, calls = SegmentUploader.upload, list[bool]()

    def upload(self: SegmentUploader, source: SegmentSource, leader_epoch: int) -> StoredSegment:
        entry = real(self, source, leader_epoch)
        if not calls:
            calls.append(True)
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
        return entry

    monkeypatch.setattr(SegmentUploader, "upload", upload)


def test_an_offload_does_not_restore_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 2)
        during_the_first_upload(monkeypatch, lambda: engine.delete_topic("t"))
        with pytest.raises(UnknownTopicError, match="topic t was deleted"):
            engine.offload()
        settle(bucket, clock)
        engine.collect()
        assert files(bucket) == []


def test_an_offload_does_not_restore_the_segments_of_a_topic_that_leaves_the_tier_meanwhile(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 2)
        during_the_first_upload(monkeypatch, lambda: engine.alter_topic("t", leaves))
        with pytest.raises(StorageError, match="the topic left the tier"):
            engine.offload()
        with open_reader(f"file://{bucket}") as reader:
            assert list(reader.log("t", 0).records()) == []
        engine.alter_topic("t", {"remote.storage.enable": True})
        assert engine.offload()[0].segments == 2


def test_a_collection_ends_after_the_current_log_if_the_engine_is_closed(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(tmp_path, bucket, clock)
    engine.create_topic("t", partitions=3)
    for partition in range(3):
        fill(engine, 1, partition=partition)
    engine.offload()
    collected, is_closing = list[TopicPartition](), threading.Event()
    closing = threading.Thread(target=engine.close)
    collect, close = TierCollection.collect, TierDuties.close

    def collect_while_closing(self: TierCollection, remote: TierLog, leader_epoch: int | None) -> CollectReport:
        if not collected:
            closing.start()
            assert is_closing.wait(60)
        collected.append(remote.name)
        return collect(self, remote, leader_epoch)

    def note_close(self: TierDuties) -> None:
        close(self)
        is_closing.set()

    monkeypatch.setattr(TierCollection, "collect", collect_while_closing)
    monkeypatch.setattr(TierDuties, "close", note_close)
    clock.advance_ms(3_600_000)
    engine.run_duties()
    closing.join(60)
    assert collected == [TOPIC]


def test_a_collection_does_not_restore_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, bucket: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Collector.collect_orphans

    def collect(self: Collector, kept_versions: Sequence[int], head: Head) -> tuple[int, int]:
        engine.delete_topic("t")
        return real(self, kept_versions, head)

    monkeypatch.setattr(Collector, "collect_orphans", collect)
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 1)
        engine.offload()
        (segment_file,) = bucket.rglob("*.seg")
        segment_file.with_name(f"{segment_file.stem[:-4]}0000.seg").write_bytes(b"left by an earlier process")
        settle(bucket, clock)
        engine.collect()
        assert engine.topics() == {}
        settle(bucket, clock)
        engine.collect()
        assert files(bucket) == []


def test_another_engine_sweeps_what_a_crash_left_of_a_deleted_topic(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        engine.create_topic("kept")
        fill(engine, 3)
        fill(engine, 1, topic="kept")
        engine.offload()
        engine.delete_topic("t")
    settle(bucket, clock)
    with opened(tmp_path, bucket, clock) as engine:
        engine.collect()
        assert {path.relative_to(bucket).parts[0][:-23] for path in files(bucket)} == {"kept"}
        assert len(list(engine.log("kept", 0).records())) == 1


def roots(bucket: Path, topic: str) -> list[Path]:
    return sorted(bucket.glob(f"{topic}-*/0/manifest/*"))


def test_a_log_that_is_damaged_keeps_no_other_from_being_collected(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    """The collection once stopped at a damaged log, and later logs kept their superseded objects."""
    with opened(tmp_path, bucket, clock) as engine:
        for topic in ("a", "b", "c"):
            engine.create_topic(topic)
            fill(engine, 3, topic=topic)
        engine.offload()
        damaged = roots(bucket, "a")[0], roots(bucket, "b")[0]
        for path in damaged:
            path.write_bytes(b"damaged")
        settle(bucket, clock)
        before = roots(bucket, "b")
        with pytest.raises(CorruptManifestError) as caught:
            engine.collect()
        assert all(any(path.name in text for path in damaged) for text in (str(caught.value), *caught.value.__notes__))
        assert len(caught.value.__notes__) == 1
        assert (roots(bucket, "b"), len(roots(bucket, "c"))) == (before, 1)
        assert len(before) > 1


def test_a_damaged_log_of_others_keeps_nothing_from_being_collected(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    """An engine searches its bucket for deleted topics, and may find logs of other engines."""
    with opened(tmp_path, bucket, clock, "others") as engine:
        engine.create_topic("others")
        fill(engine, 1, topic="others")
        engine.offload()
    for path in roots(bucket, "others"):
        path.write_bytes(b"damaged")
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        engine.offload()
        settle(bucket, clock)
        engine.collect()
        assert len(roots(bucket, "t")) == 1


def test_a_log_without_changes_costs_no_request(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t")
        fill(engine, 3)
        engine.offload()
        settle(bucket, clock)
        engine.collect()
        assert engine.tier is not None
        before = engine.tier.metrics().store
        for _ in range(3):
            clock.advance_ms(3_600_000)
            engine.offload()
            engine.apply_retention()
            engine.collect()
        assert (engine.tier.metrics().store - before).requests == 0


# --- outage and backpressure -------------------------------------------------------------------------------------


def restore(bucket: Path) -> None:
    bucket.unlink()
    bucket.with_name("aside").rename(bucket)


LIMITED = {"local.hard.limit.bytes": 5_000, "retention.ms": -1}


@pytest.mark.parametrize("policy", ["block", "reject", "grow"])
def test_an_outage_is_survived_and_caught_up_with(
    tmp_path: Path, bucket: Path, clock: ManualClock, policy: str
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={**LIMITED, "tier.outage.policy": policy, "tier.outage.block.ms": 0})
        fill(engine, 2)
        engine.offload()
        aside = bucket.with_name("aside")
        bucket.rename(aside)
        bucket.write_bytes(b"")
        segments = 2
        for _ in range(6):
            with contextlib.suppress(LocalLimitError):
                fill(engine, 1)
                segments += 1
        if policy != "grow":
            with pytest.raises(LocalLimitError, match=r"local\.hard\.limit\.bytes=5000"):
                fill(engine, 1)
        assert (segments == 8) == (policy == "grow")
        with pytest.raises(StorageError):
            engine.offload()
        (lag,) = engine.tier_lag()
        assert (lag.segments, lag.is_pressed, bool(lag.error)) == (segments - 2, policy == "grow", True)
        assert len(list(engine.log("t", 0).records())) == segments
        restore(bucket)
        engine.offload()
        engine.apply_retention()
        (lag,) = engine.tier_lag()
        assert (lag.segments, lag.is_pressed, lag.error) == (0, False, "")
        fill(engine, 1)
        assert len(list(engine.log("t", 0).records())) == segments + 1


def test_a_waiting_append_continues_when_space_is_free(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config={**LIMITED, "tier.outage.policy": "block"})
        fill(engine, 4)
        thread = threading.Thread(target=fill, args=(engine, 3))
        thread.start()
        for _ in range(200):
            engine.offload()
            engine.apply_retention()
            thread.join(0.05)
            if not thread.is_alive():
                break
        assert not thread.is_alive()
        assert [record.offset for record in engine.log("t", 0).records()] == list(range(7))


def test_segments_in_the_tier_leave_a_full_disk_despite_local_retention(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, bucket, clock) as engine:
        engine.create_topic("t", config=LIMITED)
        fill(engine, 8)
        engine.apply_retention()
        assert engine.log("t", 0).offsets().local_log_start == 0, "nothing is in the tier yet"
        engine.alter_topic("t", {"local.hard.limit.bytes": -1})
        engine.offload()
        engine.alter_topic("t", LIMITED)
        (planned,) = engine.apply_retention(dry_run=True)
        (actual,) = engine.apply_retention()
        assert planned == actual
        assert (actual.deleted_segments, "local.hard.limit.bytes=5000" in actual.reasons[0]) == (0, True)
        local = sum(segment.size_bytes for segment in engine.log("t", 0).view().segments)
        assert 2_500 < local <= 3_750
        assert [record.offset for record in engine.log("t", 0).records()] == list(range(8))


# --- two engines -------------------------------------------------------------------------------------------------


def test_the_loser_stops_acknowledging_and_reads_on(tmp_path: Path, bucket: Path, clock: ManualClock) -> None:
    with opened(tmp_path, bucket, clock) as old:
        old.create_topic("t")
        fill(old, 2)
        old.offload()
        topic_id = old.topics()["t"].topic_id
        assert topic_id is not None
        assert old.tier is not None
        with opened(tmp_path, bucket, clock, "other") as new:
            assert new.tier is not None
            remote = new.tier.log(TOPIC, topic_id)
            remote.expire(1, leader_epoch=5, reason="the other engine took over")
        fill(old, 1)
        with pytest.raises(FencedEpochError):
            old.offload()
        log = old.log("t", 0)
        with pytest.raises(FencedEpochError):
            log.append([Record(value=b"never acknowledged")])
        assert [record.offset for record in log.records()] == [1, 2]
    with open_reader(f"file://{bucket}") as reader:
        assert [record.offset for record in reader.log("t", 0).records()] == [1]


# --- truncation --------------------------------------------------------------------------------------------------


class WatchedLock:
    """A lock that sets ``wanted`` when a thread other than its owner tries to acquire it."""

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_truncation_waits_for_an_upload_and_keeps_what_that_has_committed(
    tmp_path: Path, bucket: Path, clock: ManualClock
) -> None:
    files, outcome, threads = FaultyVfs(), list[object](), list[threading.Thread]()
    config = {"log.dirs": [str(tmp_path / "data")]}
    with open_engine(config=config, tier=f"file://{bucket}", env=Env(clock=clock, files=files)) as engine:
        engine.create_topic("t")
        fill(engine, 2)
        log, busy = engine.log("t", 0), WatchedLock()
        log.maintenance.cleaning.local.busy = cast("threading.Lock", busy)

        def cut() -> None:
            try:
                outcome.append(log.truncate_to(1))
            except StorageError as error:
                outcome.append(error)
            finally:
                busy.wanted.set()

        def begin_to_cut(operation: str, path: str) -> None:
            if not threads and operation == "write" and path.startswith(str(bucket)):
                threads.append(threading.Thread(target=cut))
                threads[0].start()
                busy.wanted.wait()

        files.rule = begin_to_cut
        engine.offload()
        files.rule = None
        (cutting,) = threads
        cutting.join()
        assert [type(result) for result in outcome] == [OffsetInTierError]
        assert log.offsets().log_end == 2
