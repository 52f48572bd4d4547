"""Restart on a full disk: the records can be read, offloaded and deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from small_disk import SmallDisk
from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.errors import DiskFullError

SETTINGS = {"segment.bytes": 2000, "index.interval.bytes": 100, "retention.ms": -1, "file.delete.delay.ms": 60_000}
COUNT = 100


def record(number: int) -> Record:
    return Record(key=b"k%d" % number, value=bytes(100))


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def killed(tmp_path: Path, bucket: str) -> Path:
    """Return the directory of an engine that was killed; its last checkpoint is from its opening."""
    folder = tmp_path / "killed"
    with open_engine(tmp_path / "data", tier=bucket) as engine:
        engine.create_topic("orders", config={**SETTINGS, "local.retention.bytes": 0})
        engine.create_topic("plain", config={**SETTINGS, "remote.storage.enable": False})
        for number in range(COUNT):
            for topic in ("orders", "plain"):
                engine.log(topic, 0).append([record(number)])
        shutil.copytree(tmp_path / "data", folder)
    return folder


@pytest.fixture
def disk(killed: Path) -> SmallDisk:
    disk = SmallDisk(killed)
    disk.room_bytes = disk.used_bytes()
    return disk


def reopened(killed: Path, disk: SmallDisk, bucket: str) -> Engine:
    return open_engine(killed, tier=bucket, env=Env(files=disk))


def offsets(engine: Engine, topic: str) -> list[int]:
    return [row.offset for row in engine.log(topic, 0).records()]


def test_existing_records_are_read_from_a_full_disk(killed: Path, disk: SmallDisk, bucket: str) -> None:
    disk.room_bytes = 0
    engine = reopened(killed, disk, bucket)
    for topic in ("orders", "plain"):
        assert offsets(engine, topic) == list(range(COUNT))
        with pytest.raises(DiskFullError):
            engine.log(topic, 0).append([record(COUNT)])
    with pytest.raises(DiskFullError):
        engine.close()


@pytest.mark.long
def test_offloading_and_evicting_make_room(killed: Path, disk: SmallDisk, bucket: str) -> None:
    engine = reopened(killed, disk, bucket)
    engine.offload()
    assert sum(result.evicted_segments for result in engine.apply_retention()) > 1
    engine.close()  # closing deletes the files immediately, not after a minute
    assert (killed / ".kafka_cleanshutdown").exists()
    with reopened(killed, disk, bucket) as engine:
        engine.log("orders", 0).append([record(COUNT)])
        assert offsets(engine, "orders") == list(range(COUNT + 1))


def test_deleting_makes_room(killed: Path, disk: SmallDisk, bucket: str) -> None:
    with reopened(killed, disk, bucket) as engine:
        engine.log("plain", 0).delete_records(COUNT // 2)
        assert sum(result.deleted_segments for result in engine.apply_retention()) > 1
    with reopened(killed, disk, bucket) as engine:
        engine.log("plain", 0).append([record(COUNT)])
        assert offsets(engine, "plain") == list(range(COUNT // 2, COUNT + 1))


def test_files_that_a_full_disk_refused_are_written_later(killed: Path, disk: SmallDisk, bucket: str) -> None:
    """Indexes and producer snapshots are written later. A retry of an idempotent producer appends nothing twice."""
    disk.room_bytes *= 2
    with reopened(killed, disk, bucket) as engine, engine.producer() as producer:
        end = producer.send("plain", value=b"once").result().offset + 1
        producers = engine.log("plain", 0).producers()
    for lost in [".kafka_cleanshutdown", "recovery-point-offset-checkpoint"]:
        (killed / lost).unlink()
    for pattern in ("snapshot", "index", "timeindex"):
        for path in killed.glob(f"plain-0/*.{pattern}"):
            path.unlink()
    room, disk.room_bytes = disk.room_bytes, 0
    engine = reopened(killed, disk, bucket)
    assert offsets(engine, "plain") == list(range(end))
    assert list(engine.log("plain", 0).producers()) == list(producers)
    assert list(killed.glob("plain-0/*index")) == list(killed.glob("plain-0/*.snapshot")) == []
    disk.room_bytes = room
    engine.close()
    with reopened(killed, disk, bucket) as engine:
        assert len(list(killed.glob("plain-0/*.index"))) == len(engine.log("plain", 0).segments())
        assert offsets(engine, "plain") == list(range(end))
