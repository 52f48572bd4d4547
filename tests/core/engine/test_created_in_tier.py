"""Topics without segments in a tier: the tier lists them from their creation on, and all operations work with them."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from outages import Place
from sim_objects import ObjectFault, SimRequest
from sim_tier import URI, SimTier
from stratalog import Reader, Record, TopicPartition, open_engine, open_reader
from stratalog.engine.restore.restore import restore
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import FencedEpochError, LogDirOfflineError
from stratalog.model.events import EpochFenced
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.upkeep.collect import GRACE_MS
from stratalog.tier.upkeep.tier_check import TierLogCheck
from tier_bed import TierBed

T0 = TopicPartition("t", 0)


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Place:
    return Place(tmp_path, clock)


def reader(place: Place) -> Reader:
    return open_reader(URI, plugins=[SimTier(place.bucket)], env=Env(clock=place.clock))


def listed(place: Place) -> dict[TopicPartition, tuple[int, int]]:
    """Return every log that a reader of the tier alone lists, with its bounds."""
    with reader(place) as tier_reader:
        bounds = {name: tier_reader.log(*name).offsets() for name in tier_reader.partitions()}
    return {name: (offsets.log_start, offsets.log_end) for name, offsets in bounds.items()}


def test_a_topic_is_in_the_tier_when_create_topic_returns(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t", partitions=2, config={"retention.ms": 5000})
        engine.create_topic("local", config={"remote.storage.enable": False})
        assert listed(place) == {T0: (0, 0), TopicPartition("t", 1): (0, 0)}
        tier = engine.tier
        topic_id = engine.topics()["t"].topic_id
        assert tier is not None
        assert topic_id is not None
        root = tier.log(T0, topic_id).root
        assert root is not None
        assert (root.version, root.change, root.segments, root.entries) == (1, ChangeKind.CREATE, 0, ())
        assert root.topic is not None
        assert root.topic.partitions == 2
        assert root.topic.config["retention.ms"] == 5000


def test_added_partitions_are_in_the_tier_when_create_partitions_returns(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t")
        engine.create_partitions("t", 3)
        assert listed(place) == {TopicPartition("t", number): (0, 0) for number in range(3)}


def test_a_log_that_is_opened_with_a_tier_for_the_first_time_is_in_it_before_its_first_offload(place: Place) -> None:
    with open_engine(place.folder / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"%d" % number) for number in range(5)])
        engine.log("t", 0).delete_records(before=2)
    with place.engine():
        assert listed(place) == {T0: (2, 2)}, "the log start, and no record that only local disk has"


def test_a_log_costs_two_requests_once(place: Place) -> None:
    def asked() -> Counter[str]:
        requests = Counter(request.kind for request in place.asked)
        place.asked.clear()
        return requests

    # otherwise the engine reads back its first uploads to a store of another distribution
    place.settings["tier.verify"] = "never"
    with place.engine() as engine:
        asked()
        engine.create_topic("t", partitions=20)
        assert asked() == {"list": 40, "create": 20}, "one listing finds that there is nothing, one confirms the root"
    with place.engine() as engine:
        opening = asked()
        engine.offload()
        engine.collect()
    assert opening["create"] == 2, "the probe of the store alone"
    assert not asked()["create"]


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.THROTTLED])
def test_a_store_that_fails_keeps_no_topic_from_being_made_and_the_next_pass_lists_it(
    place: Place, fault: ObjectFault
) -> None:
    with place.engine() as engine:

        def failing(request: SimRequest) -> ObjectFault:
            return fault if request.kind == "create" else ObjectFault.NONE

        place.fault_of = failing
        engine.create_topic("t")
        assert [bool(lag.error) for lag in engine.tier_lag()] == [True]
        engine.log("t", 0).append([Record(value=b"taken")])
        assert listed(place) == {}
        place.fault_of = None
        engine.offload()
        assert [lag.error for lag in engine.tier_lag()] == [""]
        assert listed(place) == {T0: (0, 0)}


def test_a_topic_that_returns_to_its_tier_is_listed_again(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"0"), Record(value=b"1")])
        engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        engine.alter_topic("t", {"remote.storage.enable": True})
    with place.engine("other", attach=True) as engine:
        assert engine.partitions() == (T0,)


def test_a_tier_without_a_segment_is_attached_with_its_topics_and_settings(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t", partitions=3, config={"retention.ms": 5000})
    with place.engine("other", attach=True) as engine:
        assert [(log.log.partition, log.log_end) for log in engine.attached] == [(0, 0), (1, 0), (2, 0)]
        assert engine.topics()["t"].config.retention_ms == 5000
        log = engine.log("t", 1)
        assert log.append([Record(value=b"first")]).base_offset == 0
        log.roll()
        engine.offload()
        assert listed(place)[TopicPartition("t", 1)] == (0, 1)


def test_an_empty_log_is_restored_verified_collected_and_deleted(place: Place, clock: ManualClock) -> None:
    with place.engine() as engine:
        engine.create_topic("t")
        tier, topic_id = engine.tier, engine.topics()["t"].topic_id
        assert tier is not None
        assert topic_id is not None
        clock.advance_ms(2 * GRACE_MS)
        assert engine.collect().roots == 0
        assert tier.lost() == ()
        check = TierLogCheck(tier.log(T0, topic_id), engine.log("t", 0).components, contents=True)
        assert [*check.roots(), *check.segments(), *check.orphans()] == []
        env = Env(clock=clock)
        (restored,) = restore(URI, place.folder / "restored", plugins=[SimTier(place.bucket)], env=env)
        assert (restored.log, restored.log_end, restored.segments) == (T0, 0, 0)
        engine.delete_topic("t")
        engine.collect()
        clock.advance_ms(2 * GRACE_MS)
        engine.collect()
        assert place.bucket.keys(f"t-{topic_id}") == []
        assert listed(place) == {}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_deletion_warns_of_a_log_that_stays_in_the_tier(
    place: Place, caplog: pytest.LogCaptureFixture, *, leaves: bool
) -> None:
    """The log cannot be opened. Its leader epoch is therefore unknown, and another engine may own the log."""
    with place.engine() as engine:
        engine.create_topic("t", partitions=2)
    (place.folder / "data" / "t-1" / "partition.metadata").write_text("damaged", encoding="utf-8")
    with place.engine() as engine:
        caplog.clear()
        if leaves:
            engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        else:
            engine.delete_topic("t")
            assert engine.topics() == {}
    assert TopicPartition("t", 1) in listed(place)
    assert ["t-1 in the tier are not deleted" in message for message in caplog.messages] == [True]


def test_a_repeated_deletion_does_not_warn_of_a_log_that_the_first_one_deleted_in_the_tier(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyVfs()
    with place.engine(files=files) as engine:
        engine.create_topic("t")
        files.rule = failing("rename", errno.EIO, path="-delete", times=1)
        with pytest.raises(LogDirOfflineError):
            engine.delete_topic("t")
        engine.delete_topic("t")
        assert engine.topics() == {}
    assert "in the tier are not deleted" not in caplog.text


def test_a_replica_that_creates_the_log_in_the_same_epoch_does_not_fence_its_leader() -> None:
    bed = TierBed()
    leader, replica = bed.open().log(LOG, TOPIC_ID), bed.open().log(LOG, TOPIC_ID)
    assert leader.root is None
    replica.create(leader_epoch=0, log_start=0, high_watermark=0)
    assert leader.offload([made_segment(0, 5)], layout="pair", leader_epoch=0, log_start=0, high_watermark=5).committed
    assert leader.create(leader_epoch=0, log_start=0, high_watermark=5) is leader.root, "it is known"
    with pytest.raises(FencedEpochError):
        replica.offload([made_segment(5, 9)], layout="pair", leader_epoch=0, log_start=0, high_watermark=9)


def test_a_log_that_was_taken_over_is_not_created_in_an_older_epoch() -> None:
    bed = TierBed()
    older, newer = bed.open().log(LOG, TOPIC_ID), bed.open().log(LOG, TOPIC_ID)
    assert older.root is None
    newer.create(leader_epoch=1, log_start=0, high_watermark=0)
    with pytest.raises(FencedEpochError):
        older.create(leader_epoch=0, log_start=0, high_watermark=0)


def test_an_engine_that_finds_its_log_taken_over_while_it_creates_it_takes_no_appends(place: Place) -> None:
    with place.engine() as engine:

        def rival_first(request: SimRequest) -> ObjectFault:
            if request.kind == "create":
                place.fault_of = None
                assert engine.tier is not None
                topic_id = engine.tier.open_logs()[0].topic_id
                with place.rival().engine("rival") as rival:
                    assert rival.tier is not None
                    rival.tier.log(T0, topic_id).create(leader_epoch=3, log_start=0, high_watermark=0)
            return ObjectFault.NONE

        place.fault_of = rival_first
        engine.create_topic("t")
        with pytest.raises(FencedEpochError):
            engine.log("t", 0).append([Record(value=b"late")])
    assert any(isinstance(event, EpochFenced) for event in place.events)
