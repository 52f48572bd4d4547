"""Failures of an engine: interrupted opening, incomplete topics, and logs that fail while others continue."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path

import pytest

from stratalog import Log, Record, open_engine, open_reader
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_dir import LogDir
from stratalog.env import Env
from stratalog.epochs.checkpoint import format_offsets
from stratalog.errors import (
    ClosedError,
    DiskFullError,
    FencedEpochError,
    LogDirError,
    LogDirLockedError,
    LogDirOfflineError,
    ObjectNotFoundError,
    StorageError,
    StorePermissionError,
    TopicExistsError,
)
from stratalog.model.names import TopicId, TopicPartition
from stratalog.reading.reader import TopicInfo
from stratalog.testing.faults import FaultyVfs, Rule, failing

MARKER = ".kafka_cleanshutdown"
CRASH = """
import os, stratalog
engine = stratalog.open_engine({folder!r})
engine.create_topic("orders")
engine.log("orders", 0).append([stratalog.Record(value=b"kept")])
os._exit(9)
"""


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Return the directory of an engine whose process died, with an incomplete batch at the end of its log."""
    folder = tmp_path / "crashed"
    script = CRASH.format(folder=os.fspath(folder))
    ended = subprocess.run([sys.executable, "-c", script], check=False)  # noqa: S603 - our own interpreter and text
    assert ended.returncode == 9
    with (folder / "orders-0" / f"{0:020}.log").open("ab") as file:
        file.write(b"torn")
    return folder


def append_one(folder: Path) -> list[bytes | None]:
    with open_engine(folder) as engine:
        log = engine.log("orders", 0)
        log.append([Record(value=b"new")])
        return [record.value for record in log.records()]


# --- interrupted opening -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_directory_that_was_never_checked_stays_unclean(crashed: Path, tmp_path: Path) -> None:
    with open_engine(tmp_path / "other"), pytest.raises(LogDirLockedError):
        open_engine([crashed, tmp_path / "other"])
    assert not (crashed / MARKER).exists()
    assert append_one(crashed) == [b"kept", b"new"]


@pytest.mark.long
def test_a_directory_of_which_only_some_logs_were_checked_stays_unclean(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stratalog.engine.open.log_opener.load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_engine(crashed)
    assert append_one(crashed) == [b"kept", b"new"]


def test_a_clean_directory_that_was_never_checked_stays_clean(tmp_path: Path) -> None:
    with open_engine(tmp_path / "clean") as engine:
        engine.create_topic("orders")
    with open_engine(tmp_path / "other"), pytest.raises(LogDirLockedError):
        open_engine([tmp_path / "clean", tmp_path / "other"])
    assert (tmp_path / "clean" / MARKER).exists()


# --- closing -----------------------------------------------------------------------------------------------------


def test_only_the_first_close_raises_the_error_of_the_disk(tmp_path: Path) -> None:
    files = FaultyVfs()
    engine = open_engine(tmp_path, env=Env(files=files))
    engine.create_topic("orders")
    engine.log("orders").append([Record(value=b"v")])
    files.rule = failing("write", errno.ENOSPC, path="offset-checkpoint.tmp")
    with pytest.raises(DiskFullError):
        engine.close()
    assert files.open_paths == []
    engine.close()


# --- incomplete topics -------------------------------------------------------------------------------------------


def nth(number: int, rule: Rule) -> Rule:
    """Return a rule that lets only one operation fail: the ``number``-th of those that ``rule`` refuses, from 1."""
    remaining = [number]

    def asked(operation: str, path: str) -> None:
        try:
            rule(operation, path)
        except OSError:
            remaining[0] -= 1
            if remaining[0] == 0:
                raise

    return asked


@pytest.mark.parametrize(
    ("operation", "path", "number", "kind"),
    [
        ("write", "stratalog-topics.json.tmp", 1, DiskFullError),
        ("make folder", "new-2", 1, DiskFullError),
        ("sync folder", "data", 2, LogDirError),  # the first sync is for the topics file
        ("sync folder", "new-1", 1, LogDirOfflineError),
        ("write", "new-1/partition.metadata.tmp", 1, DiskFullError),
        ("create", "new-2/00000000000000000000.log", 1, DiskFullError),
    ],
)
def test_a_topic_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, operation: str, path: str, number: int, kind: type[StorageError]
) -> None:
    folder, files = tmp_path / "data", FaultyVfs()
    with open_engine(folder, env=Env(files=files)) as engine:
        engine.create_topic("orders")
        files.rule = nth(number, failing(operation, errno.ENOSPC, path=path, times=number))
        with pytest.raises(kind):
            engine.create_topic("new", partitions=3)
        assert set(engine.topics()) == {"orders"}
        assert list(folder.glob("new*")) == []
        assert '"new"' not in (folder / "stratalog-topics.json").read_text()
        assert engine.create_topic("new", partitions=3).partitions == (0, 1, 2)
    assert files.open_paths == []
    with open_engine(folder) as engine:
        assert engine.topics()["new"].partitions == (0, 1, 2)


