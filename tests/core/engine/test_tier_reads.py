"""Reads across local disk, tier and leader epochs, compared with an equal log without a tier."""

from __future__ import annotations

import os
import random
import re
import threading
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.engine.engine import Engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import CorruptBatchError, CorruptObjectError, ObjectNotFoundError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.batches import Buffer
from stratalog.spi.formats import BatchHeader
from stratalog.spi.indexes import IndexRole
from stratalog.tier.read.remote_segment import RemoteSegment

START_MS = 1_700_000_000_000
ISOLATIONS = ("read_uncommitted", "read_committed")


def opened(tmp_path: Path, **settings: object) -> Engine:
    (tmp_path / "bucket").mkdir(exist_ok=True)
    config = {
        "log.dirs": [str(tmp_path / "data")],
        "limits.fetch.chunk.bytes": 4096,
        "limits.read.bytes": 2000,
        "remote.log.reader.threads": 3,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    clock = ManualClock(START_MS)  # the clock does not move: markers get the same time in both logs
    return open_engine(config=config, tier=f"file://{tmp_path}/bucket", env=Env(clock=clock))


class Twins:
    """Two logs with the same records. One of them has only its active segment on local disk."""

    def __init__(self, engine: Engine, layout: str = "single") -> None:
        engine.create_topic("plain", config={"retention.ms": -1, "remote.storage.enable": False})
        engine.create_topic(
            "tiered",
            config={
                "remote.storage.enable": True,
                "retention.ms": -1,
                "local.retention.bytes": 1,
                "tier.layout": layout,
            },
        )
        self.chance = random.Random(3)  # noqa: S311 - a seed repeats it
        self.logs: tuple[Log, ...] = (engine.log("plain", 0), engine.log("tiered", 0))
        self.sequences = dict.fromkeys((7, 8, 9), 0)
        self.open: set[int] = set()
        self.epoch = max(log.leader_epoch for log in self.logs)

    def fill(self, engine: Engine, steps: int) -> None:
        """Append batches to both logs, then offload and evict all closed segments.

        Some batches are transactional, and the log rolls and changes its leader epoch at random.
        """
        for _ in range(steps):
            self.step(self.chance.random())
        for producer in sorted(self.open):
            self.end(producer, commit=False)
        for log in self.logs:
            log.roll()
        engine.offload()
        engine.apply_retention()

    def step(self, draw: float) -> None:
        if draw < 0.35:
            records = self.records()
            for log in self.logs:
                log.append(records)
        elif draw < 0.7:
            self.transactional()
        elif draw < 0.94:
            for log in self.logs:
                log.roll()
        elif draw < 0.98:
            self.epoch += 1
            for log in self.logs:
                log.lead(self.epoch)

    def records(self) -> list[Record]:
        sizes = [self.chance.choice((0, 20, 300, 6_000)) for _ in range(self.chance.randrange(1, 4))]
        return [
            Record(timestamp_ms=START_MS + self.chance.randrange(10_000), key=b"k", value=self.chance.randbytes(size))
            for size in sizes
        ]

    def transactional(self) -> None:
        producer = self.chance.choice(sorted(self.sequences))
        if producer in self.open and self.chance.random() < 0.4:
            self.end(producer, commit=self.chance.random() < 0.5)
            return
        records = self.records()
        header = BatchHeader(
            base_offset=0,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=self.sequences[producer],
            transactional=True,
        )
        for log in self.logs:
            log.append_as_leader(bytes(log.components.formats.of(2, "", 0).encode(records, header, None, None)))
        self.sequences[producer] += len(records)
        self.open.add(producer)

    def end(self, producer: int, *, commit: bool) -> None:
        for log in self.logs:
            log.end_transaction(producer, 0, commit=commit, coordinator_epoch=0)
        self.open.discard(producer)


def assert_same(local_log: LogReader, tiered: LogReader, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed repeats it
    end = local_log.offsets().log_end
    assert tiered.offsets().log_end == end
    for isolation in ISOLATIONS:
        assert list(tiered.records(isolation=isolation)) == list(local_log.records(isolation=isolation))
        for _ in range(15):
            first = chance.randrange(1, end)
            bounds = (first, chance.choice((None, chance.randrange(first, end + 1))))
            assert list(tiered.records(*bounds, isolation)) == list(local_log.records(*bounds, isolation)), bounds
            request = (chance.randrange(end), chance.choice((1, 500, 5_000, 1 << 20)), isolation)
            with local_log.fetch(*request) as expected, tiered.fetch(*request) as fetched:
                assert fetched.read() == expected.read(), request
                assert fetched.next_offset == expected.next_offset
                assert fetched.aborted_transactions == expected.aborted_transactions
            moment = START_MS + chance.randrange(-10, 10_010)
            assert tiered.offset_for_timestamp(moment, isolation) == local_log.offset_for_timestamp(moment, isolation)
    for epoch in range(100):
        assert tiered.end_offset_for_epoch(epoch) == local_log.end_offset_for_epoch(epoch)


@pytest.mark.parametrize(
    "settings",
    [
        {"limits_chunk_cache_bytes": 0, "limits_index_cache_bytes": 0, "limits_prefetch_bytes": 0},
        {"limits_chunk_cache_bytes": 16 << 10, "limits_prefetch_bytes": 12 << 10},
        {},
    ],
    ids=["no caches", "small caches", "usual"],
)
@pytest.mark.parametrize("layout", ["single", "chunked"])
@pytest.mark.long
def test_a_log_over_both_tiers_reads_as_one_without(tmp_path: Path, settings: dict[str, object], layout: str) -> None:
    with opened(tmp_path, **settings) as engine:
        twins = Twins(engine, layout)
        twins.fill(engine, 80)
        local_log, tiered = twins.logs
        local_start = tiered.offsets().local_log_start
        assert 0 < local_start <= tiered.offsets().log_end
        assert len(list(tiered.records(isolation="read_committed"))) < len(list(tiered.records()))
        assert_same(local_log, tiered, 1)
        twins.fill(engine, 30)
        for log in twins.logs:
            log.append([Record(timestamp_ms=START_MS + 20_000, value=b"local")])
        assert tiered.offsets().local_log_start > local_start
        assert_same(local_log, tiered, 2)


@pytest.mark.long
def test_a_cached_chunk_may_be_larger_than_its_contents(tmp_path: Path) -> None:
    """A stored chunk of a compressed segment can be larger than the bytes that a reader requests."""
    with opened(tmp_path, tier_cache_dir=str(tmp_path / "cache"), limits_chunk_cache_bytes=0) as engine:
        twins = Twins(engine, "chunked")
        twins.fill(engine, 80)
        for seed in range(3):  # first from the store, then from whole cache files, then from parts of these files
            assert_same(twins.logs[0], twins.logs[1], seed)


def test_sequential_fetches_in_the_tier_need_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of the index would be one more request for each segment, after all prefetched requests."""
    roles = list[IndexRole]()
    with opened(tmp_path) as engine:
        engine.create_topic("tiered", config={"remote.storage.enable": True, "local.retention.bytes": 1})
        log = engine.log("tiered", 0)
        for part in range(2):
            for number in range(100):
                log.append([Record(timestamp_ms=START_MS, value=b"%d" % part * 600 + b"%d" % number)])
            log.roll()
        log.append([Record(timestamp_ms=START_MS, value=b"local")])
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start == 200
        entries_of = RemoteSegment.index_entries

        def index_entries(segment: RemoteSegment, role: IndexRole) -> Buffer:
            roles.append(role)
            return entries_of(segment, role)

        monkeypatch.setattr(RemoteSegment, "index_entries", index_entries)
        offset, fetches, data = 0, 0, b""
        while offset < 200:
            with log.fetch(offset, max_bytes=40_000) as fetched:
                assert fetched.next_offset > offset
                offset, fetches, data = fetched.next_offset, fetches + 1, data + fetched.read()
        assert fetches >= 4
        assert not roles
        with log.fetch(150, max_bytes=40_000) as fetched:
            assert data.endswith(fetched.read())
        assert roles == [IndexRole.OFFSET], "who goes elsewhere does"


@pytest.mark.long
def test_a_damaged_cache_on_disk_changes_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    chance = random.Random(5)  # noqa: S311 - a seed repeats it
    with opened(tmp_path, tier_cache_dir=str(folder)) as engine:
        twins = Twins(engine)
        twins.fill(engine, 80)
        assert_same(twins.logs[0], twins.logs[1], 1)
    for round_number in range(3):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        assert len(files) > 10
        for path in files[:-1]:
            damage = chance.choice(("none", "flip", "cut", "delete", "other"))
            data = bytearray(path.read_bytes())
            if damage == "flip":
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            elif damage == "cut":
                path.write_bytes(data[: chance.randrange(len(data))])
            elif damage == "delete":
                path.unlink()
            elif damage == "other":
                path.write_bytes(files[-1].read_bytes())
        with opened(tmp_path, tier_cache_dir=str(folder)) as engine:
            assert_same(engine.log("plain", 0), engine.log("tiered", 0), round_number)


@pytest.mark.long
def test_a_cache_that_is_damaged_under_a_running_engine_changes_no_answer(tmp_path: Path) -> None:
    """A file of the cache that was checked as a whole is read in parts later. Damage must still be detected."""
    folder = tmp_path / "cache"
    chance = random.Random(6)  # noqa: S311 - a seed repeats it
    with opened(tmp_path, tier_cache_dir=str(folder), limits_chunk_cache_bytes=0) as engine:
        twins = Twins(engine)
        twins.fill(engine, 80)
        for round_number in range(3):
            assert_same(twins.logs[0], twins.logs[1], round_number)
            for path in sorted((folder / "chunks").iterdir()):
                data = bytearray(path.read_bytes())
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data[: chance.choice((len(data), len(data), chance.randrange(len(data))))])


def test_bits_that_flip_in_records_on_a_cache_disk_are_found_by_the_batch(tmp_path: Path) -> None:
    """Only the batch CRC can detect the damage: size and time of the file are unchanged."""
    folder = tmp_path / "cache"
    with opened(tmp_path, tier_cache_dir=str(folder), limits_chunk_cache_bytes=0) as engine:
        engine.create_topic("tiered", config={"remote.storage.enable": True, "local.retention.bytes": 1})
        log = engine.log("tiered", 0)
        value = b"value" * 100
        for number in range(200):
            log.append([Record(timestamp_ms=START_MS, value=value + b"%d" % number)])
        log.roll()
        log.append([Record(timestamp_ms=START_MS, value=b"local")])
        engine.offload()
        engine.apply_retention()
        expected = [record.value for record in log.records()]
        for _ in range(2):  # the second read is from the cache files, which are then marked as checked
            assert [record.value for record in log.records()] == expected
        damaged = 0
        for path in (folder / "chunks").iterdir():
            data, status = bytearray(path.read_bytes()), path.stat()
            position = data.find(value)
            if position >= 0:
                data[position + 7] ^= 1
                path.write_bytes(data)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                damaged += 1
        assert damaged > 10
        assert [record.value for record in log.records()] == expected
        with log.fetch(0, max_bytes=1 << 20) as fetched:
            assert value + b"0" in fetched.read()


def test_a_warm_cache_on_disk_requests_no_segment_from_the_store(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with opened(tmp_path, tier_cache_dir=folder) as engine:
        twins = Twins(engine)
        twins.fill(engine, 60)
        assert_same(twins.logs[0], twins.logs[1], 1)
    with opened(tmp_path, tier_cache_dir=folder) as engine:
        local_log, tiered = engine.log("plain", 0), engine.log("tiered", 0)
        assert engine.tier is not None
        before = engine.tier.metrics().store
        assert_same(local_log, tiered, 1)
        assert (engine.tier.metrics().store - before).requests == 0


def test_readers_in_threads_see_the_same_and_leave_no_thread(tmp_path: Path) -> None:
    failures: list[object] = []
    with opened(tmp_path, limits_chunk_cache_bytes=16 << 10, limits_prefetch_bytes=16 << 10) as engine:
        twins = Twins(engine)
        twins.fill(engine, 80)
        local_log, tiered = twins.logs
        expected = [(record.offset, record.value) for record in local_log.records()]

        def work(start: int) -> None:
            try:
                for first in (start, 0, len(expected) // 2):
                    rows = [(record.offset, record.value) for record in tiered.records(expected[first][0])]
                    if rows != expected[first:]:
                        failures.append(first)
                for record in tiered.records():  # abandon a read in the middle
                    if record.offset > expected[len(expected) // 3][0]:
                        break
            except Exception as error:  # noqa: BLE001 - the test's own thread tells it
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1, 5, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.tier is not None
        assert engine.tier.metrics().chunks.size_bytes <= 16 << 10
    assert failures == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stratalog-tier-read")]


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
@pytest.mark.long
def test_damaged_objects_are_named_and_never_read_wrong(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as engine:
        twins = Twins(engine)
        twins.fill(engine, 60)
        expected = list(twins.logs[0].records())
    objects = sorted((tmp_path / "bucket").glob("tiered-*/0/segments/*.seg"))
    hit = objects[len(objects) // 2]
    data = bytearray(hit.read_bytes())
    if damage == "delete":
        hit.unlink()
    else:
        data[200] ^= 4
        hit.write_bytes(data if damage == "flip" else data[:100])
    first, next_base = (int(path.name.partition("-")[0]) for path in objects[len(objects) // 2 :][:2])
    with open_reader(f"file://{tmp_path}/bucket") as reader:
        log, records = reader.log("tiered", 0), list[Record]()
        with pytest.raises((CorruptBatchError, CorruptObjectError, ObjectNotFoundError), match=re.escape(hit.name)):
            records += log.records()
        assert records == expected[: len(records)]
        assert first - 5 <= records[-1].offset < next_base
        expected_rest = [record for record in expected if next_base <= record.offset < log.offsets().log_end]
        assert list(log.records(next_base)) == expected_rest != []
