"""Files that another process removes, replaces or truncates during writes: no later record is called durable."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.engine.engine import Engine
from stratalog.env import Env
from stratalog.errors import FileReplacedError, LogDirNotFoundError, StorageError
from stratalog.testing.faults import FaultyVfs

ZERO = "00000000000000000000"
LOG = f"t-0/{ZERO}.log"


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("away"))


DONE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "removed": (LOG, Path.unlink, "removed"),
    "renamed": (LOG, rename, "removed"),
    "replaced": (LOG, replace_by_a_copy, "replaced"),
    "its folder renamed": ("t-0", rename, "removed"),
    "its folder removed": ("t-0", shutil.rmtree, "removed"),
    "the directory renamed": ("", rename, "removed"),
}


@pytest.fixture(params=[1000, 8], ids=["open", "closed"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Return an engine with logs of one durable record each.

    The files of the first log are open, or not, depending on the parameter. The tests close the engine.
    """
    new_engine = open_engine(tmp_path / "a", config={"limits.open.files": request.param})
    for topic in ("t", *(f"other{number}" for number in range(10)), "good"):
        new_engine.create_topic(topic)
        new_engine.log(topic, 0).append([Record(value=b"1")], "durable")
    return new_engine


def close(engine: Engine) -> None:
    with contextlib.suppress(StorageError):  # the test may have deleted the directory
        engine.close()


@pytest.mark.parametrize("what", DONE)
@pytest.mark.long
def test_no_append_into_a_file_without_a_name_is_acknowledged_as_durable(
    tmp_path: Path, engine: Engine, what: str
) -> None:
    place, change, reason = DONE[what]
    change(tmp_path / "a" / place)
    log = engine.log("t", 0)
    with pytest.raises(FileReplacedError, match=reason) as caught:
        log.append([Record(value=b"2")], "durable")
    assert caught.value.path.endswith(LOG)
    with pytest.raises(FileReplacedError):
        log.append([Record(value=b"3")])
    assert log.offsets().recovery_point == 1
    if "directory" not in what:
        engine.log("good", 0).append([Record(value=b"2")], "durable")
        assert engine.log("good", 0).offsets().recovery_point == 2
    close(engine)


@pytest.mark.parametrize("call", ["flush", "roll", "close"])
def test_other_calls_that_make_records_durable_notice_it_too(tmp_path: Path, engine: Engine, call: str) -> None:
    log = engine.log("t", 0)
    log.append([Record(value=b"2")])
    (tmp_path / "a" / LOG).unlink()
    calls: dict[str, Callable[[], object]] = {"flush": log.flush, "roll": log.roll, "close": engine.close}
    with pytest.raises(FileReplacedError, match="removed"):
        calls[call]()
    close(engine)
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_a_file_that_took_the_name_is_not_written_to(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "a" / LOG
    path.unlink()
    path.write_bytes(b"another file")
    with pytest.raises(FileReplacedError, match="replaced"):
        engine.log("t", 0).append([Record(value=b"2")], "durable")
    close(engine)
    assert path.read_bytes() == b"another file"


def test_removed_indexes_are_rebuilt_at_the_next_opening(tmp_path: Path, engine: Engine) -> None:
    log = engine.log("t", 0)
    for suffix in (".index", ".timeindex"):
        (tmp_path / "a" / f"t-0/{ZERO}{suffix}").unlink()
    log.append([Record(value=b"2")], "durable")
    with contextlib.suppress(FileReplacedError):  # the roll notices a missing index only if the index is not open
        log.roll()
    close(engine)
    with open_engine(tmp_path / "a") as reopened:
        log = reopened.log("t", 0)
        assert [record.value for record in log.records()] == [b"1", b"2"]
        log.append([Record(value=b"3")], "durable")


def test_a_file_that_is_cut_is_noticed_by_the_next_sync(tmp_path: Path, engine: Engine) -> None:
    log = engine.log("t", 0)
    log.append([Record(value=b"2")])
    path = tmp_path / "a" / LOG
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(FileReplacedError, match="truncated the file to"):
        log.flush()
    assert log.offsets().recovery_point == 1
    close(engine)


def test_a_truncation_of_our_own_beside_a_sync_is_no_damage(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path / "a", env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.append([Record(value=b"1")], "durable")
        log.append([Record(value=b"2")])
        log.truncate_to(1)
        log.append([Record(value=b"3")], "durable")
        assert [record.value for record in log.records()] == [b"1", b"3"]
        assert log.healthy


def test_a_missing_folder_is_an_error_of_its_log_only(tmp_path: Path, engine: Engine) -> None:
    shutil.rmtree(tmp_path / "a" / "t-0")
    with pytest.raises((FileReplacedError, LogDirNotFoundError)):
        engine.log("t", 0).roll()
    engine.log("good", 0).append([Record(value=b"2")], "durable")
    engine.create_topic("more")
    close(engine)
