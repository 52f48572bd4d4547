"""Engines with several log directories of which one cannot be opened: the others work, and nothing is created twice."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.engine.engine import Engine
from stratalog.env import Env
from stratalog.errors import (
    LogDirLockedError,
    LogDirOfflineError,
    LogDirPermissionError,
    NotAFileError,
    StorageError,
    SystemLimitError,
    UnknownTopicError,
)
from stratalog.model.names import INVENTORY_FILE, TIER_NOTE_FILE, TOPICS_FILE, TopicPartition
from stratalog.testing.faults import FaultyVfs

PARTITIONS = 4


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    """Return two directories with two partitions of a topic each, closed cleanly."""
    directories = [tmp_path / "a", tmp_path / "b"]
    with open_engine(directories) as engine:
        engine.create_topic("t", partitions=PARTITIONS, config={"retention.ms": 12345})
        for partition in range(PARTITIONS):
            engine.log("t", partition).append([Record(value=b"%d" % partition)], "durable")
    assert [len(list(directory.glob("t-*"))) for directory in directories] == [2, 2]
    return directories


def refuse(directory: Path, code: int) -> FaultyVfs:
    """Return a file system on which every access to ``directory`` fails with the error ``code``."""
    files = FaultyVfs()

    def rule(_: str, path: str) -> None:
        if Path(path).is_relative_to(directory):
            raise OSError(code, os.strerror(code), path)

    files.rule = rule
    return files


def by_error(code: int) -> Callable[[Sequence[Path], int], Engine]:
    return lambda dirs, dead: open_engine(dirs, env=Env(files=refuse(dirs[dead], code)))


def by_file_in_its_place(dirs: Sequence[Path], dead: int) -> Engine:
    shutil.move(dirs[dead], dirs[dead].with_name("kept"))
    dirs[dead].touch()
    return open_engine(dirs)


def by_link_that_loops(dirs: Sequence[Path], dead: int) -> Engine:
    shutil.move(dirs[dead], dirs[dead].with_name("kept"))
    dirs[dead].symlink_to(dirs[dead].name)
    return open_engine(dirs)


def by_identity(dirs: Sequence[Path], dead: int) -> Engine:
    (dirs[dead] / "meta.properties").write_text("version=99\n")
    return open_engine(dirs)


def by_fifo(dirs: Sequence[Path], dead: int) -> Engine:
    os.mkfifo(dirs[dead] / "meta.properties")
    return open_engine(dirs)


WAYS: dict[str, Callable[[Sequence[Path], int], Engine]] = {
    "I/O error": by_error(errno.EIO),
    "read-only": by_error(errno.EROFS),
    "permission": by_error(errno.EACCES),
    "stale": by_error(errno.ESTALE),
    "file in its place": by_file_in_its_place,
    "link that loops": by_link_that_loops,
    "identity of a later version": by_identity,
    "FIFO for meta.properties": by_fifo,
}


def heal(dirs: Sequence[Path], dead: int) -> None:
    kept_dir = dirs[dead].with_name("kept")
    if kept_dir.exists():
        dirs[dead].unlink()
        shutil.move(kept_dir, dirs[dead])
    (dirs[dead] / "meta.properties").unlink(missing_ok=True)


def values(engine: Engine, partition: int) -> list[bytes | None]:
    return [record.value for record in engine.log("t", partition).records()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.long
def test_other_directories_serve_and_unavailable_partitions_report_the_reason(
    dirs: list[Path], way: str, dead: int
) -> None:
    with WAYS[way](dirs, dead) as engine:
        assert engine.topics()["t"].partitions == tuple(range(PARTITIONS))
        assert engine.topics()["t"].config.retention_ms == 12345
        served = [partition for partition in range(PARTITIONS) if (dirs[1 - dead] / f"t-{partition}").exists()]
        assert len(served) == PARTITIONS // 2
        for partition in range(PARTITIONS):
            if partition in served:
                engine.log("t", partition).append([Record(value=b"more")], "durable")
                assert values(engine, partition) == [b"%d" % partition, b"more"]
            else:
                with pytest.raises(LogDirOfflineError, match=f"t-{partition} is unavailable") as caught:
                    engine.log("t", partition)
                assert caught.value.path == str(dirs[dead])
        gauges = {
            sample.labels: sample.value for sample in engine.metrics() if sample.metric.name.endswith("log_dir_offline")
        }
        assert gauges == {(str(dirs[dead]),): 1, (str(dirs[1 - dead]),): 0}
    heal(dirs, dead)
    with open_engine(dirs) as engine:
        for partition in range(PARTITIONS):
            later_values = [b"more"] if partition in served else []
            assert values(engine, partition) == [b"%d" % partition, *later_values]
        engine.create_topic("new")


@pytest.mark.parametrize("dead", [0, 1])
def test_topics_stay_as_they_are_while_a_directory_is_out_of_reach(dirs: list[Path], dead: int) -> None:
    with by_error(errno.EIO)(dirs, dead) as engine:
        changes: list[Callable[[], object]] = [
            lambda: engine.create_topic("new"),
            lambda: engine.alter_topic("t", {"retention.ms": 1}),
            lambda: engine.delete_topic("t"),
            lambda: engine.log("unknown", 0),
            lambda: engine.log("unknown"),
        ]
        for change in changes:
            with pytest.raises(LogDirOfflineError) as caught:
                change()
            assert caught.value.path == str(dirs[dead])
    with open_engine(dirs) as engine:
        assert set(engine.topics()) == {"t"}
        assert engine.topics()["t"].config.retention_ms == 12345
        with pytest.raises(UnknownTopicError):
            engine.log("unknown", 0)


def test_without_any_directory_the_engine_does_not_open(dirs: list[Path]) -> None:
    files = refuse(dirs[0].parent, errno.EIO)
    with pytest.raises(LogDirOfflineError):
        open_engine(dirs, env=Env(files=files))
    with pytest.raises(LogDirOfflineError):
        open_engine(dirs[0], env=Env(files=files))
    with open_engine(dirs) as engine:
        assert values(engine, 0) == [b"0"]


@pytest.mark.parametrize(("code", "kind"), [(errno.EMFILE, SystemLimitError)])
def test_a_lack_of_descriptors_is_no_reason_to_continue_without_a_directory(
    dirs: list[Path], code: int, kind: type[StorageError]
) -> None:
    with pytest.raises(kind):
        by_error(code)(dirs, 1)
    with open_engine(dirs) as engine:
        assert values(engine, 0) == [b"0"]


def test_a_directory_of_another_owner_prevents_opening(dirs: list[Path]) -> None:
    with open_engine(dirs[1]), pytest.raises(LogDirLockedError):
        open_engine(dirs)


def test_the_other_directory_serves_if_the_note_about_the_tier_cannot_be_written(
    dirs: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bucket").mkdir()
    files = FaultyVfs()

    def rule(operation: str, path: str) -> None:
        if operation == "create" and Path(path).parent == dirs[1] and TIER_NOTE_FILE in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    files.rule = rule
    with open_engine(dirs, tier=(tmp_path / "bucket").as_uri(), env=Env(files=files)) as engine:
        for path in dirs[0].glob("t-*"):
            partition = int(path.name.removeprefix("t-"))
            assert values(engine, partition) == [b"%d" % partition]
        files.rule = None
    assert (dirs[0] / TIER_NOTE_FILE).exists()
    assert f"{dirs[1]}/{TIER_NOTE_FILE}" in caplog.text


def test_the_directory_with_the_settings_is_needed_if_no_inventory_has_them(dirs: list[Path]) -> None:
    """Directories of an earlier release have no inventory.

    With default settings, records could be deleted, or offloaded unencrypted.
    """
    for directory in dirs:
        (directory / INVENTORY_FILE).unlink()
    with pytest.raises(LogDirPermissionError):
        by_error(errno.EACCES)(dirs, 0)
    with by_error(errno.EACCES)(dirs, 1) as engine:
        assert len(engine.partitions()) == PARTITIONS // 2
        (missing, *_) = [number for number in range(PARTITIONS) if (dirs[1] / f"t-{number}").exists()]
        with pytest.raises(LogDirOfflineError, match="a directory that is unavailable may contain it"):
            engine.log("t", missing)
        with pytest.raises(LogDirOfflineError):
            engine.create_topic("new")


def test_an_erasure_needs_all_directories_that_may_contain_a_partition(dirs: list[Path]) -> None:
    """Without an inventory, the engine does not know the partitions of the unavailable directory."""
    for directory in dirs:
        (directory / INVENTORY_FILE).unlink()
    with by_error(errno.EIO)(dirs, 1) as engine:
        for dry_run in (True, False):
            with pytest.raises(LogDirOfflineError, match="may contain partitions of topic t"):
                engine.erase("t", b"k", dry_run=dry_run)
    with open_engine(dirs) as engine:
        assert len(engine.erase("t", b"k")) == PARTITIONS


def test_a_topic_that_the_inventory_lacks_is_not_opened_under_other_settings(dirs: list[Path]) -> None:
    """A crash occurred after the creation of the topic and before the write of the inventory."""
    before = (dirs[1] / INVENTORY_FILE).read_bytes()
    with open_engine(dirs) as engine:
        engine.create_topic("new", partitions=2)
    (dirs[1] / INVENTORY_FILE).write_bytes(before)
    with by_error(errno.EIO)(dirs, 0) as engine:
        (name,) = [partition for partition in engine.partitions() if partition.topic == "new"]
        with pytest.raises(LogDirOfflineError, match="settings of new"):
            engine.log(*name)
        assert len([partition for partition in engine.partitions() if partition.topic == "t"]) == PARTITIONS


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"version":1,"topics":{}}', b'{"version":1,"topics":{},"inventory":true}']
)
def test_a_damaged_inventory_is_rebuilt(dirs: list[Path], data: bytes) -> None:
    before = (dirs[0] / INVENTORY_FILE).read_bytes()
    (dirs[1] / INVENTORY_FILE).write_bytes(data)
    with open_engine(dirs):
        assert (dirs[1] / INVENTORY_FILE).read_bytes() == before == (dirs[0] / INVENTORY_FILE).read_bytes()


def test_the_inventory_follows_the_topics(dirs: list[Path]) -> None:
    with open_engine(dirs) as engine:
        engine.create_topic("new", partitions=3)
        engine.alter_topic("t", {"retention.ms": 777})
        engine.delete_topic("new")
    with by_error(errno.EIO)(dirs, 0) as engine:
        assert engine.topics()["t"].config.retention_ms == 777
        assert set(engine.topics()) == {"t"}


@pytest.mark.parametrize("names", [["b"], ["b", "a"], ["new", "b"]])
def test_topics_keep_their_settings_when_another_directory_is_the_first_one(
    dirs: list[Path], names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    new_dirs = [dirs[0].with_name(name) for name in names]
    for _ in range(2):
        with open_engine(new_dirs) as engine:
            assert engine.topics()["t"].config.retention_ms == 12345
        assert "whose settings are read from other files" in caplog.text
    with open_engine(new_dirs) as engine:
        engine.create_topic("new")
    caplog.clear()
    with open_engine(new_dirs) as engine:
        assert engine.topics()["t"].config.retention_ms == 12345
    assert not caplog.text, "the creation has stored all topics in the first directory"


def test_topics_keep_settings_that_changed_while_the_engine_had_one_directory(dirs: list[Path]) -> None:
    with open_engine(dirs[1]) as engine:
        engine.alter_topic("t", {"retention.ms": 777})
        engine.create_topic("u", config={"retention.ms": 888})
    with open_engine([dirs[1].with_name("new"), dirs[1]]) as engine:
        assert {name: topic.config.retention_ms for name, topic in engine.topics().items()} == {"t": 777, "u": 888}


def test_topics_keep_their_settings_when_a_first_directory_is_added(tmp_path: Path) -> None:
    with open_engine(tmp_path / "old") as engine:
        engine.create_topic("t", config={"retention.ms": 777})
    for _ in range(2):
        with open_engine([tmp_path / "new", tmp_path / "old"]) as engine:
            assert engine.topics()["t"].config.retention_ms == 777


def test_the_inventory_of_another_engine_does_not_replace_the_settings(dirs: list[Path]) -> None:
    other_dirs = [dirs[0].with_name("x"), dirs[0].with_name("y")]
    with open_engine(other_dirs) as engine:
        for _ in range(3):
            engine.create_topic("t")
            engine.delete_topic("t")
        engine.create_topic("u", config={"retention.ms": 777})
    with open_engine([dirs[1], other_dirs[1]]) as engine:
        assert engine.topics()["t"].config.retention_ms == 12345


def test_the_settings_of_an_earlier_topic_of_the_same_name_are_not_used(dirs: list[Path]) -> None:
    before = (dirs[1] / INVENTORY_FILE).read_bytes()
    with open_engine(dirs) as engine:
        engine.delete_topic("t")
        engine.create_topic("t", partitions=2, config={"retention.ms": 777})
    (dirs[1] / INVENTORY_FILE).write_bytes(before)
    with open_engine(dirs[1]) as engine:
        assert engine.topics()["t"].config.retention_ms == -1


def test_an_engine_with_one_directory_has_no_inventory(tmp_path: Path) -> None:
    with open_engine(tmp_path / "a") as engine:
        engine.create_topic("t")
    assert not (tmp_path / "a" / INVENTORY_FILE).exists()
    assert (tmp_path / "a" / TOPICS_FILE).exists()


def test_keys_keep_their_partitions(dirs: list[Path]) -> None:
    """A producer that knows only half of the partitions would send keys to other partitions."""
    with open_engine(dirs) as engine, engine.producer() as producer:
        for number in range(20):
            producer.send("t", key=b"k%d" % number, value=b"x")
    with open_engine(dirs) as engine:
        homes = {
            record.key: partition
            for partition in range(PARTITIONS)
            for record in engine.log("t", partition).records()
            if record.key is not None
        }
    with by_error(errno.EIO)(dirs, 0) as engine:
        served = [partition for partition in range(PARTITIONS) if (dirs[1] / f"t-{partition}").exists()]
        with engine.producer() as producer:
            for key, home in homes.items():
                if home in served:
                    producer.send("t", key=key, value=b"y")
        for partition in served:
            assert {record.key for record in engine.log("t", partition).records() if record.value == b"y"} == {
                key for key, home in homes.items() if home == partition
            }


def test_an_attach_needs_all_directories(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "tier").mkdir()
    for directory in dirs:
        directory.mkdir()
    with pytest.raises(LogDirOfflineError, match="attach needs all log directories to be available"):
        open_engine(dirs, tier=f"file://{tmp_path}/tier", attach=True, env=Env(files=refuse(dirs[1], errno.EIO)))


def test_a_copy_that_was_written_to_while_a_newer_one_was_out_of_reach_is_kept(dirs: list[Path]) -> None:
    """A crash left two copies of a partition. The older one was used while the other directory was unavailable."""
    partition = next(number for number in range(PARTITIONS) if (dirs[0] / f"t-{number}").exists())
    source, target = dirs[0] / f"t-{partition}", dirs[1] / f"t-{partition}"
    shutil.copytree(source, target)
    (target / "stratalog-moved").touch()
    with by_error(errno.EIO)(dirs, 1) as engine:
        engine.log("t", partition).append([Record(value=b"acknowledged")], "durable")
    with open_engine(dirs) as engine, pytest.raises(StorageError, match="another log directory"):
        engine.log("t", partition)
    assert b"acknowledged" in (source / f"{0:020}.log").read_bytes()


def test_a_partition_is_named_with_what_keeps_its_directory(dirs: list[Path]) -> None:
    os.mkfifo(dirs[1] / "meta.properties")
    with open_engine(dirs) as engine:
        missing = next(number for number in range(PARTITIONS) if (dirs[1] / f"t-{number}").exists())
        assert TopicPartition("t", missing) in engine.partitions()
        with pytest.raises(LogDirOfflineError, match="a FIFO has the name of a file"):
            engine.log("t", missing)
    with pytest.raises(NotAFileError):
        open_engine(dirs[1])
