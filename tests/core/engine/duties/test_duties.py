"""Background duties of an engine with a manual clock, and log directories that fail."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.epochs.checkpoint import parse_offsets
from stratalog.errors import ClosedError, DiskFullError, LogDirOfflineError
from stratalog.model.events import LogDirOffline
from stratalog.model.names import TopicPartition
from stratalog.spi import hookimpl
from stratalog.testing.faults import FaultyVfs, failing

NAME = TopicPartition("orders", 0)
WATERMARKS, POINTS = "replication-offset-checkpoint", "recovery-point-offset-checkpoint"


class Listener:
    def __init__(self) -> None:
        self.events: list[LogDirOffline] = []

    @hookimpl
    def stratalog_on_log_dir_offline(self, event: LogDirOffline) -> None:
        self.events.append(event)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock, files: FaultyVfs, listener: Listener) -> Iterator[Engine]:
    """Yield an engine with two directories and a topic with a log in each."""
    env = Env(clock=clock, files=files)
    with open_engine([tmp_path / "a", tmp_path / "b"], env=env, plugins=[listener]) as new_engine:
        new_engine.create_topic("orders", partitions=2, config={"segment.ms": 600_000, "retention.ms": 60_000})
        yield new_engine


def pass_ms(engine: Engine, clock: ManualClock, duration_ms: int) -> None:
    """Advance the clock in steps of one second, and run the due duties after each step."""
    for _ in range(0, duration_ms, 1000):
        clock.advance_ms(1000)
        engine.run_duties()


def append(engine: Engine, clock: ManualClock, partition: int = 0) -> None:
    engine.log("orders", partition).append([Record(timestamp_ms=clock.now_ms(), value=b"v")])


def stored(folder: Path, file: str) -> dict[TopicPartition, int]:
    return parse_offsets((folder / file).read_bytes(), file)


def test_written_records_are_synced_within_two_seconds(engine: Engine, clock: ManualClock) -> None:
    append(engine, clock)
    assert engine.log("orders", 0).offsets().recovery_point == 0
    pass_ms(engine, clock, 2000)
    assert engine.log("orders", 0).offsets().recovery_point == 1


def test_checkpoints_are_stored_in_time_and_only_when_they_change(
    engine: Engine, clock: ManualClock, files: FaultyVfs, tmp_path: Path
) -> None:
    append(engine, clock)
    pass_ms(engine, clock, 5000)
    assert stored(tmp_path / "a", WATERMARKS)[NAME] == 1
    assert not (tmp_path / "a" / POINTS).exists()
    pass_ms(engine, clock, 55_000)
    assert stored(tmp_path / "a", POINTS)[NAME] == 1
    files.done.clear()
    pass_ms(engine, clock, 120_000)
    assert files.names("rename") == []


def test_segments_are_rolled_expired_and_deleted_after_their_delay(
    engine: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    append(engine, clock)
    pass_ms(engine, clock, 300_000)
    log = engine.log("orders", 0)
    assert log.offsets().log_start == 1
    folder = tmp_path / "a" / "orders-0"
    assert [path.name for path in folder.glob("*.log.deleted")] == [f"{0:020}.log.deleted"]
    pass_ms(engine, clock, 61_000)
    assert list(folder.glob("*.deleted")) == []
    append(engine, clock)
    assert [record.offset for record in log.records()] == [1]


def test_a_segment_rolls_when_its_time_is_over(tmp_path: Path, clock: ManualClock) -> None:
    with open_engine(tmp_path / "c", env=Env(clock=clock)) as engine:
        engine.create_topic("orders", config={"segment.ms": 1000, "retention.ms": -1})
        append(engine, clock)
        pass_ms(engine, clock, 300_000)
        assert [segment.base_offset for segment in engine.log("orders", 0).segments()] == [0, 1]


def test_closed_segments_are_offloaded(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "c", env=Env(clock=clock), tier=f"file://{tmp_path / 'bucket'}") as engine:
        engine.create_topic("orders")
        append(engine, clock)
        engine.log("orders", 0).roll()
        pass_ms(engine, clock, 30_000)
        assert next((part.is_local, part.is_remote) for part in engine.log("orders", 0).segments()) == (True, True)


def test_duties_run_on_a_thread_until_the_engine_is_closed(tmp_path: Path) -> None:
    config = {"sync.interval.ms": 1}
    with open_engine(tmp_path / "c", config=config) as engine:
        assert engine.start() is engine
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"v")])
        # wait for the background sync; if it never comes, the timeout of the run ends this test
        while log.offsets().recovery_point < 1:
            pass
    assert (tmp_path / "c" / ".kafka_cleanshutdown").exists()
    with pytest.raises(ClosedError):
        engine.start()


# --- directories that fail ---------------------------------------------------------------------------------------


def test_a_sync_that_fails_takes_its_directory_out_of_service_and_no_other(
    engine: Engine, clock: ManualClock, files: FaultyVfs, listener: Listener, tmp_path: Path
) -> None:
    append(engine, clock, 0)
    append(engine, clock, 1)
    engine.create_topic("more", partitions=2)  # a log in each directory too
    files.rule = failing("sync", errno.EIO, path="a/orders-0/" + f"{0:020}.log")
    with pytest.raises(LogDirOfflineError):
        engine.log("orders", 0).append([Record(value=b"w")], "durable")
    with pytest.raises(LogDirOfflineError):
        engine.log("more", 0).append([Record(value=b"w")])
    assert [record.value for record in engine.log("orders", 0).records()] == [b"v", b"w"]
    engine.log("orders", 1).append([Record(value=b"w")], "durable")
    engine.create_topic("late", partitions=2)
    assert sorted(path.name for path in (tmp_path / "b").glob("late-*")) == ["late-0", "late-1"]
    files.done.clear()
    pass_ms(engine, clock, 300_000)
    assert [
        path for operation, path in files.done if f"{tmp_path}/a/" in path and operation not in {"read", "open"}
    ] == []
    assert [status.failures for status in engine.duties()] == [0] * len(engine.duties())
    engine.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    assert listener.events == [LogDirOffline(path=str(tmp_path / "a"), reason=str(engine_failure(tmp_path)))]


def engine_failure(folder: Path) -> LogDirOfflineError:
    return LogDirOfflineError("input/output error", str(folder / "a" / "orders-0" / f"{0:020}.log"))


def test_a_checkpoint_that_cannot_be_synced_takes_the_directory_offline(
    engine: Engine, clock: ManualClock, files: FaultyVfs, tmp_path: Path
) -> None:
    append(engine, clock)
    files.rule = failing("sync folder", errno.EIO, path=str(tmp_path / "a"))
    with pytest.raises(LogDirOfflineError):
        engine.flush()
    with pytest.raises(LogDirOfflineError):
        append(engine, clock)
    append(engine, clock, 1)


def test_a_full_disk_refuses_reads_on_and_resumes(
    engine: Engine, clock: ManualClock, files: FaultyVfs, tmp_path: Path
) -> None:
    append(engine, clock)
    path = tmp_path / "a" / "orders-0" / f"{0:020}.log"
    before = path.read_bytes()
    files.room_bytes = 30
    with pytest.raises(DiskFullError):
        append(engine, clock)
    assert path.read_bytes() == before
    assert [record.offset for record in engine.log("orders", 0).records()] == [0]
    files.room_bytes = None
    append(engine, clock)
    assert [record.offset for record in engine.log("orders", 0).records()] == [0, 1]
    assert engine.log("orders", 0).healthy
