from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.config.engine_settings import Limits
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    LogDirError,
    LogDirLockedError,
    LogDirNotFoundError,
    LogDirOfflineError,
    LogDirPermissionError,
    NotAFileError,
    SystemLimitError,
)
from stratalog.testing.faults import StoreBench, failing
from stratalog_local import stratalog_segment_stores

# A JVM implements FileChannel.tryLock by a POSIX record lock over the whole file.
RECORD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
"""
TRY_RECORD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("refused")
    else:
        print("locked")
"""
OTHER_ENGINE = """
import sys
from stratalog.env import PosixVfs
assert PosixVfs().lock(sys.argv[1]) is not None
print("locked", flush=True)
sys.stdin.read()
"""


def ran(code: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own interpreter and text


@pytest.fixture
def folder(bench: StoreBench) -> Path:
    return Path(bench.location)


# --- the lock --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[RECORD_LOCK, OTHER_ENGINE], ids=["broker", "engine"])
def owner(request: pytest.FixtureRequest, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lock of the directory until its input ends."""
    folder.mkdir()
    (folder / ".lock").touch()
    with ran(request.param, folder / ".lock") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_another_process_keeps_us_out(bench: StoreBench, owner: subprocess.Popen[str]) -> None:
    with bench() as store, bench(read_only=True) as reader:
        assert reader.is_acquired_elsewhere()
        with pytest.raises(LogDirLockedError):
            store.acquire()
        owner.communicate()
        assert not reader.is_acquired_elsewhere()
        store.acquire()


def test_a_broker_cannot_lock_an_acquired_directory(bench: StoreBench, folder: Path) -> None:
    """A plain POSIX record lock would be released when the process closes any descriptor of the lock file."""
    with bench.acquired():
        os.close(os.open(folder / ".lock", os.O_RDWR))
        assert ran(TRY_RECORD_LOCK, folder / ".lock").communicate()[0] == "refused\n"
    assert ran(TRY_RECORD_LOCK, folder / ".lock").communicate()[0] == "locked\n"


def test_the_lock_file_stays(bench: StoreBench, folder: Path) -> None:
    """If the lock file were deleted, two owners could lock two different files with the same name."""
    with bench.acquired():
        pass
    assert (folder / ".lock").exists()
    with bench.acquired(), bench() as other_store, pytest.raises(LogDirLockedError):
        other_store.acquire()


def test_acquiring_twice_is_fine(bench: StoreBench) -> None:
    with bench.acquired() as store:
        store.acquire()
        assert len(bench.files.open_paths) == 1


# --- locations, folders and permissions ------------------------------------------------------------------------------


def test_files_are_private_whatever_the_umask(bench: StoreBench, folder: Path) -> None:
    before = os.umask(0)
    try:
        with bench.acquired() as store:
            files = store.open_log("a-0", create=True)
            files.open_segment("00000000000000000000.log", create=True).close()
            files.open_index("00000000000000000000.index", max_bytes=100, writable=True).close()
            files.replace_small("small", b"")
            store.replace_small("small", b"")
    finally:
        os.umask(before)
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert len(modes) == 6
    assert {mode for path, mode in modes.items() if (folder / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (folder / path).is_file()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folders_above_are_made_and_durable(tmp_path: Path) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "a" / "b" / "logs"))
    with bench.acquired():
        pass
    bench.close()
    calls = bench.files.names("make folder", "sync folder")
    assert calls == [
        ("make folder", "a"),
        ("sync folder", tmp_path.name),
        ("make folder", "b"),
        ("sync folder", "a"),
        ("make folder", "logs"),
        ("sync folder", "b"),
    ]


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://{}/"])
def test_locations_are_paths_or_file_uris(tmp_path: Path, form: str) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, form.format(tmp_path / "logs"))
    with bench.acquired() as store:
        assert store.path() == str(tmp_path / "logs")
        assert store.path("x") == str(tmp_path / "logs" / "x")
    bench.close()
    assert (tmp_path / "logs").is_dir()


@pytest.mark.parametrize("location", ["", "file://"])
def test_an_empty_location_is_not_the_current_folder(location: str) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, location)
    with pytest.raises(ConfigError, match="is not a log directory"):
        bench()
    bench.close()


def test_a_relative_location_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, "logs")
    with bench.acquired():
        pass
    bench.close()
    assert (tmp_path / "logs").is_dir()


def test_a_file_is_no_directory(bench: StoreBench, folder: Path) -> None:
    folder.touch()
    with bench() as store:
        with pytest.raises(LogDirError):
            store.acquire()
        with pytest.raises(LogDirNotFoundError):
            store.logs()


def test_providers_open_nothing(bench: StoreBench) -> None:
    with bench():
        assert bench.files.done == []


def test_reading_touches_nothing(bench: StoreBench) -> None:
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        files.open_segment("00000000000000000000.log", create=True).close()
        store.replace_small("small", b"1")
    bench.files.done.clear()
    with bench(read_only=True) as store:
        files = store.open_log(*store.logs())
        segment = files.open_segment("00000000000000000000.log")
        segment.read(0, 10)
        segment.close()
        files.open_index("00000000000000000000.index", max_bytes=100, writable=False).close()
        assert store.read_small("small") == b"1"
        assert not store.is_acquired_elsewhere()
    assert {operation for operation, _ in bench.files.done} <= {"open", "read"}


def test_open_files_are_closed_with_their_store(bench: StoreBench) -> None:
    """After the lock is released, a late write could change files of the next owner."""
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        segment = files.open_segment("00000000000000000000.log", create=True, preallocate_bytes=1000)
        index = files.open_index("00000000000000000000.index", max_bytes=100, writable=True)
        segment.append(b"x")
        index.append(b"x" * 8)
    bench.files.done.clear()
    for late in (
        store.acquire,
        store.logs,
        lambda: store.read_small("x"),
        lambda: store.replace_small("x", b""),
        files.list,
        lambda: segment.append(b"x"),
        lambda: index.append(b"x"),
    ):
        with pytest.raises(ClosedError):
            late()
    segment.close()
    index.close()
    assert bench.files.names("truncate", "write", "create", "rename") == []
    with pytest.raises(ClosedError):
        segment.read(0, 1)


# --- small files -----------------------------------------------------------------------------------------------------


def test_small_files_become_durable_in_order(bench: StoreBench) -> None:
    """Without the sync before the rename, a checkpoint may be empty after a power loss (KAFKA-16541)."""
    with bench.acquired() as store:
        bench.files.done.clear()
        store.replace_small("checkpoint", b"1")
        assert bench.files.names("create", "write", "sync", "rename", "sync folder") == [
            ("create", "checkpoint.tmp"),
            ("write", "checkpoint.tmp"),
            ("sync", "checkpoint.tmp"),
            ("rename", "checkpoint"),
            ("sync folder", "logs"),
        ]
        bench.files.done.clear()
        store.remove_small("checkpoint")
        assert bench.files.names("remove", "sync folder") == [("remove", "checkpoint"), ("sync folder", "logs")]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EIO, LogDirOfflineError), (errno.ENOSPC, DiskFullError), (errno.EACCES, LogDirPermissionError)],
)
def test_a_small_file_that_cannot_be_replaced_stays(
    bench: StoreBench, folder: Path, operation: str, code: int, error: type[LogDirError]
) -> None:
    with bench.acquired() as store:
        store.replace_small("checkpoint", b"old")
        bench.files.rule = failing(operation, code)
        with pytest.raises(error) as caught:
            store.replace_small("checkpoint", b"new")
        assert caught.value.path == str(folder / "checkpoint")
        assert store.read_small("checkpoint") == b"old"
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "checkpoint"]
        store.replace_small("checkpoint", b"newer")
        assert store.read_small("checkpoint") == b"newer"


def test_a_small_file_that_does_not_fit_stays(bench: StoreBench, folder: Path) -> None:
    with bench.acquired() as store:
        store.replace_small("checkpoint", b"old")
        bench.files.room_bytes = 2
        with pytest.raises(DiskFullError):
            store.replace_small("checkpoint", b"new")
        assert store.read_small("checkpoint") == b"old"
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "checkpoint"]


def test_a_failed_sync_of_a_folder_is_not_retried(bench: StoreBench) -> None:
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        bench.files.rule = failing("sync folder", errno.EIO)
        with pytest.raises(LogDirOfflineError):
            files.sync()
        bench.files.done.clear()
        with pytest.raises(LogDirOfflineError):
            files.sync()
        with pytest.raises(LogDirOfflineError):
            files.replace_small("checkpoint", b"")
        assert bench.files.names("sync folder") == []


def test_the_rest_of_a_small_file_after_a_crash_is_overwritten(bench: StoreBench, folder: Path) -> None:
    with bench.acquired() as store:
        (folder / "checkpoint.tmp").write_bytes(b"half of a longer fi")
        store.replace_small("checkpoint", b"whole")
        assert store.read_small("checkpoint") == b"whole"
        assert not (folder / "checkpoint.tmp").exists()


def test_small_files_are_bounded(tmp_path: Path) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path), limits=Limits(checkpoint_bytes=1024))
    with bench(read_only=True) as store:
        (tmp_path / "small").write_bytes(bytes(1024))
        assert store.read_small("small") == bytes(1024)
        (tmp_path / "small").write_bytes(bytes(1025))
        with pytest.raises(CorruptCheckpointError) as caught:
            store.read_small("small")
        assert caught.value.file == str(tmp_path / "small")
    bench.close()


# --- folders ---------------------------------------------------------------------------------------------------------


def test_new_renamed_and_removed_logs_are_durable(bench: StoreBench) -> None:
    with bench.acquired() as store:
        bench.files.done.clear()
        store.open_log("a-0", create=True)
        store.rename_log("a-0", "b-0")
        store.remove_log("b-0")
        assert bench.files.names("make folder", "rename", "remove folder", "sync folder") == [
            ("make folder", "a-0"),
            ("sync folder", "logs"),
            ("rename", "b-0"),
            ("sync folder", "logs"),
            ("remove folder", "b-0"),
            ("sync folder", "logs"),
        ]


def test_a_log_is_deleted_with_all_its_files(bench: StoreBench, folder: Path) -> None:
    with bench.acquired() as store:
        store.open_log("a-0", create=True).replace_small("x", b"1")
        (folder / "a-0" / "inner").mkdir()
        (folder / "a-0" / "inner" / "y").touch()
        store.remove_log("a-0")
        store.remove_log("a-0")
        assert store.logs() == []


def test_a_link_to_a_folder_is_deleted_without_the_files_of_its_target(
    bench: StoreBench, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "kept").touch()
    with bench.acquired() as store:
        (folder / "a-0").symlink_to(target)
        store.remove_log("a-0")
    assert not (folder / "a-0").is_symlink()
    assert (target / "kept").exists()


def test_a_file_with_the_name_of_a_log_is_not_deleted(bench: StoreBench, folder: Path) -> None:
    with bench.acquired() as store:
        (folder / "a-0").touch()
        store.remove_log("a-0")
    assert (folder / "a-0").exists()


def test_a_missing_log_cannot_be_renamed(bench: StoreBench) -> None:
    with bench.acquired() as store, pytest.raises(LogDirNotFoundError):
        store.rename_log("a-0", "b-0")


def test_a_log_is_not_renamed_onto_one_that_has_files(bench: StoreBench) -> None:
    with bench.acquired() as store:
        store.open_log("a-0", create=True)
        store.open_log("b-0", create=True).replace_small("x", b"1")
        with pytest.raises(NotAFileError, match="move the folder away") as caught:
            store.rename_log("a-0", "b-0")
        assert caught.value.path == store.path("b-0")
        assert store.open_log("b-0").read_small("x") == b"1"


def test_a_link_in_the_place_of_a_segment_is_not_followed(bench: StoreBench, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        (folder / "a-0" / "00000000000000000000.log").symlink_to(secret)
        segment = files.open_segment("00000000000000000000.log")
        with pytest.raises(NotAFileError, match="symbolic link"):
            segment.read(0, 6)
        segment.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.EACCES, LogDirPermissionError),
        (errno.EPERM, LogDirPermissionError),
        (errno.EROFS, LogDirOfflineError),
        (errno.EMFILE, SystemLimitError),
        (errno.ENFILE, SystemLimitError),
        (errno.ENOMEM, SystemLimitError),
        (errno.EISDIR, NotAFileError),
        (errno.ELOOP, NotAFileError),
        (errno.EDQUOT, DiskFullError),
        (errno.EIO, LogDirOfflineError),
        (errno.ENOENT, LogDirNotFoundError),
    ],
)
def test_errors_of_the_system_become_typed_errors(bench: StoreBench, code: int, error: type[LogDirError]) -> None:
    bench.files.rule = failing("lock", code)
    with bench() as store:
        with pytest.raises(error) as caught:
            store.acquire()
        place = f"{bench.location}/.lock" if error is NotAFileError else bench.location
        assert caught.value.path == place
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("has_lock_file", [True, False])
def test_a_denied_lock_names_the_lock_file_if_it_exists(bench: StoreBench, folder: Path, has_lock_file: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    with bench() as store:
        folder.mkdir()
        if has_lock_file:
            (folder / ".lock").touch()
        bench.files.rule = failing("lock", errno.EACCES)
        with pytest.raises(LogDirPermissionError) as caught:
            store.acquire()
        assert caught.value.path == (f"{bench.location}/.lock" if has_lock_file else bench.location)


def test_the_lock_is_no_plain_record_lock(bench: StoreBench, folder: Path) -> None:
    """The lock also excludes a second engine in the same process, which a POSIX record lock does not."""
    with bench.acquired():
        descriptor = os.open(folder / ".lock", os.O_RDWR)
        try:
            with pytest.raises(OSError, match="temporarily unavailable"):
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
