"""Kills and power losses before each operation of a compaction or an erasure in both tiers.

After each of them, the newest record of each key exists, and no older record replaces it. Erased records stay erased.
The tier alone has the same records up to its end, and refers only to existing objects. Each local copy equals the bytes
in the tier. A new engine completes the work.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import stratalog
from sim_objects import ObjectFault, SimBucket, random_faults
from sim_tier import URI, SimTier
from stratalog import Engine, Record
from stratalog.cleaning.compact.tier_range import CommittedPublisher
from stratalog.errors import StorageError, StoreError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.spi import ByteSource, ObjectInfo
from stratalog.testing.power_loss import PowerLossVfs
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep.collect import GRACE_MS
from tiered_logs import CONFIG, TieredLogs, remote_of

SEEDS, PLANTED_SEEDS, STEPS, KEYS = 3, 10, 34, 7
LOOKED_AT = 0.06  # share of the operations that are checked in one run; all runs together check all operations
LOSSES = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.THROTTLED)
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": -1,
    "segment.bytes": 300,
    "index.interval.bytes": 100,
    "delete.retention.ms": 1_000,
}


@dataclass(frozen=True)
class State:
    """Disk and bucket after one operation of a story, and the facts that must be true of them."""

    folder: Path
    objects: dict[str, tuple[bytes, int]]
    sent: int
    durable: int
    erased: dict[bytes, int]  # by key, the offset below which it is erased
    erasing: dict[bytes, int]  # by key, the offset below which an erasure may be incomplete


@dataclass
class Story:
    """One seeded run of operations, and the states that a crash could leave in it."""

    folder: Path
    seed: int
    sent: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    durable: int = 0
    erased: dict[bytes, int] = field(default_factory=dict)
    erasing: dict[bytes, int] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    is_watching: bool = False
    operations: int = 0
    files: PowerLossVfs = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a failure is replayed from its seed
        self.logs = TieredLogs(self.folder)
        self.logs.sim.before = lambda _: self.look()

    def run(self) -> None:
        with self.logs.engine() as engine:
            engine.create_topic("t", config={**CONFIG, **SETTINGS})
        self.files = PowerLossVfs(self.folder / "data" / "t-0", lambda _: self.look())
        engine = self.logs.engine(files=self.files)
        self.logs.sim.store.faults = random_faults(self.chance, self.chance.choice((0, 0.05)), LOSSES)
        self.is_watching = True
        for _ in range(STEPS):
            try:
                self.step(engine)
            except StoreError:
                continue
        self.is_watching = False
        self.logs.close()

    def step(self, engine: Engine) -> None:
        log, chance = engine.log("t", 0), self.chance
        weights = {"append": 10, "offload": 4, "clean": 5, "erase": 2, "delete": 1, "collect": 2}
        kind = chance.choices(list(weights), list(weights.values()))[0]
        if kind == "append":
            rows = [
                (b"k%d" % chance.randrange(KEYS), chance.choice((None, b"v%d" % len(self.sent) * 5))) for _ in "123"
            ]
            self.sent += rows
            log.append([Record(key=key, value=value) for key, value in rows], "durable")
            self.durable = len(self.sent)
            if chance.random() < 0.4:
                log.roll()
        elif kind == "offload":
            log.roll()
            engine.offload()
        elif kind == "clean":
            engine.run_cleaner()
        elif kind == "erase":
            key = b"k%d" % chance.randrange(KEYS)
            self.erasing[key] = len(self.sent)
            (result,) = engine.erase("t", key)
            if result.is_complete:
                self.erased[key] = result.end
        elif kind == "delete":
            log.delete_records(chance.randrange(log.offsets().log_start, log.offsets().high_watermark + 1))
            engine.apply_retention()
        else:
            self.logs.clock.advance_ms(chance.choice((2_000, GRACE_MS + 2_000)))
            engine.collect()

    def look(self) -> None:
        """Save some of the states that a crash now would leave. It is called before each operation."""
        if not self.is_watching:
            return
        self.operations += 1
        if self.chance.random() >= LOOKED_AT:
            return
        self.is_watching = False
        crash_dir = self.folder / f"left-{len(self.states)}" / "data"
        shutil.copytree(self.folder / "data", crash_dir)
        if self.chance.random() < 0.6:  # simulate a power loss; otherwise only the process is killed
            image = self.chance.choice(list(self.files.images(self.chance, 4)))
            shutil.rmtree(crash_dir / "t-0")
            (crash_dir / "t-0").mkdir()
            for name, data in image.items():
                (crash_dir / "t-0" / name).write_bytes(data)
        objects = dict(self.logs.sim.bucket.objects)
        sent = len(self.sent)
        self.states.append(State(crash_dir, objects, sent, self.durable, dict(self.erased), dict(self.erasing)))
        self.is_watching = True


@dataclass
class Judge:
    """Opens one state with new engines, and checks it."""

    story: Story
    state: State

    def run(self) -> None:
        logs = TieredLogs(self.state.folder.parent, clock=self.story.logs.clock)
        logs.sim = SimTier(SimBucket(logs.clock, objects=dict(self.state.objects)))
        try:
            engine = logs.engine()
            log = engine.log("t", 0)
            assert self.state.durable <= log.offsets().log_end <= self.state.sent
            self.check(logs, log)
            for result in engine.run_cleaner():
                assert result.error is None
            for key in list(self.state.erasing):
                (erased,) = engine.erase("t", key)
                assert erased.is_complete
                self.state.erased[key] = self.state.erasing[key] = erased.end
            log.roll()
            engine.offload()
            engine.collect()
            self.check(logs, log)
        finally:
            logs.close()

    def check(self, logs: TieredLogs, log: Log) -> None:
        self.check_copies(log)
        self.compare(log)
        with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
            if log.name in reader.partitions():
                self.compare(reader.log("t", 0))

    def compare(self, log: LogReader) -> None:
        """Compare all records of a log with the records that the story appended and erased."""
        bounds = log.offsets()
        rows = {record.offset: (record.key, record.value) for record in log.records()}
        assert all(self.story.sent[offset] == row for offset, row in rows.items())
        for key, end in self.state.erased.items():
            assert not [offset for offset, row in rows.items() if row[0] == key and offset < end]
        newest = {key: offset for offset, (key, _) in enumerate(self.story.sent[: bounds.log_end])}
        newest_offsets = {key: offset for offset, (key, _) in rows.items()}
        for key, offset in newest.items():
            if offset < bounds.log_start or offset < self.state.erasing.get(key, 0):
                assert newest_offsets.get(key, offset) <= offset
            elif self.story.sent[offset][1] is None:
                assert newest_offsets.get(key, offset) == offset, "an older record came back when a tombstone went"
            else:
                assert newest_offsets.get(key) == offset, "the newest record of a key is gone"

    def check_copies(self, log: Log) -> None:
        view = log.view()
        remote = remote_of(log)
        committed = {segment.base_offset: segment for segment in remote.segments}
        for copy in view.segments[:-1]:
            if copy.end_offset <= remote.end_offset and copy.end_offset > remote.log_start:
                twin = committed.get(copy.base_offset)
                assert twin is not None, "a local copy of what the tier has no more"
                assert bytes(copy.read(0, copy.size_bytes)) == bytes(twin.read(0, twin.size_bytes))


def play(folder: Path, seeds: int) -> int:
    """Run this number of stories, and check all their states; return the number of states."""
    states = 0
    for seed in range(seeds):
        story = Story(folder / str(seed), seed)
        story.run()
        for state in story.states:
            Judge(story, state).run()
        states += len(story.states)
    return states


@pytest.mark.long
def test_nothing_is_lost_and_nothing_dangles_wherever_it_ends(tmp_path: Path) -> None:
    assert play(tmp_path, SEEDS) > 50


def keep_copies(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: local copies of replaced segments stay."""
    patch.setattr(CommittedPublisher, "_evict", lambda _: None)


def commit_without_upload(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the root refers to an object that was never stored."""

    def promised(self: TierStore, key: str, source: ByteSource) -> ObjectInfo:
        del self
        return ObjectInfo(key, source.size_bytes)

    patch.setattr(TierStore, "put", promised)


def forget_names(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: folders are not synced, and a power loss can restore files that were deleted from local disk."""
    patch.setattr(PowerLossVfs, "sync_folder", lambda *_: None)


@pytest.mark.parametrize("plant", [keep_copies, commit_without_upload, forget_names])
@pytest.mark.long
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError)):
        play(tmp_path, PLANTED_SEEDS)
