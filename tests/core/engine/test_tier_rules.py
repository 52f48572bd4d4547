"""Rules for logs in two tiers that other implementations have violated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sim_objects import ObjectFault, SimBucket
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import LocalLimitError, StoreError
from stratalog.model.events import Backpressure
from stratalog.model.names import TopicPartition
from stratalog.spi import hookimpl
from stratalog.tier.manifest import entry_tree
from stratalog.tier.store.store import TierStore

LOG = TopicPartition("t", 0)


class ListeningTier(SimTier):
    """A bucket, and a listener for backpressure events."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SimBucket(clock))
        self.pressure: list[Backpressure] = []

    @hookimpl
    def stratalog_on_backpressure(self, event: Backpressure) -> None:
        self.pressure.append(event)


@pytest.fixture
def sim(clock: ManualClock) -> ListeningTier:
    return ListeningTier(clock)


def opened(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> Engine:
    settings = {"log.dirs": [str(tmp_path / "data")], "store.retries": 0}
    return open_engine(config=settings, tier=URI, plugins=[sim], env=Env(clock=clock))


def fill(engine: Engine, segments: int) -> None:
    """Append closed segments with one record of 1,000 bytes each; the active segment is empty."""
    log = engine.log("t", 0)
    for _ in range(segments):
        log.append([Record(key=b"k", value=os.urandom(1_000))])
        log.roll()


def values(engine: Engine) -> list[bytes | None]:
    return [record.value for record in engine.log("t", 0).records()]


def test_only_closed_segments_below_the_last_stable_offset_are_offloaded(
    tmp_path: Path, sim: ListeningTier, clock: ManualClock
) -> None:
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t")
        fill(engine, 1)
        producer = engine.producer(transactional_id="x")
        producer.begin_transaction()
        producer.send("t", partition=0, value=b"pending")
        producer.flush()
        fill(engine, 1)
        assert engine.offload([LOG])[0].tier_end == 1, "what is behind an open transaction stays"
        producer.commit_transaction()
        engine.offload([LOG])
        log = engine.log("t", 0)
        assert log.view().remote is not None
        active = log.view().segments[-1]
        assert active.size_bytes
        assert engine.offload([LOG])[0].tier_end == active.base_offset


@pytest.mark.long
def test_nothing_is_evicted_that_failed_to_upload(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> None:
    """Failed uploads count neither as copied nor for the size of the log (KAFKA-17062, Redpanda #29674)."""
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1, "retention.bytes": 5_500})
        fill(engine, 4)
        expected = values(engine)
        for _ in range(5):
            sim.store.faults = lambda request: ObjectFault.DENIED if request.kind == "create" else ObjectFault.NONE
            with pytest.raises(StoreError):
                engine.offload()
            (result,) = engine.apply_retention()
            assert (result.deleted_segments, result.evicted_segments) == (0, 0)
        sim.store.faults = lambda _: ObjectFault.NONE
        assert values(engine) == expected
        engine.offload()
        (result,) = engine.apply_retention()
        assert (result.deleted_segments, result.evicted_segments) == (0, 3)
        assert values(engine) == expected


def test_a_repeated_copy_has_another_key(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> None:
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t")
        fill(engine, 1)
        sim.store.faults = lambda request: ObjectFault.DENIED if request.kind == "create" else ObjectFault.NONE
        for _ in range(3):
            with pytest.raises(StoreError):
                engine.offload()
        uploads = [key for key, _ in sim.bucket.history if "/segments/" in key]
        assert len(uploads) == len(set(uploads)) == 3


def test_a_scan_is_the_same_wherever_the_segments_are(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> None:
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config={"retention.bytes": -1})
        fill(engine, 6)
        expected = values(engine)
        for count in (5_000, 3_000, 1):
            engine.offload()
            engine.alter_topic("t", {"local.retention.bytes": count})
            engine.apply_retention()
            assert values(engine) == expected
        bounds = engine.log("t", 0).offsets()
        assert bounds.log_start == 0 < bounds.local_log_start


def test_both_tiers_count_once_for_size_retention(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> None:
    """If segments in both tiers were counted twice, retention would delete too early (KAFKA-16890)."""
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config={"retention.bytes": 5_500, "local.retention.bytes": 3_000})
        fill(engine, 5)
        engine.offload()
        (result,) = engine.apply_retention()
        assert (result.deleted_segments, result.evicted_segments, len(values(engine))) == (0, 2, 5)
        engine.alter_topic("t", {"retention.bytes": 3_500})
        (planned,) = engine.apply_retention(dry_run=True)
        (result,) = engine.apply_retention()
        assert planned == result
        size = sum(segment.size_bytes for segment in engine.log("t", 0).segments())
        assert (result.deleted_segments, result.log_start) == (1, 1)
        assert 3_500 <= size < 3_500 + 1_100


def test_retention_of_a_large_tier_reads_one_page(
    tmp_path: Path, sim: ListeningTier, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 4)
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config={"retention.bytes": -1, "local.retention.bytes": 1})
        fill(engine, 30)
        engine.offload()
        engine.apply_retention()
    with opened(tmp_path, sim, clock) as engine:
        reads: list[str] = []
        read = TierStore.read

        def noted(self: TierStore, key: str, start: int | None = None, end: int | None = None) -> bytes:
            reads.append(key)
            return read(self, key, start, end)

        monkeypatch.setattr(TierStore, "read", noted)
        engine.apply_retention()
        assert len([key for key in reads if key.endswith(".page")]) == 1
        engine.alter_topic("t", {"retention.bytes": 20_500})
        (result,) = engine.apply_retention()
        assert len([key for key in reads if key.endswith(".page")]) <= 4
        size_bytes = sum(segment.size_bytes for segment in engine.log("t", 0).segments())
        assert 20_500 <= size_bytes < 21_600
        assert result.deleted_segments == result.log_start == 30 - len(values(engine))


def test_a_transaction_ends_on_a_log_that_takes_nothing_more(
    tmp_path: Path, sim: ListeningTier, clock: ManualClock
) -> None:
    """The open transaction blocks the offload. If its marker were refused, the log would stay full for ever."""
    limits = {"local.hard.limit.bytes": 1_500, "tier.outage.policy": "reject", "retention.bytes": -1}
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config=limits)
        producer = engine.producer(transactional_id="x")
        producer.begin_transaction()
        producer.send("t", partition=0, value=os.urandom(1_200))
        producer.flush()
        engine.log("t", 0).roll()
        assert engine.offload([LOG])[0].segments == 0
        with pytest.raises(LocalLimitError):
            fill(engine, 1)
        producer.commit_transaction()
        engine.log("t", 0).roll()
        engine.offload([LOG])
        fill(engine, 1)
        assert len(values(engine)) == 2


def test_pressure_is_reported_once(tmp_path: Path, sim: ListeningTier, clock: ManualClock) -> None:
    with opened(tmp_path, sim, clock) as engine:
        engine.create_topic("t", config={"local.hard.limit.bytes": 2_500, "retention.bytes": -1})
        fill(engine, 6)
        engine.offload()
        fill(engine, 1)
    assert len(sim.pressure) == 1
    assert "local.hard.limit.bytes=2500 tier.outage.policy=grow" in sim.pressure[0].reason