@pytest.mark.parametrize("kept", [0, 2])
def test_partitions_that_a_read_only_disk_keeps_are_listed_before_and_after_a_restart(
    tmp_path: Path, kept: int
) -> None:
    def read_only(operation: str, path: str) -> None:
        if is_read_only or (operation == "make folder" and path.endswith(f"new-{kept + 1}")):
            is_read_only.append(True)
            if operation not in {"read", "open"}:
                raise OSError(errno.EROFS, "read-only file system")

    folder, files, is_read_only = tmp_path / "data", FaultyVfs(), list[bool]()
    with open_engine(folder, env=Env(files=files)) as engine:
        if kept:
            engine.create_topic("new", partitions=kept)
        files.rule = read_only
        create = (
            partial(engine.create_partitions, "new", 4) if kept else partial(engine.create_topic, "new", partitions=2)
        )
        with pytest.raises(LogDirError):
            create()
        assert engine.topics()["new"].partitions == tuple(range(kept + 1))
        with pytest.raises(LogDirError, match="open the engine again to use the partition"):
            engine.log("new", kept)
        files.rule = None
    with open_engine(folder) as engine:
        assert engine.topics()["new"].partitions == tuple(range(kept + 1))
        assert engine.log("new", kept).offsets().log_end == 0
        engine.delete_topic("new")
        assert engine.topics() == {}


def test_a_topic_whose_folders_cannot_be_removed_can_be_deleted(tmp_path: Path) -> None:
    def full(operation: str, path: str) -> None:
        if (operation, path.rpartition("/")[2]) in {("make folder", "new-1"), ("remove folder", "new-0")}:
            raise OSError(errno.ENOSPC, "no space")

    files = FaultyVfs()
    with open_engine(tmp_path / "data", env=Env(files=files)) as engine:
        files.rule = full
        with pytest.raises(DiskFullError):
            engine.create_topic("new", partitions=2)
        files.rule = None
        with pytest.raises(TopicExistsError):
            engine.create_topic("new", partitions=2)
        engine.delete_topic("new")
        assert engine.create_topic("new", partitions=2).partitions == (0, 1)


def test_an_interrupted_topic_is_removed_too(tmp_path: Path) -> None:
    def interrupted(operation: str, path: str) -> None:
        if operation == "create" and "new-1" in path:
            files.rule = None
            raise KeyboardInterrupt

    files = FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        files.rule = interrupted
        with pytest.raises(KeyboardInterrupt):
            engine.create_topic("new", partitions=3)
        assert engine.topics() == {}
    assert list(tmp_path.glob("new*")) == []


def test_a_topic_is_seen_when_all_of_it_is_there(tmp_path: Path) -> None:
    """Other threads must never see some of its partitions only."""
    listings: list[dict[str, TopicInfo]] = []

    def look(_: str, path: str) -> None:
        if "new-" in path:
            listings.append(engine.topics())

    files = FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        files.rule = look
        engine.create_topic("new", partitions=3)
        files.rule = None
    assert len(listings) > 3
    assert not any(listings)


