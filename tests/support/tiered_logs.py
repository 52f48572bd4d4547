"""Logs whose closed segments are in a bucket in memory. Tests describe the records as letters."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sim_objects import SimBucket
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine
from stratalog.env import Env, PosixVfs, Vfs
from stratalog.env.clock import ManualClock
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.tier_view import RemoteView

CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "segment.bytes": 100_000,
    "delete.retention.ms": 10_000,
    "file.delete.delay.ms": 0,
}


@dataclass
class TieredLogs:
    """A folder, a bucket, a clock that only the test moves, and engines that use them.

    Attributes:
        folder: parent folder of the log directories.
        settings: settings of every engine.
    """

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    sim: SimTier = field(init=False)
    _engines: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sim = SimTier(SimBucket(self.clock))

    @property
    def env(self) -> Env:
        """Return an environment with the shared clock."""
        return Env(clock=self.clock)

    def engine(
        self, name: str = "data", *, attach: bool = False, sim: SimTier | None = None, files: Vfs | None = None
    ) -> Engine:
        """Open an engine over one log directory. ``close`` closes it."""
        settings = {"log.dirs": [str(self.folder / name)], "store.retries": 0, **self.settings}
        chance = random.Random(len(self._engines))  # noqa: S311 - a test must be repeatable
        env = Env(clock=self.clock, chance=chance, files=files or PosixVfs())
        engine = open_engine(config=settings, tier=URI, plugins=[sim or self.sim], env=env, attach=attach)
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        """Close all engines."""
        for engine in self._engines:
            engine.close()


def filled(engine: Engine, *segments: str, **config: object) -> Log:
    """Create a log with one closed segment for each text. Each letter is a record with that letter as its key.

    A capital letter is a tombstone of the key in lower case.
    """
    settings = {name.replace("_", "."): value for name, value in config.items()}
    engine.create_topic("t", config={**CONFIG, **settings})
    log = engine.log("t", 0)
    for keys in segments:
        append(log, keys)
        log.roll()
    return log


def two_replicas(logs: TieredLogs, **config: object) -> tuple[tuple[Engine, Engine], Log, Log]:
    """Return two engines whose directories are equal and which share a tier, the leader of epoch 1, and its follower."""
    filled(logs.engine("a"), **config)
    logs.close()
    shutil.copytree(logs.folder / "a", logs.folder / "b")
    engines = logs.engine("a"), logs.engine("b")
    leader, follower = (engine.log("t", 0) for engine in engines)
    leader.lead(1)
    follower.follow(1)
    return engines, leader, follower


def append(log: Log, keys: str) -> None:
    """Append one batch for each letter, as ``filled`` does."""
    for key in keys:
        value = None if key.isupper() else b"v%d" % log.offsets().log_end
        log.append([Record(key=key.lower().encode(), value=value, timestamp_ms=log.components.env.clock.now_ms())])


def letters(log: LogReader) -> str:
    """Return offset and letter of each record in the log, as ``0a 1b 3A``."""
    records = log.records()
    return " ".join(
        f"{record.offset}{(record.key or b'').decode() if record.value is not None else (record.key or b'').decode().upper()}"
        for record in records
    )


def remote_of(log: LogReader) -> RemoteView:
    """Return the log's current view of the tier."""
    remote = log.view().remote
    assert remote is not None
    return remote


def committed(log: LogReader) -> list[tuple[int, int]]:
    """Return the bounds of the segments in the tier."""
    return [(segment.base_offset, segment.end_offset) for segment in remote_of(log).segments]
