"""A bucket that was rolled back or emptied while an engine was using it: the engine reports the loss."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from outages import Place, fill, numbers, tiered
from sim_objects import SimBucket
from stratalog.env.clock import ManualClock
from stratalog.errors import CorruptManifestError, StorageError
from stratalog.tier.tier import Tier


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Place:
    """Return a place whose tier had the offsets 0 to 3, and then 0 to 8. The local disk begins at 8."""
    new_place = Place(tmp_path, clock)
    tiered(new_place)
    before = dict(new_place.bucket.objects)
    with new_place.engine() as engine:
        log = engine.log("t", 0)
        log.roll()
        fill(log, 4)
        engine.offload()
        engine.apply_retention()
        assert (log.offsets().local_log_start, log.offsets().log_end) == (9, 10)
    new_place.bucket = SimBucket(clock, before)
    return new_place


def test_records_that_a_tier_lost_raise_an_error_when_they_are_read(place: Place) -> None:
    with place.engine() as engine:
        log = engine.log("t", 0)
        assert log.offsets().log_start == 0
        with log.fetch(0) as fetched:
            assert fetched.next_offset > 0
        for read in (lambda: log.fetch(5), lambda: numbers(log), log.to_arrow):
            with pytest.raises(CorruptManifestError, match=r"offsets \[5, 9\) of t-0 are neither on local disk"):
                read()
        assert numbers(log, 9) == [9]
        with pytest.raises(StorageError, match=r"delete the records between with delete_records\(9\)"):
            engine.offload()


@pytest.mark.parametrize("emptied", [False, True])
def test_a_lost_tier_is_reported_when_the_log_is_opened(
    place: Place, caplog: pytest.LogCaptureFixture, *, emptied: bool
) -> None:
    if emptied:
        place.bucket = SimBucket(place.clock)
    with caplog.at_level(logging.ERROR), place.engine():
        pass
    (message,) = [
        log_record.getMessage() for log_record in caplog.records if "the tier lost records" in log_record.getMessage()
    ]
    assert f"offsets=[{0 if emptied else 5}, 9)" in message


def test_a_lost_manifest_is_not_replaced_by_one_without_the_older_segments(place: Place) -> None:
    """Otherwise the log would no longer need a rebuild, and the collector would delete the older segments."""
    place.bucket = SimBucket(
        place.clock, {key: obj for key, obj in place.bucket.objects.items() if "/manifest/" not in key}
    )
    before = set(place.bucket.objects)
    with place.engine() as engine:
        fill(engine.log("t", 0), 2)
        with pytest.raises(
            StorageError, match=r"manifest of t-0 .* is lost.*segments from offset 0 on.*rebuild sim://"
        ):
            engine.offload()
        assert "is lost" in engine.tier_lag()[0].error
        place.clock.advance_ms(10 * 3_600_000)
        engine.collect()
        assert set(place.bucket.objects) == before
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        assert engine.tier.rebuild(name).end_offset == 5


def test_an_engine_continues_a_rebuilt_log_with_the_records_that_only_its_disk_has(place: Place) -> None:
    with place.engine() as engine:
        log = engine.log("t", 0)
        log.delete_records(9)
        fill(log, 3)
        engine.offload()
        engine.apply_retention()
        fill(log, 2)
        before = numbers(log)
    place.bucket = SimBucket(
        place.clock, {key: obj for key, obj in place.bucket.objects.items() if "/manifest/" not in key}
    )
    with place.engine() as engine:
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        engine.tier.rebuild(name)
    with place.engine() as engine:
        log = engine.log("t", 0)
        assert isinstance(engine.tier, Tier)
        assert log.topic_id is not None
        root = engine.tier.log(log.name, log.topic_id).root
        assert root is not None
        log.lead(root.leader_epoch + 1)
        log.roll()
        engine.offload()
        assert numbers(log) == before
        assert engine.tier_lag()[0].segments == 0
        assert log.healthy


def test_the_log_continues_when_it_is_given_up(place: Place) -> None:
    with place.engine() as engine:
        log = engine.log("t", 0)
        log.delete_records(9)
        fill(log, 2)
        engine.offload()
        engine.apply_retention()
        assert numbers(log) == [9, 10, 11]
        assert log.offsets().local_log_start == 11


def test_a_valid_tier_is_not_reported(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path, clock)
    tiered(place)
    with caplog.at_level(logging.ERROR), place.engine() as engine:
        assert numbers(engine.log("t", 0)) == list(range(6))
    assert not caplog.records