def test_a_topic_that_cannot_be_made_keeps_the_settings_that_were_there(tmp_path: Path) -> None:
    """The stored settings also apply to partitions in directories that are not open now."""
    files = FaultyVfs()
    with open_engine([tmp_path / "first", tmp_path / "other"]) as engine:
        before = engine.create_topic("orders", partitions=2, config={"retention.ms": 5})
    shutil.rmtree(tmp_path / "first" / "orders-0")
    with open_engine(tmp_path / "first", env=Env(files=files)) as engine:
        files.rule = failing("make folder", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            engine.create_topic("orders")
    with open_engine([tmp_path / "first", tmp_path / "other"]) as engine:
        topic = engine.topics()["orders"]
    assert (topic.partitions, topic.topic_id, topic.config) == ((1,), before.topic_id, before.config)


def test_threads_that_make_one_topic_make_it_once(tmp_path: Path) -> None:
    def make(_: int) -> str:
        try:
            return str(engine.create_topic("orders", partitions=2).topic_id)
        except TopicExistsError:
            return "exists"

    with open_engine(tmp_path) as engine, ThreadPoolExecutor(8) as threads:
        outcomes = sorted(threads.map(make, range(8)))
        assert outcomes[1:] == ["exists"] * 7 or outcomes[:-1] == ["exists"] * 7
        assert {outcomes[0], outcomes[-1]} == {"exists", str(engine.topics()["orders"].topic_id)}


def test_a_crash_while_a_topic_is_made_leaves_no_partition_without_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, create = list[Path](), LogDir.create

    def copied(directory: LogDir, log: TopicPartition, topic_id: TopicId) -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "data", copies[-1])
        create(directory, log, topic_id)

    monkeypatch.setattr(LogDir, "create", copied)
    with open_engine(tmp_path / "data") as engine:
        created = engine.create_topic("orders", partitions=2, config={"retention.ms": 5})
    with open_engine(copies[1]) as engine:
        topic = engine.topics()["orders"]
    assert (topic.partitions, topic.topic_id, topic.config) == ((0,), created.topic_id, created.config)


@pytest.mark.parametrize("there", ["orders-1", "orders-1/mine"])
def test_a_file_in_the_place_of_a_new_partition_is_left_alone(tmp_path: Path, there: str) -> None:
    with open_engine(tmp_path) as engine:
        (tmp_path / there).parent.mkdir(exist_ok=True)
        (tmp_path / there).write_text("mine")
        with pytest.raises(TopicExistsError, match="orders-1"):
            engine.create_topic("orders", partitions=2)
        assert engine.topics() == {}
    assert (tmp_path / there).read_text() == "mine"


def test_a_topic_keeps_its_id_without_partition_metadata(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        created = engine.create_topic("orders")
    (tmp_path / "orders-0" / "partition.metadata").unlink()
    with open_reader(tmp_path) as reader:
        assert reader.topics()["orders"].topic_id == created.topic_id
    with open_engine(tmp_path) as engine:
        assert engine.topics()["orders"].topic_id == created.topic_id


# --- duties ------------------------------------------------------------------------------------------------------


def refusal(error: StorageError) -> Callable[[], int]:
    def refused() -> int:
        raise error

    return refused


TIERED = {"segment.bytes": 500, "retention.ms": -1, "local.retention.bytes": 0, "file.delete.delay.ms": 0}


def test_a_log_that_fails_does_not_keep_others_from_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "bucket").as_uri()) as engine:
        engine.create_topic("orders", partitions=3, config=TIERED)
        for partition in range(3):
            for _ in range(20):
                engine.log("orders", partition).append([Record(value=b"x" * 100)])
        work = FencedEpochError("another writer")
        monkeypatch.setattr(engine.log("orders", 1), "flush", refusal(work))
        with pytest.raises(FencedEpochError) as caught:
            engine.offload()
        assert caught.value.__notes__ == [f"orders-1: {work}", "2 of 3 logs are done, 1 failed"]
        with pytest.raises(FencedEpochError):
            engine.offload()
        assert len(work.__notes__) == 2  # a repeated raise of the same error adds no notes
        remote = [any(part.is_remote for part in engine.log("orders", n).segments()) for n in range(3)]
        assert remote == [True, False, True]


def test_a_store_that_refuses_ends_a_duty_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[object] = []

    def refused(log: object, *_: object) -> None:
        logs.append(log)
        raise StorePermissionError("no", "key")

    (tmp_path / "bucket").mkdir()
    one_at_a_time = {"log.dirs": [str(tmp_path / "data")], "remote.log.manager.copier.thread.pool.size": 1}
    with open_engine(config=one_at_a_time, tier=(tmp_path / "bucket").as_uri()) as engine:
        engine.create_topic("orders", partitions=3)
        monkeypatch.setattr("stratalog.engine.tiering.tier_duties.offload_log", refused)
        with pytest.raises(StorePermissionError):
            engine.offload()
    assert len(logs) == 1


