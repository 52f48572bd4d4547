"""Restarts of an engine during each kind of S3 outage, with a real client and a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from s3_faults import ANSWERED, FAULTS
from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import SystemClock
from stratalog.errors import StoreUntrustedError, TierUnavailableError
from stratalog.log.log import Log
from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault
from stratalog.testing.s3 import LocalS3
from stratalog.tier.store.availability import RETRY_MS

ALWAYS: Final = 1_000_000
DEADLINE_MS: Final = 3_000  # deadline if the server does not answer
# Deadline if the server answers, also by an error; long, because the machine may be very busy.
ANSWERED_MS: Final = 15_000
OUTAGES: Final = ("503", "500", "reset before", "silent", "garbage", "drip")
CONFIG: Final = {"local.retention.bytes": 1, "retention.bytes": -1, "file.delete.delay.ms": 0}


class LaterClock(SystemClock):
    """The real clock, plus skipped time, so that tests need not wait until a store may be tried again."""

    skipped_ms = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.skipped_ms * 1_000_000


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.fixture
def opened(
    tmp_path: Path, proxy: FaultProxy, local_s3: LocalS3, s3_tier: str, clock: LaterClock
) -> Callable[..., Engine]:
    """Return a function that opens the engine's directory, with its tier behind the proxy."""

    proxy.heal()

    def open_(deadline_ms: int = ANSWERED_MS) -> Engine:
        options = {**local_s3.options, "endpoint_url": proxy.endpoint_url}
        config = {"log.dirs": [str(tmp_path / "data")], "store.deadline.ms": deadline_ms, "store.retries": 1}
        return open_engine(config=config, tier=s3_tier, tier_options=options, env=Env(clock=clock))

    return open_


def fill(log: Log, segments: int) -> None:
    for _ in range(segments):
        log.append([Record(value=b"%d" % log.offsets().log_end)])
        log.roll()


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.long
def test_local_disk_is_served_and_the_rest_follows_when_it_is_back(
    opened: Callable[..., Engine], proxy: FaultProxy, clock: LaterClock, outage: str
) -> None:
    with opened() as engine:
        engine.create_topic("t", config=CONFIG)
        fill(engine.log("t", 0), 4)
        engine.offload()
        engine.apply_retention()
    proxy.plan(replace(FAULTS[outage], times=ALWAYS, hits=0))
    with opened(ANSWERED_MS if outage in ANSWERED else DEADLINE_MS) as engine:
        log = engine.log("t", 0)
        assert (log.offsets().log_start, log.offsets().local_log_start) == (0, 3)
        fill(log, 2)
        with pytest.raises(TierUnavailableError):
            log.fetch(0)
        assert [record.value for record in log.records(3)] == [b"3", b"4", b"5"]
        proxy.heal()
        clock.skipped_ms += RETRY_MS
        assert engine.offload()[0].segments == 2
        assert [record.value for record in log.records()] == [b"%d" % number for number in range(6)]


@pytest.mark.long
def test_a_server_that_came_back_without_conditional_writes_gets_no_write(
    opened: Callable[..., Engine], proxy: FaultProxy, clock: LaterClock
) -> None:
    with opened() as engine:
        engine.create_topic("t", config=CONFIG)
        fill(engine.log("t", 0), 2)
        engine.offload()
    proxy.plan(replace(FAULTS["reset before"], times=ALWAYS, hits=0))
    with opened() as engine:
        fill(engine.log("t", 0), 2)
        proxy.heal()
        proxy.plan(ProxyFault(Misdeed.UNCONDITIONAL, times=ALWAYS))
        clock.skipped_ms += RETRY_MS
        with pytest.raises(StoreUntrustedError):
            engine.offload()
        fill(engine.log("t", 0), 1)
    proxy.heal()
    with opened() as engine:
        assert engine.offload()[0].segments == 3
