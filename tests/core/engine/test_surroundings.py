"""Changes of log directories by other programs: each causes a typed error or none, and no record is lost."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

import pytest

from stratalog import Record, TopicId, open_engine, open_reader
from stratalog.engine.restore.restore import restore
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError, LogDirLockedError, StorageError, TopicExistsError
from stratalog.log.folder.directory_state import format_topic_id
from stratalog.testing.faults import FaultyVfs

ONE = [Record(value=b"v")]


def filled(path: Path, *topics: str) -> Path:
    with open_engine(path) as engine:
        for topic in topics or ("t",):
            engine.create_topic(topic)
            engine.log(topic, 0).append(ONE)
    return path


@pytest.mark.parametrize("others", [["a"], ["a/"], ["./a"], ["link"], ["a/inner"], ["b", "a/inner/deeper"], ["."]])
def test_equal_and_nested_directories_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a", target_is_directory=True)
    with pytest.raises(ConfigError, match=r"given twice|is inside another"):
        open_engine(["a", *others])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link"]


@pytest.mark.parametrize("place", ["a", "a/tier", "link/tier", "a/./b/../tier", "a/outer", "link/outer/deeper"])
def test_a_tier_inside_a_log_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A broker does not start if a folder in its log directory is not the folder of a log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "tier").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / "outer").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    for uri in (f"file://{tmp_path / place}", f"file://localhost{tmp_path / place}"):
        with pytest.raises(ConfigError, match=f"the tier {uri} is inside the log directory a: use a folder outside"):
            open_engine(["b", "a"], tier=uri)
    assert {*(tmp_path / "a").rglob("*")} == {tmp_path / "a" / "tier", tmp_path / "a" / "outer"}


def test_a_tier_and_a_cache_outside_of_the_log_directory_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "tier"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "outer").symlink_to(tmp_path / "tier", target_is_directory=True)
    open_engine("a", tier=f"file://{tmp_path}/b/outer", config={"tier.cache.dir": "a/../cache"}).close()
    assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize("place", ["a", "a/cache", "link/cache", "a/./b/../cache"])
def test_a_cache_inside_a_log_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "a")
    files = {*(tmp_path / "a").rglob("*")}
    (tmp_path / "link").symlink_to("a", target_is_directory=True)
    (tmp_path / "tier").mkdir()
    uri, config = f"file://{tmp_path / 'tier'}", {"tier.cache.dir": place}
    text = f"tier.cache.dir {place} is inside the log directory a: use a folder"
    with pytest.raises(ConfigError, match=text):
        open_engine(["b", "a"], tier=uri, config=config)
    with pytest.raises(ConfigError, match=text):
        open_reader("a", tier=uri, config=config)
    with pytest.raises(ConfigError, match=text):
        restore(uri, "a", config=config)
    assert {*(tmp_path / "a").rglob("*")} == files
    with open_reader("a", config=config) as reader:  # without a tier, there is no cache
        assert [record.value for record in reader.log("t", 0).records()] == [b"v"]


def test_names_that_only_look_alike_are_fine(tmp_path: Path) -> None:
    with open_engine([tmp_path / "a", tmp_path / "ab"]) as engine:
        engine.create_topic("t", partitions=2)
    assert sorted(path.parent.name for path in tmp_path.glob("*/t-*")) == ["a", "ab"]


def test_one_directory_under_two_names_has_one_owner(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    (tmp_path / "link").symlink_to("a", target_is_directory=True)
    with open_engine(tmp_path / "a") as engine:
        with pytest.raises(LogDirLockedError):
            open_engine(tmp_path / "link")
        engine.log("t", 0).append(ONE)
    with open_engine(tmp_path / "link") as engine:
        assert engine.log("t", 0).offsets().log_end == 2


def test_files_of_an_engine_are_readable_by_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = filled(tmp_path / "above" / "logs")
    finally:
        os.umask(before)
    modes = {entry.stat().st_mode & 0o777 for entry in path.rglob("*") if entry.is_file()}
    assert modes == {0o600}
    assert {entry.stat().st_mode & 0o777 for entry in (path.parent, path, path / "t-0")} == {0o700}


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "a")
    foreign = {"notes.txt": b"n", "t-0/notes": b"n", "lost+found/x": b"n", "t-0/0001.log.bak": b"n", "x-y/z": b""}
    for name, data in foreign.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    for _ in range(2):
        with open_engine(path) as engine:
            assert list(engine.topics()) == ["t"]
            engine.log("t", 0).append(ONE)
            engine.log("t", 0).roll()
    assert {name: (path / name).read_bytes() for name in foreign} == foreign


@pytest.mark.parametrize("name", ["00000000000000000000.log", "leader-epoch-checkpoint", "partition.metadata"])
def test_links_in_a_log_are_not_followed(tmp_path: Path, name: str) -> None:
    path = filled(tmp_path / "a", "t", "u")
    elsewhere = tmp_path / "elsewhere"
    (path / "t-0" / name).rename(elsewhere)
    (path / "t-0" / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with open_engine(path) as engine:
        with pytest.raises(StorageError):
            engine.log("t", 0).append(ONE)
        assert engine.log("u", 0).append(ONE).base_offset == 1
    assert elsewhere.read_bytes() == before
    (path / "t-0" / name).unlink()
    elsewhere.rename(path / "t-0" / name)
    with open_engine(path) as engine:
        assert [record.value for record in engine.log("t", 0).records()] == [b"v"]


def test_a_link_with_the_name_of_a_log_is_ignored(tmp_path: Path) -> None:
    path = filled(tmp_path / "a", "t", "u")
    (path / "t-0").rename(tmp_path / "t-0")
    (path / "t-0").symlink_to(tmp_path / "t-0", target_is_directory=True)
    with open_engine(path) as engine:
        assert "t" not in engine.topics()
        with pytest.raises(TopicExistsError):
            engine.create_topic("t")
    assert (tmp_path / "t-0" / "00000000000000000000.log").stat().st_size


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_behind_a_link_keeps_its_checkpoints_and_its_recovery(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_clean: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    path = filled(tmp_path / "a", "t", "u")
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        (path / name).write_bytes(b"0\n1\nt 0 1\n")
    (path / "t-0").rename(tmp_path / "t-0")
    (path / "t-0").symlink_to(tmp_path / "t-0", target_is_directory=True)
    marker = path / ".kafka_cleanshutdown"
    if not is_clean:
        marker.unlink()
    for _ in range(2):
        with open_engine(path) as engine:
            engine.log("u", 0).append(ONE)
            with pytest.raises(TopicExistsError):
                engine.create_topic("t")
        for name in ("recovery-point", "log-start", "cleaner"):
            assert b"t 0 1\n" in (path / f"{name}-offset-checkpoint").read_bytes()
        assert marker.exists() is is_clean
    assert caplog.text.count(f"symbolic link: path={path}/t-0") == 2


def test_links_to_folders_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker opens a log behind a link, and does not start if the link leads to another folder."""
    path = filled(tmp_path / "a", "t", "u")
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"):
        (path / name).unlink()  # without a checkpoint, only the link shows that the log exists
    (path / "t-0").rename(tmp_path / "t-0")
    (tmp_path / "tier").mkdir()
    for name in ("t-0", "tier"):
        (path / name).symlink_to(tmp_path / name, target_is_directory=True)
    (path / "loop").symlink_to("loop")
    (path / "broken").symlink_to("missing")
    (path / "file").symlink_to(path / "stratalog-topics.json")
    for use in (open_reader, open_engine):
        caplog.clear()
        with use(path) as opened:
            assert list(opened.topics()) == ["u"]
            opened.topics()
        assert [record.getMessage().partition(": mount")[0] for record in caplog.records] == [
            f"a folder is ignored, because it is a symbolic link: path={path}/{name}" for name in ("t-0", "tier")
        ]