def test_the_error_that_ended_a_duty_is_raised_not_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[StorageError] = [FencedEpochError("another writer"), StorePermissionError("no", "key")]

    def refused(*_: object) -> None:
        raise failures.pop(0)

    (tmp_path / "bucket").mkdir()
    one_at_a_time = {"log.dirs": [str(tmp_path / "data")], "remote.log.manager.copier.thread.pool.size": 1}
    with open_engine(config=one_at_a_time, tier=(tmp_path / "bucket").as_uri()) as engine:
        engine.create_topic("orders", partitions=3)
        monkeypatch.setattr("stratalog.engine.tiering.tier_duties.offload_log", refused)
        with pytest.raises(StorePermissionError) as caught:
            engine.offload()
    assert [note.partition(":")[0] for note in caught.value.__notes__[:2]] == ["orders-1", "orders-0"]
    assert caught.value.__notes__[2] == "0 of 3 logs are done, 2 failed"


def test_of_several_failures_of_the_store_the_first_is_raised(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def fail(log: Log) -> None:
        barrier.wait(timeout=10)
        raise StorePermissionError(f"{log.name} is not readable", "key")

    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=2)
        logs = [engine.log("orders", partition) for partition in range(2)]
        with pytest.raises(StorePermissionError) as caught:
            for_each(logs, fail, threads=2)
    assert "orders-0" in str(caught.value)
    assert [note.partition(":")[0] for note in caught.value.__notes__[:2]] == ["orders-0", "orders-1"]


