"""FIFOs, sockets, folders and links in place of regular files: no call hangs, and only the affected log fails."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.errors import ConfigError, NotAFileError

ZERO = "00000000000000000000"
SECOND = "00000000000000000001"


@contextmanager
def bound_socket(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(path.name)
    finally:
        os.chdir(before)
    yield


def make_socket(path: Path) -> None:
    with bound_socket(path):
        pass


KINDS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "socket": make_socket,
    "link": lambda path: path.symlink_to(path.name),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def filled(path: Path) -> Path:
    """Write two logs of three segments each, and return the path."""
    with open_engine(path) as engine:
        for topic in ("good", "bad"):
            engine.create_topic(topic)
            log = engine.log(topic, 0)
            for value in (b"1", b"2", b"3"):
                log.append([Record(value=value)])
                log.roll()
    return path


def put_in_place(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@kinds
@pytest.mark.parametrize(
    "name",
    [
        f"{ZERO}.log",
        f"{SECOND}.log",
        "00000000000000000003.log",
        f"{SECOND}.index",
        "00000000000000000003.timeindex",
        "partition.metadata",
        "leader-epoch-checkpoint",
    ],
)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.long
def test_only_the_log_that_has_it_is_refused(tmp_path: Path, kind: str, name: str, is_clean: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    path = filled(tmp_path / "a")
    put_in_place(kind, path / "bad-0" / name)
    if not is_clean:
        (path / ".kafka_cleanshutdown").unlink()
    with open_engine(path) as engine:
        with pytest.raises(NotAFileError, match=name) as caught:
            engine.log("bad", 0)
        assert caught.value.path.endswith(f"bad-0/{name}")
        good_log = engine.log("good", 0)
        good_log.append([Record(value=b"4")], "durable")
        engine.flush()
        assert [record.value for record in good_log.records()] == [b"1", b"2", b"3", b"4"]
        engine.create_topic("more")
    with open_reader(path) as reader:
        assert len(list(reader.log("good", 0).records())) == 4
        with pytest.raises(NotAFileError):
            list(reader.log("bad", 0).records())


@kinds
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_snapshot_that_is_no_file_is_rebuilt_or_skipped(tmp_path: Path, kind: str, is_clean: bool) -> None:  # noqa: FBT001 - the same
    path = filled(tmp_path / "a")
    put_in_place(kind, path / "bad-0" / f"{SECOND}.snapshot")
    if not is_clean:
        (path / ".kafka_cleanshutdown").unlink()
    with open_engine(path) as engine:
        assert [record.value for record in engine.log("bad", 0).records()] == [b"1", b"2", b"3"]


@kinds
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".kafka_cleanshutdown",
    ],
)
@pytest.mark.long
def test_a_checkpoint_that_is_no_file_counts_as_missing(tmp_path: Path, kind: str, name: str) -> None:
    path = filled(tmp_path / "a")
    put_in_place(kind, path / name)
    engine = open_engine(path)
    for topic in ("good", "bad"):
        log = engine.log(topic, 0)
        log.append([Record(value=b"4")], "durable")
        assert [record.value for record in log.records()] == [b"1", b"2", b"3", b"4"]
    # a rename can replace a FIFO by a file, but not a folder
    if kind == "folder" and name != "cleaner-offset-checkpoint":
        with pytest.raises(NotAFileError, match=name):
            engine.close()
    else:
        engine.close()
    with open_engine(path) as engine:
        assert engine.log("good", 0).offsets().log_end == 4
        if kind == "folder":
            (path / name).rmdir()


@kinds
@pytest.mark.parametrize("name", ["meta.properties", ".lock", "stratalog-topics.json"])
@pytest.mark.long
def test_a_directory_whose_own_file_is_none_is_refused_by_name(tmp_path: Path, kind: str, name: str) -> None:
    path = filled(tmp_path / "a")
    put_in_place(kind, path / name)
    with pytest.raises(NotAFileError, match=name):
        open_engine(path)
    if kind != "folder":
        (path / name).unlink()
    else:
        (path / name).rmdir()
    with open_engine(path) as engine:
        assert engine.log("good", 0).offsets().log_end == 3


@kinds
def test_a_file_that_is_no_settings_file_is_refused(tmp_path: Path, kind: str) -> None:
    put_in_place(kind, tmp_path / "stratalog.toml")
    with pytest.raises(ConfigError, match=r"stratalog\.toml"):
        open_engine(tmp_path / "a", config=tmp_path / "stratalog.toml")


@kinds
def test_a_file_with_the_name_of_a_future_segment_takes_one_log_out_of_service(tmp_path: Path, kind: str) -> None:
    path = filled(tmp_path / "a")
    with open_engine(path) as engine:
        bad_log, good_log = engine.log("bad", 0), engine.log("good", 0)
        bad_log.append([Record(value=b"4")])
        put_in_place(kind, path / "bad-0" / "00000000000000000004.log")
        if kind == "folder":
            with pytest.raises(NotAFileError):
                bad_log.roll()
        else:
            bad_log.roll()  # the roll removes other kinds of entries, as it removes files that a crash left
        good_log.append([Record(value=b"4")], "durable")
        assert [record.value for record in bad_log.records()] == [b"1", b"2", b"3", b"4"]
