"""The sink is killed before every step of a micro-batch; the next driver repeats it, and each row is there once."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sim_objects import SimBucket, SimObjectStore, SimRequest
from stratalog import open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host
from stratalog.reading.tier_reader import BucketReader
from stratalog.testing.power_loss import PowerLossVfs
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog.writing import BulkWriter, WriteMark, WriteTarget
from stratalog.writing.merge_segments import FAN_IN
from stratalog.writing.tier_writer import TierWriter
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.write.open_writers import close_kept
from stratalog_spark.write.sink import Written, publish
from stratalog_spark.write.stage import stage

pytestmark = pytest.mark.long

PARTITIONS = 3
ROWS = 30
Open = Callable[..., BulkWriter]
Values = dict[int, list[bytes | None]]


def round_of(number: int) -> list[dict[str, Any]]:
    return [{"key": b"%d" % row, "value": b"%d of round %d" % (row, number)} for row in range(ROWS)]


def run_round(number: int, location: str) -> None:
    """Stage the rows of a round in two tasks, publish them, and merge. A restarted driver repeats the whole round."""
    options, mark, rows = (
        SinkOptions({"path": location, "topic": "orders"}),
        WriteMark("query", number),
        round_of(number),
    )
    try:
        tasks = (rows[: ROWS // 2], rows[ROWS // 2 :])
        publish(options, [Written(stage(options, [pa.RecordBatch.from_pylist(part)]), mark) for part in tasks], mark)
    finally:
        close_kept()


class Bucket:
    """A tier in memory, which every simulated process opens with a new engine.

    Attributes:
        bucket: the objects of the tier.
        copies: the objects before each request, while ``is_watched`` is True.
        is_watched: True to add copies.
    """

    def __init__(self) -> None:
        self.bucket = SimBucket(ManualClock(1_700_000_000_000))
        self.copies: list[dict[str, tuple[bytes, int]]] = []
        self.is_watched, self._seed = False, 0

    def copy(self, _: SimRequest) -> None:
        if self.is_watched:
            with self.bucket.lock:
                self.copies.append(dict(self.bucket.objects))

    def tier(self, *, read_only: bool) -> tuple[ComponentHost, Tier]:
        self._seed += 1
        env = Env(clock=self.bucket.clock, chance=random.Random(self._seed))  # noqa: S311 - the same in every run
        settings = WriteTarget("sim://bucket").settings()
        host = open_host(replace(settings, engine=replace(settings.engine, store_retries=0)), (), env)
        config = host.settings.engine
        store = TierStore(SimObjectStore(self.bucket, before=self.copy), env, config, settings.limits)
        return host, Tier.open(store, host.layouts, env=env, limits=settings.limits, config=config, read_only=read_only)

    def open(self, _: WriteTarget) -> BulkWriter:
        return TierWriter(*self.tier(read_only=False), staging=None, take_over=False)

    def values(self) -> Values:
        host, tier = self.tier(read_only=True)
        with BucketReader("sim://bucket", host, tier) as reader:
            return values_of(reader)


def values_of(reader: Any) -> Values:
    values_by_partition: Values = {}
    for name in reader.partitions():
        records = list(reader.log(*name).records())
        assert [record.offset for record in records] == list(range(len(records)))
        values_by_partition[name.partition] = [record.value for record in records]
    return values_by_partition


def whole(rounds: int) -> list[bytes]:
    return sorted(row["value"] for number in range(rounds) for row in round_of(number))


def check(values: Values, rounds: int) -> None:
    """Check that each row is there once, and that the rounds of each partition are in order."""
    assert sorted(value for log_values in values.values() for value in log_values if value is not None) == whole(rounds)
    for log_values in values.values():
        numbers = [int(value.rpartition(b" ")[2]) for value in log_values if value is not None]
        assert numbers == sorted(numbers)


def test_a_round_of_a_tier_is_killed_before_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Bucket()
    monkeypatch.setattr(WriteTarget, "open", lambda target: place.open(target))  # noqa: PLW0108 - a method is bound to its class
    with place.open(WriteTarget("sim://bucket")) as writer:
        writer.create_topic("orders", PARTITIONS)
    for number in range(FAN_IN - 1):
        run_round(number, "sim://bucket")
    place.is_watched = True
    run_round(FAN_IN - 1, "sim://bucket")  # this round merges the segments at the end of each log
    place.is_watched = False
    check(place.values(), FAN_IN)
    host, tier = place.tier(read_only=True)
    with BucketReader("sim://bucket", host, tier) as reader:
        assert max(len(reader.log("orders", partition).segments()) for partition in range(PARTITIONS)) < FAN_IN
    writes = [copy for copy, after in zip(place.copies, place.copies[1:], strict=False) if copy != after]
    assert len(writes) > 5 * PARTITIONS
    record_counts = set[int]()
    for copy in [*writes, place.copies[-1]]:
        place.bucket.objects = dict(copy)
        record_counts.add(sum(map(len, place.values().values())))
        run_round(FAN_IN - 1, "sim://bucket")
        check(place.values(), FAN_IN)
        run_round(FAN_IN, "sim://bucket")
        check(place.values(), FAN_IN + 1)
    assert len(record_counts) >= PARTITIONS  # the kills left the round in different numbers of partitions


def test_a_round_of_a_directory_is_killed_before_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    real = WriteTarget.open
    with real(WriteTarget(str(folder))) as writer:
        writer.create_topic("orders", PARTITIONS)
    for number in range(FAN_IN - 1):
        run_round(number, str(folder))
    lock, copies = threading.Lock(), list[Path]()

    def copy(change: str) -> None:
        if change.startswith("sync"):
            return  # after a kill of the process, written data is there without a sync
        with lock:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(folder, copies[-1])

    env = Env(files=PowerLossVfs(folder, copy))
    monkeypatch.setattr(WriteTarget, "open", lambda target: real(target, env=env))
    run_round(FAN_IN - 1, str(folder))
    monkeypatch.undo()
    check(read(folder), FAN_IN)
    assert len(copies) > 5 * PARTITIONS
    record_counts = set[int]()
    for killed in copies:
        record_counts.add(sum(map(len, read(killed).values())))
        run_round(FAN_IN - 1, str(killed))
        check(read(killed), FAN_IN)
        shutil.rmtree(killed)
    assert len(record_counts) >= PARTITIONS


def read(folder: Path) -> Values:
    with open_reader(folder) as reader:
        return values_of(reader)
