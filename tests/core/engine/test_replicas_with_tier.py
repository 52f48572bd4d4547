"""Random operations on two replicas that share one tier: committed records stay, and both logs become equal.

Leaders change, engines crash, and the leader offloads, compacts, evicts and deletes. The replicas have other segment
bounds than the tier. The seeds are the same in every run.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from replication import replicate
from sim_objects import SimBucket
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.log.log import Log
from stratalog.model.batches import TimestampType
from stratalog.model.names import LOCK_FILE
from stratalog.spi.formats import BatchHeader
from stratalog.tier.manifest import entry_tree

SEEDS, STEPS, KEYS = 12, 90, 6
COLLECTABLE_MS = 4_000_000  # longer than the grace time
Row = tuple[int, bytes | None, bytes | None]


class Replicas:
    """Two engines over one bucket. ``committed`` has the records below the highest high watermark, by offset."""

    def __init__(self, folder: Path, seed: int, *, compacted: bool) -> None:
        self.chance, self.folder, self.compacted = random.Random(f"{seed} {compacted}"), folder, compacted  # noqa: S311 - the same in every run
        self.clock, self.copies, self.values = ManualClock(), 0, 0
        self.bucket = SimBucket(self.clock)
        config = {
            "segment.bytes": self.chance.choice([300, 600]),
            "local.retention.bytes": self.chance.choice([0, 500]),
            "cleanup.policy": "compact" if compacted else "delete",
            "min.cleanable.dirty.ratio": 0,
            "delete.retention.ms": self.chance.choice([0, 100_000]),
            "file.delete.delay.ms": 0,
            "retention.ms": -1,
        }
        with self.open("a") as engine:
            engine.create_topic("t", config=config)
        shutil.copytree(folder / "a", folder / "b", ignore=shutil.ignore_patterns(LOCK_FILE))
        self.names = ["a", "b"]
        self.engines = [self.open(name) for name in self.names]
        self.leading, self.epoch = 0, 0
        self.committed: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.high_watermark = 0
        self.elect()

    def open(self, name: str) -> Engine:
        settings = {"log.dirs": [str(self.folder / name)], "watermark": "external"}
        env = Env(clock=self.clock, chance=random.Random(self.chance.random()))  # noqa: S311 - the same in every run
        return open_engine(config=settings, tier=URI, plugins=[SimTier(self.bucket)], env=env)

    @property
    def leader(self) -> Log:
        return self.engines[self.leading].log("t", 0)

    @property
    def follower(self) -> Log:
        return self.engines[1 - self.leading].log("t", 0)

    # --- operations --------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        weights = {
            self.append: 20,
            self.append_of_producer: 20,
            self.end_transaction: 8,
            self.fetch: 30,
            self.elect: 5,
            self.offload: 12,
            self.evict: 8,
            self.compact: 6,
            self.collect: 3,
            self.roll: 8,
            self.restart: 5,
            self.delete: 2,
            self.compare: 4,
        }
        for action in self.chance.choices([*weights], [*weights.values()], k=steps):
            action()
            self.look()
        self.compare()

    def records(self) -> list[Record]:
        count = self.chance.randint(1, 3)
        self.values += count
        return [
            Record(
                key=b"k%d" % self.chance.randrange(KEYS),
                value=self.chance.choice([None, b"%d" % number, b"%d" % number + b"." * 30]),
                timestamp_ms=self.clock.now_ms(),
            )
            for number in range(self.values - count, self.values)
        ]

    def append(self) -> None:
        self.leader.append(self.records())

    def append_of_producer(self) -> None:
        producer_id, records = self.chance.randint(1, 3), self.records()
        entry = next((entry for entry in self.leader.producers() if entry.producer_id == producer_id), None)
        header = BatchHeader(
            base_offset=0,
            leader_epoch=0,
            timestamp_type=TimestampType.CREATE_TIME,
            append_time_ms=self.clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0 if entry is None else entry.last_sequence + 1,
            transactional=(entry is not None and entry.transaction_first_offset >= 0) or self.chance.random() < 0.5,
            control=False,
        )
        batch = self.leader.components.formats.of(2, "", 0).encode(records, header, None, None)
        assert not self.leader.append_as_leader(bytes(batch)).duplicate

    def end_transaction(self) -> None:
        for entry in self.leader.open_transactions()[:1]:
            commit = self.chance.random() < 0.6
            self.leader.end_transaction(entry.producer_id, 0, commit=commit, coordinator_epoch=0)

    def fetch(self) -> None:
        replicate(self.leader, self.follower, self.chance.choice([1, 300, 1 << 20]))

    def elect(self) -> None:
        """Elect one of the replicas, which has all committed records."""
        self.leading, self.epoch = self.chance.randrange(2), self.epoch + 1
        self.leader.lead(self.epoch)
        self.follower.follow(self.epoch)

    def offload(self) -> None:
        for engine in self.engines:
            engine.offload()

    def evict(self) -> None:
        for engine in self.engines:
            engine.apply_retention()

    def compact(self) -> None:
        assert [result.error for result in self.engines[self.leading].run_cleaner() if result.error] == []

    def collect(self) -> None:
        self.clock.advance_ms(COLLECTABLE_MS)
        self.offload()  # a follower reads the newest root
        self.engines[self.leading].collect()

    def roll(self) -> None:
        self.chance.choice([self.leader, self.follower]).roll()

    def restart(self) -> None:
        """Continue one engine with a copy of its directory, as after a killed process."""
        index = self.chance.randrange(2)
        self.copies += 1
        name = f"copy-{self.copies}"
        shutil.copytree(self.folder / self.names[index], self.folder / name, ignore=shutil.ignore_patterns(LOCK_FILE))
        self.engines[index].close()
        self.names[index], self.engines[index] = name, self.open(name)
        self.elect()

    def delete(self) -> None:
        bounds = self.leader.offsets()
        if not self.compacted:
            self.leader.delete_records(self.chance.randint(bounds.log_start, bounds.high_watermark))

    # --- checks ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare both logs with the committed records."""
        bounds = self.leader.offsets()
        if bounds.high_watermark > self.high_watermark:
            for offset, key, value in rows(self.leader, max(self.high_watermark, bounds.log_start)):
                if offset < bounds.high_watermark:
                    self.committed[offset] = key, value
            self.high_watermark = bounds.high_watermark
        assert bounds.log_end >= self.high_watermark
        for log in (self.leader, self.follower):
            bounds = log.offsets()
            end = min(bounds.log_end, self.high_watermark)
            actual = [row for row in rows(log, bounds.log_start) if row[0] < end]
            expected = [(offset, *self.committed[offset]) for offset in sorted(self.committed)]
            expected = [row for row in expected if bounds.log_start <= row[0] < end]
            assert set(actual) <= set(expected)
            assert self.compacted or actual == expected

    def compare(self) -> None:
        """Replicate everything, and compare the logs with each other."""
        for _ in range(500):
            if not replicate(self.leader, self.follower) and (
                self.leader.offsets().log_end == self.follower.offsets().log_end
            ):
                break
        replicate(self.leader, self.follower)
        self.look()
        assert self.leader.offsets().log_end == self.follower.offsets().log_end
        start = max(self.leader.offsets().log_start, self.follower.offsets().log_start)
        latest = [
            {key: (offset, value) for offset, key, value in rows(log, start, "read_committed") if value is not None}
            for log in (self.leader, self.follower)
        ]
        assert self.compacted or latest[0] == latest[1]


def rows(log: Log, start: int, isolation: str = "log_end") -> list[Row]:
    return [(record.offset, record.key, record.value) for record in log.records(start, isolation=isolation)]


@pytest.mark.parametrize("compacted", [False, True], ids=["all", "compacted"])
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.long
def test_replicas_with_one_tier_lose_no_committed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, compacted: bool
) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)
    replicas = Replicas(tmp_path, seed, compacted=compacted)
    try:
        replicas.run(STEPS)
    finally:
        for engine in replicas.engines:
            engine.close()
