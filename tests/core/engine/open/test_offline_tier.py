"""An engine that is opened while the store is unavailable: reads, appends, and the return of the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outages import CONFIG, Place, fill, numbers, offline_engine, tiered
from sim_objects import ObjectFault, SimRequest
from sim_tier import URI
from stratalog import Engine, Record
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    FencedEpochError,
    LocalLimitError,
    StorageError,
    StoreError,
    StoreTimeoutError,
    StoreUntrustedError,
    TierUnavailableError,
)
from stratalog.model.events import EpochFenced, TierAvailable, TierUnavailable
from stratalog.model.names import TIER_NOTE_FILE, TopicPartition

WAIT_S = 60


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Place:
    return Place(tmp_path, clock)


# --- opening -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.THROTTLED])
def test_local_logs_are_read_and_appended_to(place: Place, fault: ObjectFault) -> None:
    tiered(place)
    place.fault = fault
    with place.engine() as engine:
        log = engine.log("t", 0)
        assert (log.offsets().log_start, log.offsets().local_log_start, log.offsets().log_end) == (0, 4, 6)
        assert numbers(log, 4) == [4, 5]
        assert log.append([Record(value=b"6.")], "durable").base_offset == 6
        with log.fetch(6) as fetched:
            assert fetched.next_offset == 7
    with place.engine() as engine:
        assert numbers(engine.log("t", 0), 4) == [4, 5, 6]


def test_the_tiers_of_several_logs_are_read_at_the_same_time(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t", partitions=3, config=CONFIG)
        for partition in range(3):
            fill(engine.log("t", partition), 1)
        engine.offload()
    waiting, begun = threading.Barrier(3), set[str]()

    def wait_for_others(request: SimRequest) -> ObjectFault:
        log, separator, _ = request.key.partition("/manifest/")
        if separator and log not in begun:  # the first request of each log waits, whichever thread sends it
            begun.add(log)
            waiting.wait(WAIT_S)
        return ObjectFault.NONE

    place.fault_of = wait_for_others
    with place.engine() as engine:
        assert [log.tier_end for log in engine.offload()] == [1, 1, 1]
    assert len(begun) == 3
    assert not waiting.broken


def test_offsets_that_only_the_tier_has_are_neither_lost_nor_out_of_range(place: Place) -> None:
    with offline_engine(place) as (_engine, log):
        reads: list[Callable[[], object]] = [
            lambda: log.fetch(0),
            lambda: log.transfer(3),
            lambda: list(log.records()),
            lambda: list(log.columns(2, 5)),
            lambda: log.offset_for_timestamp(0),
        ]
        for read in reads:
            with pytest.raises(TierUnavailableError, match="has been unavailable since the engine opened") as caught:
                read()
            assert caught.value.retriable
            assert "reconnects by itself" in str(caught.value)


def test_a_consumer_from_the_earliest_offset_skips_nothing(place: Place) -> None:
    tiered(place)
    place.fault = ObjectFault.NOT_APPLIED
    with (
        place.engine() as engine,
        engine.consumer(topics=["t"], auto_offset_reset="earliest") as consumer,
    ):
        with pytest.raises(TierUnavailableError):
            consumer.poll()
        place.fault = ObjectFault.NONE
        place.wait()
        with pytest.raises(TierUnavailableError, match="is available again"):
            consumer.poll()
        read_numbers: list[int] = []
        while len(read_numbers) < 6:
            read_numbers += [
                int((record.value or b"").rstrip(b".")) for records in consumer.poll().values() for record in records
            ]
        assert read_numbers == list(range(6))


def test_an_engine_that_never_knew_the_tier_does_not_open(place: Place) -> None:
    place.fault = ObjectFault.NOT_APPLIED
    with pytest.raises(TierUnavailableError, match="was never opened with sim://bucket") as caught:
        place.engine()
    assert isinstance(caught.value.__cause__, StoreTimeoutError)
    place.fault = ObjectFault.NONE
    tiered(place)
    place.fault = ObjectFault.NOT_APPLIED
    (place.folder / "data" / TIER_NOTE_FILE).write_bytes(b'{"version": 1, "tier": "sim://another"}')
    with pytest.raises(TierUnavailableError, match="was never opened with sim://bucket"):
        place.engine()
    (place.folder / "data" / TIER_NOTE_FILE).write_bytes(b"{")
    with pytest.raises(TierUnavailableError, match="was never opened with sim://bucket"):
        place.engine()


def test_the_error_of_the_stricter_policy_advises_what_to_do(place: Place) -> None:
    tiered(place)
    place.fault, place.settings = ObjectFault.NOT_APPLIED, {"tier.outage.open": "refuse"}
    with pytest.raises(
        TierUnavailableError, match=r"tier\.outage\.open is refuse: set it to serve, or wait for the store"
    ):
        place.engine()
    place.fault = ObjectFault.NONE
    with place.engine() as engine:
        assert numbers(engine.log("t", 0)) == list(range(6))


def test_nothing_is_taken_over_while_the_end_of_the_tier_is_unknown(place: Place) -> None:
    tiered(place)
    place.fault = ObjectFault.NOT_APPLIED
    with pytest.raises(TierUnavailableError, match="only the tier knows the end of the logs"):
        place.engine("empty", attach=True)


@pytest.mark.parametrize("bucket", [True, False])
def test_an_error_that_will_not_pass_is_no_outage(place: Place, *, bucket: bool) -> None:
    tiered(place)
    place.bucket.exists, place.fault = bucket, ObjectFault.DENIED
    with pytest.raises(StorageError) as caught:
        place.engine()
    assert not caught.value.retriable


def test_the_store_may_fail_between_the_probe_and_the_logs(place: Place) -> None:
    with place.engine() as engine:
        engine.create_topic("t", partitions=3, config=CONFIG)
        for partition in range(3):
            fill(engine.log("t", partition), 3)
        engine.offload()
        engine.apply_retention()
    requests = 0

    class OutageWhileOpening(Place):
        def _fault(self, request: SimRequest) -> ObjectFault:
            nonlocal requests
            requests += not request.key.startswith("stratalog-probe")
            return ObjectFault.NOT_APPLIED if requests > 2 and self.fault is not ObjectFault.NONE else ObjectFault.NONE

    going = OutageWhileOpening(place.folder, place.clock, ObjectFault.NOT_APPLIED)
    going.bucket = place.bucket
    going.settings = {"remote.log.reader.threads": 1}  # more threads would have several requests in progress
    with going.engine() as engine:
        logs = [engine.log("t", partition) for partition in range(3)]
        assert [log.offsets().log_start for log in logs] == [0, 0, 0]
        assert numbers(logs[0], 2) == numbers(logs[1], 2) == numbers(logs[2], 2) == [2]
        assert requests == 3  # after the first failed request, the other logs send no request
        fill(logs[0], 1)
        with pytest.raises(TierUnavailableError):
            engine.offload()
        going.fault = ObjectFault.NONE
        going.wait()
        assert sum(result.segments for result in engine.offload()) == 1
        assert [numbers(log) for log in logs] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]


# --- during the outage -------------------------------------------------------------------------------------------


def test_nothing_is_evicted_sent_or_committed(place: Place) -> None:
    tiered(place)
    before = dict(place.bucket.objects)
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        log = engine.log("t", 0)
        fill(log, 5)
        local = [segment.base_offset for segment in log.view().segments]
        place.asked.clear()
        for duty in (engine.offload, engine.apply_retention, engine.collect):
            with pytest.raises(TierUnavailableError):
                duty()
        with pytest.raises(TierUnavailableError):
            engine.erase("t", b"k")
        with pytest.raises(TierUnavailableError):
            engine.delete_topic("t")
        with pytest.raises(TierUnavailableError):
            engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        assert [result.error for result in engine.run_cleaner()] == []
        log.maintenance.evict(log.offsets().log_end)
        assert [segment.base_offset for segment in log.view().segments] == local
        assert place.asked == []  # no request is sent again so soon
        place.wait()
        with pytest.raises(TierUnavailableError):
            engine.offload()
        assert {request.kind for request in place.asked} == {"create", "delete"}  # only the probe sends requests
    assert place.bucket.objects == before


def test_the_outage_is_reported(place: Place) -> None:
    with offline_engine(place, 2) as (engine, _log):
        figures = {sample.metric.name: sample.value for sample in engine.metrics() if sample.labels in {(), ("t", "0")}}
        assert (figures["stratalog_tier_available"], figures["stratalog_log_start_offset"]) == (0, 0)
        assert figures["stratalog_log_tier_lag_segments"] == 2
        (lag,) = engine.tier_lag()
        assert (lag.segments, "has been unavailable" in lag.error) == (2, True)
        place.fault = ObjectFault.NONE
        place.wait()
        engine.offload()
        assert {sample.value for sample in engine.metrics() if sample.metric.name == "stratalog_tier_available"} == {1}
        assert engine.tier_lag()[0].error == ""
    lost, back = place.events
    assert isinstance(lost, TierUnavailable)
    assert (lost.uri, "stratalog-probe" in lost.reason) == (URI, True)
    assert back == TierAvailable(uri=URI)


def test_the_duties_wait_for_the_store_and_catch_up_by_themselves(place: Place) -> None:
    place.settings = {"remote.log.manager.task.interval.ms": 10_000, "log.retention.check.interval.ms": 20_000}
    tiered(place)
    place.fault = ObjectFault.NOT_APPLIED

    def duty(engine: Engine, name: str) -> DutyStatus:
        return next(status for status in engine.duties() if status.name == name)

    with place.engine() as engine:
        log = engine.log("t", 0)
        for _ in range(6):
            fill(log, 1)
            place.clock.advance_ms(20_000)
            engine.run_duties()
        assert duty(engine, "offload").failing > 1
        assert "TierUnavailableError" in duty(engine, "offload").error
        assert numbers(log, 4) == list(range(4, 12))
        place.fault = ObjectFault.NONE
        for _ in range(20):
            place.clock.advance_ms(20_000)
            engine.run_duties()
        assert duty(engine, "offload").failing == duty(engine, "retention").failing == 0
        assert engine.tier_lag()[0].segments == 0
        assert log.offsets().local_log_start >= 10
        assert numbers(log) == list(range(12))


def test_local_disk_fills_up_to_its_limit(place: Place) -> None:
    tiered(place, config={"local.hard.limit.bytes": 2_000, "tier.outage.policy": "reject"})
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        log = engine.log("t", 0)
        with pytest.raises(LocalLimitError):
            fill(log, 20)
        log_end = log.offsets().log_end
        assert 6 < log_end < 20
        place.fault = ObjectFault.NONE
        place.wait()
        engine.offload()
        fill(log, 3)
        assert numbers(log) == list(range(log_end + 3))


def test_topics_are_made_and_changed_meanwhile(place: Place) -> None:
    tiered(place)
    with place.engine() as engine:
        engine.create_topic("plain", config={"remote.storage.enable": False})
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        engine.create_topic("new", config=CONFIG)
        fill(engine.log("new", 0), 3)
        engine.alter_topic("t", {"retention.ms": 1_000_000})
        with pytest.raises(TierUnavailableError):
            engine.alter_topic("plain", {"remote.storage.enable": True})
        assert not engine.topics()["plain"].config.remote_storage_enable
        engine.delete_topic("plain")
        place.fault = ObjectFault.NONE
        place.wait()
        assert sum(result.segments for result in engine.offload()) == 3
        engine.apply_retention()
        assert numbers(engine.log("new", 0)) == [0, 1, 2]


@pytest.mark.parametrize("policy", ["serve", "refuse"])
def test_an_engine_that_took_a_tier_over_makes_topics_meanwhile_as_others_do(place: Place, policy: str) -> None:
    """An engine that may open without the store creates topics during an outage; an engine that may not refuses."""
    tiered(place)
    place.settings = {"tier.outage.open": policy}
    with place.engine("empty", attach=True) as engine:
        place.fault = ObjectFault.NOT_APPLIED
        if policy == "refuse":
            with pytest.raises(StoreError):
                engine.create_topic("new", config=CONFIG)
            return
        engine.create_topic("new", config=CONFIG)
        fill(engine.log("new", 0), 3)
        with engine.consumer(group="g", topics=["new"]) as consumer:
            consumer.commit({TopicPartition("new", 0): 2})
        place.fault = ObjectFault.NONE
        place.wait()
        assert max(result.segments for result in engine.offload()) == 3
        assert numbers(engine.log("new", 0)) == [0, 1, 2]


def test_a_topic_enters_the_tier_when_the_store_is_available_again(place: Place) -> None:
    """No other topic uses the tier, so no duty tests the store. The change once failed until the next collection."""
    with place.engine() as engine:
        engine.create_topic("t", config={**CONFIG, "remote.storage.enable": False})
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        place.wait()
        with pytest.raises(TierUnavailableError):
            engine.alter_topic("t", {"remote.storage.enable": True})
        place.fault = ObjectFault.NONE
        place.wait()
        engine.alter_topic("t", {"remote.storage.enable": True})
        fill(engine.log("t", 0), 1)
        assert [result.tier_end for result in engine.offload()] == [1]


def test_retention_of_other_topics_continues(place: Place) -> None:
    tiered(place)
    with place.engine() as engine:
        engine.create_topic("z", config={"remote.storage.enable": False, "retention.bytes": 0})
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        fill(engine.log("z", 0), 3)
        with pytest.raises(TierUnavailableError):
            engine.apply_retention()
        assert engine.log("z", 0).offsets().log_start == 3


# --- after the outage --------------------------------------------------------------------------------------------


def test_reading_finds_the_store_back_without_any_duty(place: Place) -> None:
    with offline_engine(place) as (_engine, log):
        with pytest.raises(TierUnavailableError):
            log.fetch(0)
        place.fault = ObjectFault.NONE
        with pytest.raises(TierUnavailableError, match="has been unavailable"):
            log.fetch(0)  # no request is sent again so soon
        place.wait()
        with pytest.raises(TierUnavailableError, match="is available again"):
            log.fetch(0)
        assert numbers(log) == list(range(6))


def test_readers_do_not_wait_for_a_request_of_another_reader(place: Place) -> None:
    errors = list[BaseException]()
    with offline_engine(place) as (engine, log):

        def read_meanwhile() -> None:
            place.during = None
            with pytest.raises(TierUnavailableError) as caught:
                log.fetch(0)
            errors.append(caught.value)

        place.wait()
        place.during = read_meanwhile
        with pytest.raises(TierUnavailableError):
            engine.offload()
    assert len(errors) == 1


def test_the_loser_stops_when_it_sees_that_another_engine_took_over(place: Place) -> None:
    with offline_engine(place, 2) as (loser, log), place.rival().engine("other", attach=True) as winner:
        winner_log = winner.log("t", 0)
        assert winner_log.leader_epoch > log.leader_epoch
        before = dict(place.bucket.objects)
        place.fault = ObjectFault.NONE
        place.wait()
        with pytest.raises(FencedEpochError, match="was taken over in leader epoch"):
            loser.offload()
        assert place.bucket.objects == before
        with pytest.raises(FencedEpochError):
            log.append([Record(value=b"8.")])
        fill(winner_log, 3)
        winner.offload()
        assert numbers(winner_log) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert numbers(log) == list(range(8))  # the log still returns the records that it acknowledged
    assert [type(event) for event in place.events] == [TierUnavailable, TierAvailable, EpochFenced]


def test_the_error_of_the_loser_names_the_offsets_of_the_winner(place: Place) -> None:
    with offline_engine(place, 4) as (loser, log):
        with place.rival().engine("other", attach=True) as winner:
            fill(winner.log("t", 0), 9)
            winner.offload()
        place.fault = ObjectFault.NONE
        place.wait()
        with pytest.raises(FencedEpochError):
            loser.offload()
        assert numbers(log) == list(range(10))
        assert [entry.epoch for entry in log.view().epochs.entries] == [0]


def test_a_store_that_came_back_without_its_guarantees_gets_no_write(place: Place) -> None:
    with offline_engine(place, 2) as (engine, log):
        place.fault, place.bucket.atomic = ObjectFault.NONE, False
        before = dict(place.bucket.objects)
        place.wait()
        for _ in range(3):
            with pytest.raises(StoreUntrustedError, match="creates an object that exists") as caught:
                engine.offload()
            assert not caught.value.retriable
            place.wait()
        with pytest.raises(StoreUntrustedError):
            log.fetch(0)
        fill(log, 2)
        assert numbers(log, 4) == list(range(4, 10))
        assert place.bucket.objects == before
        assert "creates an object that exists" in engine.tier_lag()[0].error
    assert [type(event) for event in place.events] == [TierUnavailable, TierUnavailable]
    place.bucket.atomic = True
    with place.engine() as engine:
        engine.offload()
        assert numbers(engine.log("t", 0)) == list(range(10))
