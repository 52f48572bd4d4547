"""A duty forgets producers that have been inactive for too long."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from log_bed import LogBed, records
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import OutOfOrderSequenceError


def test_a_duty_forgets_who_was_silent_for_the_time_that_is_set(tmp_path: Path, bed: LogBed) -> None:
    clock = ManualClock()
    clock.advance_ms(records(1)[0].timestamp_ms - clock.now_ms())
    config = {"producer.id.expiration.ms": 5000, "producer.id.expiration.check.interval.ms": 1000}
    with stratalog.open_engine(tmp_path, env=Env(clock=clock), config=config) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0)))
        log.append_as_leader(bed.batch(0, records(1), producer=(8, 0, 0), transactional=True))
        clock.advance_ms(4999)
        engine.run_duties()
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 5)))
        clock.advance_ms(1000)
        engine.run_duties()
        assert log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 5))).base_offset == 2
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(bed.batch(0, records(1), producer=(8, 0, 5), transactional=True))
