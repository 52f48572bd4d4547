"""Engines over one bucket whose store can be unavailable, and logs that are partly in the tier."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sim_objects import ObjectFault, SimBucket, SimRequest
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine
from stratalog.env import Env, PosixVfs, Vfs
from stratalog.env.clock import ManualClock
from stratalog.log.log import Log
from stratalog.model.events import EpochFenced, TierAvailable, TierUnavailable
from stratalog.spi import hookimpl
from stratalog.tier.store.availability import RETRY_MS

CONFIG: Final = {"file.delete.delay.ms": 0, "local.retention.bytes": 1, "retention.bytes": -1, "retention.ms": -1}


@dataclass(eq=False)
class Place:
    """Log directories, one bucket, the faults of its store, and the events of the engines.

    Attributes:
        fault: outcome of every request.
        fault_of: returns the outcome of each request; None to use ``fault``.
        during: called inside each request; None to call nothing.
        asked: all requests in order, including failed ones.
    """

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    fault: ObjectFault = ObjectFault.NONE
    asked: list[SimRequest] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    during: Callable[[], None] | None = None
    fault_of: Callable[[SimRequest], ObjectFault] | None = None
    bucket: SimBucket = field(init=False)
    _seed: int = 0

    def __post_init__(self) -> None:
        self.bucket = SimBucket(self.clock)

    @hookimpl
    def stratalog_on_tier_unavailable(self, event: TierUnavailable) -> None:
        self.events.append(event)

    @hookimpl
    def stratalog_on_tier_available(self, event: TierAvailable) -> None:
        self.events.append(event)

    @hookimpl
    def stratalog_on_epoch_fenced(self, event: EpochFenced) -> None:
        self.events.append(event)

    def _fault(self, request: SimRequest) -> ObjectFault:
        self.asked.append(request)
        if self.during is not None:
            self.during()
        return self.fault if self.fault_of is None else self.fault_of(request)

    def engine(self, name: str = "data", *, attach: bool = False, uri: str = URI, files: Vfs | None = None) -> Engine:
        self._seed += 1
        chance = random.Random(self._seed)  # noqa: S311 - a test must be repeatable
        env = Env(clock=self.clock, chance=chance, files=files or PosixVfs())
        settings = {"log.dirs": [str(self.folder / name)], "store.retries": 0, **self.settings}
        return open_engine(
            config=settings, tier=uri, plugins=[self, SimTier(self.bucket, faults=self._fault)], env=env, attach=attach
        )

    def rival(self) -> Place:
        """Return a place for another machine that uses the same bucket."""
        rival_place = Place(self.folder, self.clock)
        rival_place.bucket = self.bucket
        return rival_place

    def wait(self) -> None:
        """Advance the clock until engines request the store again."""
        self.clock.advance_ms(RETRY_MS)


def fill(log: Log, segments: int, size_bytes: int = 100) -> None:
    """Append closed segments with one record each, whose value is its offset; the active segment stays empty."""
    for _ in range(segments):
        log.append([Record(value=b"%d" % log.offsets().log_end + b"." * size_bytes)])
        log.roll()


def tiered(place: Place, segments: int = 5, config: Mapping[str, object] | None = None) -> None:
    """Write a log whose local files are the last closed segment and one later record, and stop the engine cleanly.

    All closed segments are in the tier.
    """
    with place.engine() as engine:
        engine.create_topic("t", config={**CONFIG, **(config or {})})
        log = engine.log("t", 0)
        fill(log, segments)
        engine.offload()
        engine.apply_retention()
        log.append([Record(value=b"%d." % segments)])
        assert log.offsets().local_log_start == segments - 1 > log.offsets().log_start == 0


@contextlib.contextmanager
def offline_engine(place: Place, segments: int = 0) -> Iterator[tuple[Engine, Log]]:
    """Open an engine while its store is unavailable, and append this many segments. Yield the engine and its log."""
    tiered(place)
    place.fault = ObjectFault.NOT_APPLIED
    with place.engine() as engine:
        log = engine.log("t", 0)
        fill(log, segments)
        yield engine, log


def numbers(log: Log, start: int = 0) -> list[int]:
    return [int((record.value or b"").rstrip(b".")) for record in log.records(start)]
