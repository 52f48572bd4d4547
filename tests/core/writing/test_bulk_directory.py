"""Contract tests of the bulk writer for a directory, and its wait for the directory lock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bulk_writer_contract import BulkWriterContract
from stratalog import Engine, Record, RecordColumns, TopicPartition, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.env.posix_vfs import PosixVfs
from stratalog.errors import ClosedError, LogDirLockedError, StorageError
from stratalog.model.names import STAGED_PREFIX
from stratalog.writing import StagedSegment, WriteTarget

LOG = TopicPartition("orders", 0)


class TestDirectoryWriter(BulkWriterContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> WriteTarget:
        return WriteTarget(str(tmp_path / "data"))


class ReleasingClock(ManualClock):
    """Clock that closes the engine that holds the directory after this number of pauses."""

    def __init__(self, engine: Engine, pauses: int) -> None:
        super().__init__()
        self.engine, self.pauses = engine, pauses

    def sleep_ms(self, duration_ms: int) -> None:
        super().sleep_ms(duration_ms)
        self.pauses -= 1
        if not self.pauses:
            self.engine.close()


class RefusingFiles(PosixVfs):
    """Files of which those with a name in ``refused`` cannot be removed."""

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def remove(self, path: str) -> None:
        if Path(path).name == self.refused:
            raise PermissionError(errno.EACCES, "Permission denied")
        super().remove(path)


def test_an_append_succeeds_if_an_abandoned_staged_file_cannot_be_removed(tmp_path: Path) -> None:
    """Without a mark, a repetition after an error would publish the records twice."""
    target = WriteTarget(str(tmp_path / "data"))
    with target.open() as writer:
        writer.create_topic("orders", 1)
    old = tmp_path / "data" / "orders-0" / f"{STAGED_PREFIX}0"
    old.touch()
    os.utime(old, (0, 0))
    with target.open(env=Env(files=RefusingFiles(old.name))) as writer:
        with writer.stage(LOG) as stage:
            stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=b"v")]))
            staged_segments = stage.finish()
        assert writer.append(LOG, staged_segments).end_offset == 1
    with target.open() as writer:
        assert writer.append(LOG, []).end_offset == 1


def test_staged_files_are_discarded_although_another_topic_was_deleted(tmp_path: Path) -> None:
    target, staged_segments = WriteTarget(str(tmp_path / "data")), list[StagedSegment]()
    with target.open() as writer:
        for topic in ("gone", "orders"):
            writer.create_topic(topic, 1)
            with writer.stage(TopicPartition(topic, 0)) as stage:
                stage.add(RecordColumns.from_records([Record(value=b"v")]))
                staged_segments += stage.finish()
    with open_engine(tmp_path / "data") as engine:
        engine.delete_topic("gone")
    assert list(tmp_path.glob(f"data/orders-0/{STAGED_PREFIX}*"))
    with target.open() as writer:
        writer.discard(staged_segments)
    assert not list(tmp_path.glob(f"data/orders-0/{STAGED_PREFIX}*"))


def _staged(target: WriteTarget) -> list[StagedSegment]:
    with target.open() as writer:
        writer.create_topic("orders", 1)
        with writer.stage(LOG) as stage:
            stage.add(RecordColumns.from_records([Record(value=b"v")]))
            return stage.finish()


@pytest.mark.parametrize("loss", ["recreated", "removed", "truncated"])
def test_lost_staged_records_are_reported_as_an_error_that_no_retry_passes(tmp_path: Path, loss: str) -> None:
    target = WriteTarget(str(tmp_path / "data"))
    staged_segments = _staged(target)
    if loss == "recreated":
        with open_engine(tmp_path / "data") as engine:
            engine.delete_topic("orders")
            engine.create_topic("orders")
    for file in tmp_path.glob(f"data/orders-0/{STAGED_PREFIX}*"):
        if loss == "removed":
            file.unlink()
        else:
            os.truncate(file, 8)
    with target.open() as writer:
        with pytest.raises(StorageError, match=r"stage its records again|are not published") as caught:
            writer.append(LOG, staged_segments)
        assert type(caught.value) is StorageError
        assert not caught.value.retriable


def test_a_closed_writer_does_not_take_the_lock_again(tmp_path: Path) -> None:
    target = WriteTarget(str(tmp_path / "data"))
    staged_segments = _staged(target)
    with target.open() as writer:
        pass
    writer.close()
    for call in (lambda: writer.append(LOG, staged_segments), writer.topics, lambda: writer.create_topic("other", 1)):
        with pytest.raises(ClosedError):
            call()
    with open_engine(tmp_path / "data") as engine:
        assert engine.log("orders", 0).offsets().log_end == 0


@pytest.mark.parametrize("pauses", [3, 1_000])
@pytest.mark.long
def test_a_directory_that_another_process_publishes_in_is_waited_for(tmp_path: Path, pauses: int) -> None:
    target = WriteTarget(str(tmp_path / "data"))
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders")
        with target.open() as writer, writer.stage(LOG) as stage:
            stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=b"v")]))
            staged_segments = stage.finish()
        with target.open(env=Env(clock=ReleasingClock(engine, pauses))) as writer:
            if pauses == 3:
                assert writer.append(LOG, staged_segments).end_offset == 1
            else:
                with pytest.raises(LogDirLockedError):
                    writer.append(LOG, staged_segments)


@pytest.mark.parametrize("pauses", [3, 1_000])
def test_a_check_waits_for_a_publication_and_refuses_a_directory_that_an_engine_keeps(
    tmp_path: Path, pauses: int
) -> None:
    target = WriteTarget(str(tmp_path / "data"))
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders")
        with target.open(env=Env(clock=ReleasingClock(engine, pauses))) as writer:
            if pauses == 3:
                writer.check("orders")
            else:
                with pytest.raises(LogDirLockedError, match="stop the engine or broker that uses the directory"):
                    writer.check("orders")
