from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.env.posix_vfs import PosixVfs
from stratalog.env.vfs import FileStat


@pytest.fixture
def files() -> PosixVfs:
    return PosixVfs()


@pytest.fixture
def descriptor(files: PosixVfs, tmp_path: Path) -> Iterator[int]:
    """Yield the descriptor of a new file that is open for writing."""
    new_descriptor = files.open(str(tmp_path / "file"), write=True, create=True)
    yield new_descriptor
    files.close(new_descriptor)


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_files_are_made_once(files: PosixVfs, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        files.open(path, write=True)
    files.close(files.open(path, write=True, create=True))
    with pytest.raises(FileExistsError):
        files.open(path, write=True, create=True)


def test_files_open_for_reading_unless_asked(files: PosixVfs, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    descriptor = files.open(str(tmp_path / "file"))
    try:
        assert files.read(descriptor, 0, 3) == b"abc"
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.write(descriptor, 0, b"x")
    finally:
        files.close(descriptor)


def test_links_are_not_followed(files: PosixVfs, tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        files.open(str(tmp_path / "link"))


def test_descriptors_do_not_leak_into_children(descriptor: int) -> None:
    assert not os.get_inheritable(descriptor)


def test_reads_end_with_the_file(files: PosixVfs, descriptor: int) -> None:
    assert files.write(descriptor, 0, b"abcdef") == 6
    assert files.size_bytes(descriptor) == 6
    assert files.read(descriptor, 2, 3) == b"cde"
    assert files.read(descriptor, 4, 9) == b"ef"
    assert files.read(descriptor, 6, 9) == b""


def test_reads_continue_after_short_ones(files: PosixVfs, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(descriptor, 0, b"abcdefghij")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real(fd, min(size, 3), position))
    assert files.read(descriptor, 1, 8) == b"bcdefghi"
    assert files.read(descriptor, 1, 20) == b"bcdefghij"


def test_a_write_is_at_its_position_whatever_the_type_of_its_bytes(files: PosixVfs, descriptor: int) -> None:
    assert files.write(descriptor, 7, b"abc") == files.write(descriptor, 10, bytearray(b"def")) == 3
    assert files.write(descriptor, 13, memoryview(array("i", [1, 2]))) == 8
    assert files.read(descriptor, 0, 99) == bytes(7) + b"abcdef" + array("i", [1, 2]).tobytes()
    assert files.write(descriptor, 0, b"") == files.write(descriptor, 0, memoryview(b"")) == 0


def test_writes_continue_after_short_ones(files: PosixVfs, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, part, position: real(fd, part[:3], position))
    assert files.write(descriptor, 0, bytearray(b"abcdefgh")) == 8
    assert files.write(descriptor, 8, b"ijklmnop") == 8
    assert files.read(descriptor, 0, 99) == b"abcdefghijklmnop"


def test_a_full_disk_reports_the_number_of_written_bytes(files: PosixVfs, descriptor: int) -> None:
    """A limit on the size of files acts as a full disk: first a short write, then no byte is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert files.write(descriptor, 0, b"x" * 6 + b"y" * 6) == 10
        assert files.write(descriptor, 10, b"z") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files.read(descriptor, 0, 99) == b"x" * 6 + b"y" * 4


def test_a_device_without_room_reports_zero_written_bytes(files: PosixVfs) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        assert files.write(descriptor, 0, b"x") == 0
    finally:
        os.close(descriptor)


def test_other_failures_of_a_write_are_raised(files: PosixVfs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write(0, 0, b"x")


def test_allocated_space_can_be_written_through_a_map(files: PosixVfs, descriptor: int) -> None:
    files.allocate(descriptor, 10_000)
    assert files.size_bytes(descriptor) == 10_000
    assert os.fstat(descriptor).st_blocks * 512 >= 10_000
    mapped = files.map(descriptor, 10_000, write=True)
    mapped[5:8] = b"abc"
    files.sync(descriptor)
    assert files.read(descriptor, 4, 5) == b"\0abc\0"
    mapped.close()
    files.truncate(descriptor, 8)
    assert files.read(descriptor, 0, 99) == b"\0" * 5 + b"abc"


@pytest.mark.skipif(sys.platform != "linux", reason="no such call elsewhere")
def test_reserved_space_is_taken_and_not_seen(files: PosixVfs, descriptor: int) -> None:
    files.write(descriptor, 0, b"abc")
    files.reserve(descriptor, 3, 1 << 20)
    assert files.size_bytes(descriptor) == 3
    assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
    files.write(descriptor, 3, b"def")
    assert files.read(descriptor, 0, 99) == b"abcdef"
    files.truncate(descriptor, 6)
    assert os.fstat(descriptor).st_blocks * 512 < 1 << 20
    assert files.read(descriptor, 0, 99) == b"abcdef"


@pytest.mark.skipif(sys.platform != "linux", reason="no such call elsewhere")
def test_space_that_cannot_be_reserved_is_an_error_of_the_system(files: PosixVfs, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"abc")
    descriptor = files.open(str(tmp_path / "there"))
    with pytest.raises(OSError, match="Bad file descriptor"):  # the file is open for reading only
        files.reserve(descriptor, 3, 100)
    files.close(descriptor)


def test_reserving_without_a_call_for_it_does_nothing(
    files: PosixVfs, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.env.posix_vfs._fallocate", lambda: None)
    files.reserve(descriptor, 0, 1 << 20)
    assert os.fstat(descriptor).st_blocks == files.size_bytes(descriptor) == 0


def test_allocating_without_a_call_for_it_writes_zeros(
    files: PosixVfs, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(descriptor, 0, b"abc")
    monkeypatch.delattr(os, "posix_fallocate")
    files.allocate(descriptor, 3_000_000)
    assert files.size_bytes(descriptor) == 3_000_000
    assert files.read(descriptor, 0, 5) == b"abc\0\0"
    assert os.fstat(descriptor).st_blocks * 512 >= 3_000_000
    files.allocate(descriptor, 10)
    assert files.size_bytes(descriptor) == 3_000_000


def test_maps_for_reading_cannot_be_written(files: PosixVfs, descriptor: int) -> None:
    files.write(descriptor, 0, b"abc")
    mapped = files.map(descriptor, 3)
    with pytest.raises(TypeError):
        mapped[0:1] = b"x"
    mapped.close()


# --- file names ------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_private(files: PosixVfs, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.make_folder(str(tmp_path / "a" / "b"))
        files.close(files.open(str(tmp_path / "a" / "file"), write=True, create=True))
        lock = files.lock(str(tmp_path / "a" / "lock"))
    finally:
        os.umask(before)
    assert lock is not None
    files.close(lock)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "b": 0o700, "file": 0o600, "lock": 0o600}


def test_folders_are_made_once_and_removed_empty(files: PosixVfs, tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    files.make_folder(folder)
    with pytest.raises(FileExistsError):
        files.make_folder(folder)
    (tmp_path / "a" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        files.remove_folder(folder)
    files.remove(str(tmp_path / "a" / "file"))
    files.sync_folder(folder)
    files.remove_folder(folder)
    assert files.stat(folder) is None


def test_names_are_listed_in_order(files: PosixVfs, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    files.set_modified(str(tmp_path / "b"), 1_600_000_000_123)
    entries = files.list(str(tmp_path))
    assert [(entry.name, entry.is_folder) for entry in entries] == [("a", True), ("b", False), ("c", False)]
    assert entries[1] == files.stat(str(tmp_path / "b")) == FileStat("b", 2, 1_600_000_000_123, is_folder=False)
    assert files.stat(str(tmp_path / "missing")) is None
    assert files.stat(str(tmp_path / "b" / "inside a file")) is None
    with pytest.raises(FileNotFoundError):
        files.list(str(tmp_path / "missing"))


def test_a_list_starts_at_a_name(files: PosixVfs, tmp_path: Path) -> None:
    for name in ("a", "ab", "ab-c", "b"):
        (tmp_path / name).touch()
    assert [entry.name for entry in files.list(str(tmp_path), "ab-")] == ["a", "ab", "ab-c", "b"]
    assert [entry.name for entry in files.list(str(tmp_path), "aa")] == ["a", "ab", "ab-c", "b"]
    assert [entry.name for entry in files.list(str(tmp_path), "b")] == ["b"]
    assert files.list(str(tmp_path), "c") == []


def test_renames_replace_and_links_do_not(files: PosixVfs, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    with pytest.raises(FileExistsError):
        files.link(a, b)
    files.rename(a, b)
    assert (tmp_path / "b").read_text(encoding="utf-8") == "a"
    assert files.stat(a) is None
    files.link(b, a)
    files.remove(b)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "a"


# --- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_has_one_owner(files: PosixVfs, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = files.lock(path)
    assert first is not None
    assert files.lock(path) is None
    assert files.is_locked(path)
    files.close(first)
    assert not files.is_locked(path)
    second = files.lock(path)
    assert second is not None
    files.close(second)


def test_a_lock_refused_leaks_no_descriptor(files: PosixVfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "lock")
    first = files.lock(path)
    assert first is not None
    descriptors: list[int] = []
    real = os.open

    def noted(path: str, flags: int, mode: int = 0o777) -> int:
        descriptors.append(real(path, flags, mode))
        return descriptors[-1]

    monkeypatch.setattr(os, "open", noted)
    assert files.lock(path) is None
    assert files.is_locked(path)
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert len(descriptors) == 2
    files.close(first)


def test_asking_for_a_lock_makes_nothing(files: PosixVfs, tmp_path: Path) -> None:
    assert not files.is_locked(str(tmp_path / "lock"))
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_replaced_file_does_not_count(
    files: PosixVfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two owners would hold locks on two files of the same name."""
    path, real = tmp_path / "lock", os.open

    def replaced(name: str, flags: int, mode: int) -> int:
        descriptor = real(name, flags, mode)
        path.unlink()
        os.close(real(path, os.O_RDWR | os.O_CREAT, mode))
        return descriptor

    monkeypatch.setattr(os, "open", replaced)
    assert files.lock(str(path)) is None


def test_without_open_file_locks_another_lock_does(
    files: PosixVfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.env.locks._OFD_SET_LOCK", None)
    monkeypatch.setattr("stratalog.env.locks._OFD_GET_LOCK", None)
    test_a_lock_has_one_owner(files, tmp_path)


def test_a_stamp_differs_for_a_changed_file(tmp_path: Path) -> None:
    files, file, other_file = PosixVfs(), tmp_path / "a", tmp_path / "b"
    stamps = set()
    for change in ("made", "longer", "touched", "replaced"):
        if change == "replaced":
            other_file.write_bytes(b"ab")
            other_file.rename(file)
        elif change == "touched":
            os.utime(file, ns=(1, 1))
        else:
            file.write_bytes(b"ab" if change == "longer" else b"a")
        descriptor = files.open(str(file))
        stamps.add(files.stamp(descriptor))
        assert files.stamp(descriptor) in stamps
        files.close(descriptor)
    assert len(stamps) == 4


def test_looking_whether_bytes_are_in_memory_changes_nothing(tmp_path: Path) -> None:
    files, file = PosixVfs(), tmp_path / "a"
    file.write_bytes(b"0123456789")
    descriptor = files.open(str(file))
    for position in (0, 9, 50):
        assert files.is_cached(descriptor, position) in {True, False}
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert not files.is_cached(descriptor, 10), "there is no such byte"
    room = bytearray(10)
    for position in (0, 3, 10):
        if files.read_cached(descriptor, position, memoryview(room)[position:]):
            assert room[position:] == b"0123456789"[position:]
    assert not files.read_cached(descriptor, 1, memoryview(room)), "the last byte is missing"
    assert files.read(descriptor, 0, 20) == b"0123456789"
    files.close(descriptor)


def is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int) -> bool:
    """Return ``is_private`` of a file with this mode and owner."""
    path = tmp_path / "keys"
    path.write_bytes(b"")
    file_status = path.stat()
    fake_status = os.stat_result(
        (stat.S_IFREG | mode, *file_status[1:4], owner, *file_status[5:10]), {"st_mtime_ns": 0}
    )
    monkeypatch.setattr(os, "stat", lambda _: fake_status)
    status = PosixVfs().stat(str(path))
    assert status is not None
    return status.is_private


@pytest.mark.parametrize(("mode", "owner"), [(0o600, 1000), (0o400, 1000), (0o640, 0), (0o440, 0)])
def test_a_file_is_private_if_no_other_user_reads_or_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int
) -> None:
    """As for PostgreSQL's key files, the group may read a file that root owns: services get secrets in this way."""
    assert is_private(tmp_path, monkeypatch, mode, owner)


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o640, 1000), (0o604, 1000), (0o620, 1000), (0o644, 0), (0o660, 0), (0o602, 0)]
)
def test_a_file_that_other_users_read_or_write_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int
) -> None:
    assert not is_private(tmp_path, monkeypatch, mode, owner)
