"""A process that has too many open files: calls fail with a retriable error, and the directory stays online."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.engine.engine import Engine
from stratalog.env import Env
from stratalog.errors import LogDirOfflineError, StorageError, SystemLimitError
from stratalog.testing.faults import FaultyVfs, failing

NEEDS_DESCRIPTOR = {"open", "create", "map", "lock", "sync folder"}
LOGS = 6
REAL = """
import os, resource, sys
import stratalog
from stratalog.errors import SystemLimitError

engine = stratalog.open_engine(sys.argv[1])
logs = []
for index in range(8):
    engine.create_topic(f"t{index}", config={"segment.bytes": 2000})
    logs.append(engine.log(f"t{index}", 0))
    logs[-1].append([stratalog.Record(value=b"v" * 100)])
taken = []
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for round_ in range(39):
    for log in logs:
        log.append([stratalog.Record(value=b"v" * 100)], "durable")
try:
    engine.create_topic("new")
except SystemLimitError:
    pass
for descriptor in taken:
    os.close(descriptor)
assert [len(list(log.records())) for log in logs] == [40] * 8
engine.close()
"""


def few_descriptors(files: FaultyVfs, max_open: int) -> Callable[[str, str], None]:
    """Return a rule that allows this number of open descriptors, like the limit of a process."""

    def rule(operation: str, path: str) -> None:
        if operation in NEEDS_DESCRIPTOR and len(files.open_paths) >= max_open:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    return rule


@pytest.fixture
def files() -> FaultyVfs:
    return FaultyVfs()


def opened(folder: Path, files: FaultyVfs) -> Engine:
    return open_engine(folder, env=Env(files=files), config={"limits.open.files": 1000})


def fill(engine: Engine) -> None:
    for index in range(LOGS):
        engine.create_topic(f"t{index}", config={"segment.bytes": 1000})
        engine.log(f"t{index}", 0).append([Record(value=b"0")])


def values(engine: Engine, index: int) -> list[bytes | None]:
    return [record.value for record in engine.log(f"t{index}", 0).records()]


def test_idle_files_make_room_for_all_that_logs_need(tmp_path: Path, files: FaultyVfs) -> None:
    """Three descriptors are enough for the files of six logs: appends, syncs, rolls, checkpoints, a new topic, stop."""
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
        files.rule = few_descriptors(files, 4)  # the lock file needs one
        for number in range(1, 30):
            for index in range(LOGS):
                engine.log(f"t{index}", 0).append([Record(value=b"%d" % number)], "durable")
        engine.flush()
        engine.create_topic("more")
    with opened(tmp_path / "a", files) as engine:
        assert [values(engine, index) for index in range(LOGS)] == [[b"%d" % number for number in range(30)]] * LOGS


def test_without_any_descriptor_each_call_fails_and_succeeds_later(tmp_path: Path, files: FaultyVfs) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
        engine.flush()
        files.rule = few_descriptors(files, 0)
        log = engine.log("t0", 0)
        calls: list[Callable[[], object]] = [
            lambda: engine.create_topic("more"),  # closes all idle descriptors
            lambda: log.append([Record(value=b"1")]),
            lambda: log.append([Record(value=b"1")], "durable"),
            log.roll,
            lambda: list(log.records()),
        ]
        for call in calls:
            with pytest.raises(SystemLimitError) as caught:
                call()
            assert caught.value.retriable
        assert log.healthy
        files.rule = None
        log.append([Record(value=b"1")], "durable")
        log.roll()
        engine.create_topic("more")
        assert values(engine, 0) == [b"0", b"1"]
    with opened(tmp_path / "a", files) as engine:
        assert values(engine, 0) == [b"0", b"1"]
        assert engine.log("more", 0).offsets().log_end == 0


@pytest.mark.parametrize("operation", sorted(NEEDS_DESCRIPTOR - {"lock"}))
@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.long
def test_the_log_has_all_or_nothing_of_an_append_if_any_system_call_is_refused(
    tmp_path: Path, files: FaultyVfs, operation: str, number: int
) -> None:
    """Appends that roll; the n-th open, map or folder sync is refused, even after idle descriptors were closed."""
    with opened(tmp_path / "a", files) as engine:
        engine.create_topic("t0", config={"segment.bytes": 400})
        log, remaining = engine.log("t0", 0), [number]
        acknowledged = list[bytes | None]()

        def rule(system_call: str, path: str) -> None:
            if system_call == operation and "t0-0" in path:
                remaining[0] -= 1
                if remaining[0] <= 0:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        files.rule = rule
        refused_values = list[bytes]()
        for index in range(12):
            value = b"%02d" % index + b"v" * 90
            try:
                log.append([Record(value=value)], "durable")
                acknowledged.append(value)
            except SystemLimitError:
                files.rule = None
                if [record.value for record in log.records()] == acknowledged:
                    log.append([Record(value=value)], "durable")  # a caller retries after a retriable error
                else:
                    refused_values.append(value)  # the records are written, but not synced
                acknowledged.append(value)
        files.rule = None
        assert [record.value for record in log.records()] == acknowledged
        assert len(acknowledged) == 12
        assert log.healthy
    with opened(tmp_path / "a", files) as engine:
        assert values(engine, 0) == acknowledged


def test_a_log_that_could_not_be_opened_for_that_opens_when_it_is_asked_for(tmp_path: Path, files: FaultyVfs) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
    files.rule = failing("open", errno.EMFILE, path="t3-0/partition.metadata", times=100)
    with opened(tmp_path / "a", files) as engine:
        assert values(engine, 2) == [b"0"]
        for _ in range(2):
            with pytest.raises(SystemLimitError):
                engine.log("t3", 0)
        files.rule = None
        assert values(engine, 3) == [b"0"]
        engine.log("t3", 0).append([Record(value=b"1")])
    with opened(tmp_path / "a", files) as engine:
        assert values(engine, 3) == [b"0", b"1"]


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EAGAIN, errno.EMFILE])
def test_a_failed_sync_is_final_whatever_its_error_number(tmp_path: Path, files: FaultyVfs, code: int) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
        log = engine.log("t0", 0)
        files.rule = failing("sync", code, path=".log")
        for _ in range(2):
            with pytest.raises(LogDirOfflineError):
                log.append([Record(value=b"1")], "durable")


def test_a_write_without_memory_leaves_nothing_behind(tmp_path: Path, files: FaultyVfs) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
        log = engine.log("t0", 0)
        files.rule = failing("write", errno.ENOMEM, path=".log")
        with pytest.raises(SystemLimitError):
            log.append([Record(value=b"1")])
        log.append([Record(value=b"2")], "durable")
        assert values(engine, 0) == [b"0", b"2"]


def test_an_append_that_cannot_be_rolled_back_is_not_retriable(tmp_path: Path, files: FaultyVfs) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
        log = engine.log("t0", 0)

        def rule(operation: str, path: str) -> None:
            if operation in {"write", "truncate"} and path.endswith(".log"):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)

        files.rule = rule
        with pytest.raises(LogDirOfflineError):
            log.append([Record(value=b"1")])
        files.rule = None
        with pytest.raises(StorageError) as caught:
            log.append([Record(value=b"2")])
        assert not caught.value.retriable


def test_an_engine_without_a_descriptor_for_a_directory_reports_it(tmp_path: Path, files: FaultyVfs) -> None:
    with opened(tmp_path / "a", files) as engine:
        fill(engine)
    files.rule = failing("lock", errno.EMFILE)
    with pytest.raises(SystemLimitError):
        opened(tmp_path / "a", files)
    with opened(tmp_path / "a", files) as engine:
        assert values(engine, 0) == [b"0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of a process are of Unix")
@pytest.mark.long
def test_a_real_process_at_its_limit_continues(tmp_path: Path) -> None:
    ended = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", REAL, str(tmp_path / "a")], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