def test_a_flush_fails_if_a_log_is_closed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance a log whose move fails: it is closed, and then opened again."""
    flush = Log.flush

    def flush_late(log: Log) -> int:
        log.close()
        return flush(log)

    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        engine.log("orders").append([Record(value=b"not durable")], "written")
        monkeypatch.setattr(Log, "flush", flush_late)
        with pytest.raises(ClosedError, match="orders-0 is closed"):
            engine.flush()


def test_a_log_whose_topic_is_deleted_meanwhile_has_no_result(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        for topic in ("kept", "deleted"):
            engine.create_topic(topic)
        logs = [engine.log("kept"), engine.log("deleted")]

        def flush(log: Log) -> str:
            if log.name.topic == "kept":
                engine.delete_topic("deleted")
            log.flush()
            return log.name.topic

        assert for_each(logs, flush) == ["kept"]


def test_retention_that_fails_for_one_log_stores_what_it_did_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=2, config=TIERED)
        for partition in range(2):
            engine.log("orders", partition).append([Record(value=b"x" * 100)] * 3)
            engine.log("orders", partition).delete_records(before=2)
        with monkeypatch.context() as patch:
            patch.setattr(
                engine.log("orders", 0).maintenance, "delete_expired", refusal(LogDirOfflineError("no", "file"))
            )
            with pytest.raises(LogDirOfflineError, match="file"):
                engine.apply_retention()
        assert "orders 1 2" in (tmp_path / "log-start-offset-checkpoint").read_text()


def test_a_log_that_cannot_be_flushed_does_not_keep_other_directories_from_being_durable(tmp_path: Path) -> None:
    files = FaultyVfs()
    engine = open_engine([tmp_path / "a", tmp_path / "b", tmp_path / "c"], env=Env(files=files))
    engine.create_topic("orders", partitions=3)
    for partition in range(3):
        engine.log("orders", partition).append([Record(value=b"x")])
    files.rule = failing("sync", errno.EIO, path="orders-0/00000000000000000000.log")
    with pytest.raises(LogDirOfflineError, match="orders-0"):
        engine.flush()
    assert [engine.log("orders", partition).offsets().recovery_point for partition in range(3)] == [0, 1, 1]
    assert "orders 2 1" in (tmp_path / "c" / "recovery-point-offset-checkpoint").read_text()
    assert not (tmp_path / "a" / "recovery-point-offset-checkpoint").exists()
    engine.close()


def test_a_directory_whose_checkpoints_cannot_be_written_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine([tmp_path / "a", tmp_path / "b"], env=Env(files=files)) as engine:
        engine.create_topic("orders", partitions=2)
        for failing_one, healthy_one in (("a", "b"), ("b", "a")):
            for partition in range(2):  # so that each directory has something new to store
                engine.log("orders", partition).append([Record(value=b"x")])
            for folder in (tmp_path / "a", tmp_path / "b"):
                (folder / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
            files.rule = failing("write", errno.ENOSPC, path=f"/{failing_one}/recovery-point-offset-checkpoint.tmp")
            with pytest.raises(DiskFullError):
                engine.flush()
            assert (tmp_path / healthy_one / "recovery-point-offset-checkpoint").exists()


def test_a_log_whose_close_failed_is_recovered_at_the_next_start(tmp_path: Path) -> None:
    """The engine closes the log again. It once took the second close for a clean one, and wrote the marker."""
    files = FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"v")])
        files.rule = failing("create", errno.ENOSPC, path=".snapshot.tmp")
        with pytest.raises(DiskFullError):
            log.close()
        assert log.close() is False
    assert not (tmp_path / MARKER).exists()
    with open_engine(tmp_path) as engine:
        assert engine.log("orders", 0).close()
        assert engine.log("orders", 0).close()
    assert (tmp_path / MARKER).exists()


def test_checkpoints_that_are_written_late_do_not_replace_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_entries, go_on = threading.Event(), threading.Event()

    def formatted(entries: Mapping[TopicPartition, int]) -> bytes:
        if not has_entries.is_set():
            has_entries.set()
            go_on.wait()
        return format_offsets(entries)

    with open_engine(tmp_path) as engine, ThreadPoolExecutor(2) as threads:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"x")] * 3)
        monkeypatch.setattr("stratalog.engine.open.directory_checkpoints.format_offsets", formatted)
        first = threads.submit(engine.flush)
        has_entries.wait()
        log.append([Record(value=b"x")])
        second = threads.submit(engine.flush)
        wait_for([second], timeout=0.1)  # the second flush must wait; give a wrong one time to finish first
        go_on.set()
        first.result()
        second.result()
        assert "orders 0 4" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_a_directory_that_goes_out_of_service_while_checkpoints_are_written_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"x")] * 3)
        engine.flush()
        log.append([Record(value=b"x")])

        def format_and_fail(entries: Mapping[TopicPartition, int]) -> bytes:
            files.rule = failing("write", errno.EIO, path=".log")
            with pytest.raises(LogDirOfflineError):
                log.append([Record(value=b"x")])
            return format_offsets(entries)

        with monkeypatch.context() as patch:
            patch.setattr("stratalog.engine.open.directory_checkpoints.format_offsets", format_and_fail)
            engine.flush()
        assert "orders 0 3" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_a_missing_object_is_an_error_of_its_log_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[object] = []

    def refused(log: object, *_: object) -> None:
        logs.append(log)
        raise ObjectNotFoundError("gone", "key")

    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "bucket").as_uri()) as engine:
        engine.create_topic("orders", partitions=12)
        monkeypatch.setattr("stratalog.engine.tiering.tier_duties.offload_log", refused)
        with pytest.raises(ObjectNotFoundError) as caught:
            engine.offload()
    assert len(logs) == 12
    assert len(caught.value.__notes__) == 11
    assert caught.value.__notes__[-1] == "0 of 12 logs are done, 12 failed"


def test_an_error_that_is_raised_often_does_not_gather_what_it_went_through(tmp_path: Path) -> None:
    """An earlier version kept each traceback of the error with all its objects, such as refused records."""
    files = FaultyVfs()
    engine = open_engine(tmp_path, env=Env(files=files))
    engine.create_topic("orders")
    log = engine.log("orders", 0)
    files.rule = failing("write", errno.EIO, path=".log")
    depths = []
    for _ in range(4):
        with pytest.raises(LogDirOfflineError) as caught:
            log.append([Record(value=b"x")])
        depths.append(len(caught.traceback))
    assert depths[1] == depths[2] == depths[3]
    engine.close()


def test_a_topic_that_is_created_while_its_directory_fails_refuses_appends(tmp_path: Path) -> None:
    files = FaultyVfs()
    engine = open_engine(tmp_path / "data", env=Env(files=files))
    engine.create_topic("orders")
    orders = engine.log("orders", 0)

    def rule(operation: str, path: str) -> None:
        if operation == "sync" and "orders-0" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if operation == "create" and "new-0" in path and path.endswith(".log"):
            with pytest.raises(LogDirOfflineError):  # another thread's append at this time
                orders.append([Record(value=b"v")], "durable")

    files.rule = rule
    engine.create_topic("new")
    files.rule = None
    with pytest.raises(LogDirOfflineError):
        engine.log("new", 0).append([Record(value=b"v")])
    engine.close()