def test_a_directory_that_became_read_only_refuses_appends_and_continues_reading(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    files = FaultyVfs()

    def refuse(operation: str, path: str) -> None:
        if operation not in {"open", "read", "sync", "lock", "map"}:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with open_engine([tmp_path / "a", tmp_path / "b"], env=Env(files=files)) as engine:
        log = engine.log("t", 0)
        log.append(ONE)
        engine.flush()
        files.rule = refuse
        with pytest.raises(StorageError, match="read-only"):
            log.append(ONE)
        with pytest.raises(StorageError, match="read-only"):
            engine.create_topic("u")
        assert len(list(log.records())) == 2
        files.rule = None
    with open_engine(tmp_path / "a") as engine:
        assert len(list(engine.log("t", 0).records())) == 2


def test_files_of_an_earlier_topic_in_a_returning_directory_are_no_part_of_the_new_topic(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with open_engine(dirs) as engine:
        engine.create_topic("t", partitions=2)
        for partition in range(2):
            engine.log("t", partition).append(ONE)
    with open_engine(dirs[0]) as engine:
        engine.delete_topic("t")
        engine.create_topic("t")
    for _ in range(2):
        with open_engine(dirs) as engine:
            with pytest.raises(ConfigError, match="the folder is from an earlier topic of this name"):
                engine.log("t", 1)
            assert engine.log("t", 0).offsets().log_end == 0
        assert (dirs[1] / "t-1" / "00000000000000000000.log").stat().st_size


def test_a_topic_that_a_broker_recreated_is_that_topic(tmp_path: Path) -> None:
    path = filled(tmp_path / "a")
    anew = TopicId.from_uuid(uuid.UUID(int=5))
    (path / "t-0" / "partition.metadata").write_bytes(format_topic_id(anew))
    with open_engine(path) as engine:
        assert engine.log("t", 0).topic_id == anew


def test_a_log_that_vanished_does_not_keep_the_others_from_serving(tmp_path: Path) -> None:
    path = filled(tmp_path / "a", "t", "u")
    with open_engine(path) as engine:
        shutil.rmtree(path / "t-0")
        with pytest.raises(StorageError):
            engine.log("t", 0).roll()
        assert [record.value for record in engine.log("u", 0).records()] == [b"v"]
    assert not (path / ".kafka_cleanshutdown").exists()
    with open_engine(path) as engine:
        assert (list(engine.topics()), engine.log("u", 0).offsets().log_end) == (["u"], 1)


class WallClock(ManualClock):
    """A clock whose wall time the test changes independently of its monotonic time."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_clock_that_is_set_back_loses_nothing(tmp_path: Path) -> None:
    clock = WallClock(now_ms=1_000_000_000)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        engine.create_topic("t", config={"message.timestamp.type": "LogAppendTime", "segment.ms": 1000})
        log = engine.log("t", 0)
        for step in (0, 500, -900_000_000, 5, -5, 2000):
            clock.ahead_ms += step
            log.append(ONE, "durable")
            engine.run_duties()
        assert [record.offset for record in log.records()] == list(range(6))
        first = next(log.records())
        assert log.offset_for_timestamp(first.timestamp_ms) == 0
    clock.ahead_ms = -999_999_999
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        engine.apply_retention()
        assert [record.offset for record in engine.log("t", 0).records()] == list(range(6))
