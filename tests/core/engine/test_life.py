"""Random operations on a log with a tier; reads always return the records of a model.

The seeds are the same in every run. ``LIFE_SEED`` and ``LIFE_STEPS`` in the environment set another seed and the number
of operations.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import PolicyViolationError, UnknownTopicError
from stratalog.log.log import Log

STEPS = int(os.environ.get("LIFE_STEPS", "60"))
SEEDS = [int(os.environ["LIFE_SEED"])] if "LIFE_SEED" in os.environ else [*range(3)]
KEYS = 9
COLLECTABLE_MS = 4_000_000  # longer than the grace time and the history of the tier

Read = tuple[int, bytes | None, bytes | None, int]


@dataclass(frozen=True, slots=True)
class Row:
    """An acknowledged record.

    ``marker`` is the offset of the marker that ended its transaction, -1 if it was in no transaction.
    """

    read: Read
    aborted: bool = False
    marker: int = -1


class Life:
    """One log, the engines that open it one after the other, and its expected records."""

    def __init__(self, folder: Path, seed: int, *, compacted: bool) -> None:
        self.chance, self.folder, self.compacted = random.Random(f"{seed} {compacted}"), folder, compacted  # noqa: S311 - the same in every run
        self.clock, self.rows, self.generation = ManualClock(), list[Row](), 0
        self.tier = f"file://{folder / 'bucket'}"
        (folder / "bucket").mkdir()
        choice = self.chance.choice
        self.config: dict[str, object] = {
            "limits.chunk.cache.bytes": choice([0, 5000, 1 << 20]),
            "limits.fetch.chunk.bytes": 4096,
            "limits.prefetch.bytes": choice([0, 20_000]),
        }
        if choice([True, False]):
            self.config["tier.cache.dir"] = str(folder / "cache")
        self.topic: dict[str, object] = {
            "segment.bytes": choice([300, 1000, 5000]),
            "index.interval.bytes": choice([1, 100, 4096]),
            "tier.layout": choice(["single", "plain", "chunked", "parquet"]),
            "compression.type": choice(["producer", "uncompressed", "lz4", "zstd", "gzip", "snappy"]),
            "file.delete.delay.ms": choice([0, 1000]),
            "retention.ms": -1,
            "remote.storage.enable": True,
        }
        if compacted:
            self.topic |= {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": choice([0, 0.3]),
                "delete.retention.ms": choice([0, 5000]),
            }
        else:
            self.topic["local.retention.bytes"] = choice([0, 500, 3000, -2])
        self.told: list[str] = []
        self.engine = self.open()
        self.engine.create_topic("t", config=self.topic)

    # --- operations --------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run this number of random operations; check the log after some of them, and at the end."""
        weighted_actions: list[tuple[Callable[[], object], int]] = [
            (self.append, 40),
            (self.transact, 8),
            (self.roll, 8),
            (self.offload, 12),
            (self.retain, 10),
            (self.compact, 8),
            (self.restart, 4),
            (self.crash, 3),
            (self.attach, 2),
            (self.delete, 2),
            (self.look_from_outside, 5),
            (self.collect, 3),
            (self.wait, 8),
        ]
        if not self.compacted:
            weighted_actions = [(action, weight) for action, weight in weighted_actions if action != self.compact]
        for _ in range(steps):
            (action,) = self.chance.choices(
                [action for action, _ in weighted_actions], [weight for _, weight in weighted_actions]
            )
            action()
            if self.chance.random() < 0.4:
                self.look()
        self.look()
        self.restart()
        self.look()

    def append(self) -> None:
        now_ms, count = self.clock.now_ms(), self.chance.randint(1, 8)
        records = [
            Record(key=self.key(), value=self.value(), timestamp_ms=now_ms + self.chance.randint(-3, 3))
            for _ in range(count)
        ]
        if sum(60 + len(record.value or b"") for record in records) > int(str(self.topic["segment.bytes"])):
            records = records[:1]
        base = self.log.append(records).base_offset
        self.rows += [
            Row((base + place, record.key, record.value, record.timestamp_ms)) for place, record in enumerate(records)
        ]

    def transact(self) -> None:
        now_ms, commits = self.clock.now_ms(), self.chance.random() < 0.6
        with self.engine.producer(transactional_id=f"p{self.chance.randint(0, 1)}") as producer:
            producer.begin_transaction()
            sent = []
            for _ in range(self.chance.randint(1, 4)):
                key, value = b"k%d" % self.chance.randrange(KEYS), self.chance.randbytes(5)
                sent.append((key, value, producer.send("t", key=key, value=value, timestamp_ms=now_ms, partition=0)))
            if commits:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
        offsets = [future.result().offset for _, _, future in sent]
        self.rows += [
            Row((offset, key, value, now_ms), not commits, max(offsets) + 1)
            for offset, (key, value, _) in zip(offsets, sent, strict=True)
        ]

    def roll(self) -> None:
        self.log.roll()

    def offload(self) -> None:
        self.engine.offload()

    def retain(self) -> None:
        self.engine.apply_retention()

    def compact(self) -> None:
        assert [result.error for result in self.engine.run_cleaner() if result.error is not None] == []

    def restart(self) -> None:
        self.engine.close()
        self.engine = self.open()

    def crash(self) -> None:
        """Continue with a copy of the directory, as after a killed process.

        The earlier engine must not write to the tier.
        """
        self.engine.flush()
        before = self.engine
        copied = shutil.copytree(self.disk, self.next_disk(), ignore=shutil.ignore_patterns(".lock"))
        assert copied == self.disk
        before.close()
        self.engine = self.open()

    def attach(self) -> None:
        """Attach the tier with an empty disk.

        Records that are not in the tier are lost, and transactions whose marker is not in the tier are aborted.
        """
        self.engine.offload()
        self.engine.close()
        self.next_disk()
        self.engine = self.open(attach=True)
        if ("t", 0) not in self.engine.partitions():
            self.engine.create_topic("t", config=self.topic)
        end = self.log.offsets().log_end
        self.rows = [replace(row, aborted=row.aborted or row.marker >= end) for row in self.rows if row.read[0] < end]

    def delete(self) -> None:
        bounds = self.log.offsets()
        before = self.chance.randint(bounds.log_start, bounds.high_watermark)
        if self.compacted:
            with pytest.raises(PolicyViolationError):
                self.log.delete_records(before)
        else:
            self.log.delete_records(before)

    def collect(self) -> None:
        self.clock.advance_ms(COLLECTABLE_MS)
        self.engine.collect()

    def wait(self) -> None:
        self.clock.advance_ms(self.chance.choice([10, 2000, 400_000]))
        self.engine.run_duties()

    # --- checks ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare reads through the engine with the expected records: each isolation level, by time, raw batches."""
        bounds, log = self.log.offsets(), self.log
        for isolation in ("log_end", "read_committed"):
            actual = [read(record) for record in log.records(isolation=isolation)]
            expected = [row.read for row in self.rows if row.read[0] >= bounds.log_start]
            if isolation == "read_committed":
                aborted_offsets = {row.read[0] for row in self.rows if row.aborted}
                expected = [row for row in expected if row[0] not in aborted_offsets and row[0] < bounds.last_stable]
            if self.compacted:
                self.compare_newest(actual, expected, committed=isolation == "read_committed")
            else:
                assert actual == expected, isolation
        if self.rows and not self.compacted:
            self.look_for_time(self.chance.choice(self.rows).read[3] + self.chance.randint(-2, 2))
        offset = self.chance.randint(bounds.log_start, bounds.log_end)
        with log.fetch(offset, self.chance.choice([1, 500, 100_000])) as fetched:
            assert (fetched.next_offset > offset) == (offset < bounds.high_watermark) == bool(fetched.size_bytes)

    def compare_newest(self, actual: list[Read], expected: list[Read], *, committed: bool) -> None:
        """Check reads of a compacted log.

        No record is invented, and the newest record of each key is there unless it is a tombstone.
        """
        assert set(actual) <= set(expected)
        assert [row[0] for row in actual] == sorted({row[0] for row in actual})
        if committed:
            newest_actual = {row[1]: row for row in actual}
            for key, newest in {row[1]: row for row in expected}.items():
                assert newest_actual.get(key, newest if newest[2] is None else None) == newest

    def look_for_time(self, timestamp_ms: int) -> None:
        bounds = self.log.offsets()
        visible = (row.read for row in self.rows if bounds.log_start <= row.read[0] < bounds.high_watermark)
        expected = next((row[0] for row in visible if row[3] >= timestamp_ms), None)
        actual = self.log.offset_for_timestamp(timestamp_ms)
        if actual != expected:  # the search may also find the end marker of a transaction
            assert actual is not None
            assert expected is None or actual < expected
            assert actual in {row.marker for row in self.rows}

    def look_from_outside(self) -> None:
        """Check readers without an engine: of the directory with its tier, and of the tier alone."""
        bounds, env = self.log.offsets(), Env(clock=self.clock)
        engine_offsets = [record.offset for record in self.log.records(isolation="log_end")]
        with open_reader(self.disk, tier=self.tier, env=env, config=self.config) as reader:
            reader_offsets = [record.offset for record in reader.log("t", 0).records(isolation="log_end")]
            assert [offset for offset in reader_offsets if offset >= bounds.log_start] == engine_offsets
        with open_reader(self.tier, env=env, config=self.config) as reader:
            try:
                log = reader.log("t", 0)
            except UnknownTopicError:  # nothing was offloaded yet
                return
            end = log.offsets().log_end
            reader_offsets = [record.offset for record in log.records(isolation="log_end")]
            if not self.compacted:  # otherwise the two tiers are compacted at different times
                assert [offset for offset in reader_offsets if offset >= bounds.log_start] == [
                    n for n in engine_offsets if n < end
                ]

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def disk(self) -> Path:
        return self.folder / f"disk-{self.generation}"

    @property
    def log(self) -> Log:
        return self.engine.log("t", 0)

    def next_disk(self) -> Path:
        self.generation += 1
        return self.disk

    def open(self, *, attach: bool = False) -> Engine:
        env = Env(clock=self.clock, chance=random.Random(self.chance.random()))  # noqa: S311 - the same in every run
        return open_engine(self.disk, tier=self.tier, env=env, config=self.config, attach=attach)

    def key(self) -> bytes | None:
        key = b"k%d" % self.chance.randrange(KEYS)
        return key if self.compacted else self.chance.choice([None, b"", key])

    def value(self) -> bytes | None:
        return self.chance.choice([None, b"", self.chance.randbytes(self.chance.randint(1, 40))])


def read(record: Record) -> Read:
    return record.offset, record.key, record.value, record.timestamp_ms


@pytest.mark.parametrize("compacted", [False, True], ids=["all", "compacted"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_the_log_holds_the_expected_records_after_any_operations(tmp_path: Path, seed: int, *, compacted: bool) -> None:
    life = Life(tmp_path, seed, compacted=compacted)
    try:
        life.run(STEPS)
    finally:
        life.engine.close()
