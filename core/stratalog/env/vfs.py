"""Files, behind a port: everything the engine does to a disk goes through a ``Vfs``.

Descriptors are plain ints as ``os`` gives them. Errors are those of ``os`` (OSError); the segment store turns them
into typed ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, cast

from stratalog.env.forks import closes_with_fork, stays_with_fork
from stratalog.env.locks import is_locked, take_lock
from stratalog.env.regular import open_regular
from stratalog.errors.system import FULL_ERRNOS

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE
_MAX_PARTS: Final = 1024  # IOV_MAX


@dataclass(frozen=True, slots=True)
class FileStat:
    """What a folder says of one entry.

    ``is_file`` is False for a FIFO, a socket, a device or a symbolic link, as it is for a folder. ``file_id`` is that of
    ``Vfs.file_id``. ``is_private`` is False if users of the system other than the owner may read or write it; a group may
    read what root owns, as services are given secrets so.
    """

    name: str
    size_bytes: int
    modified_ms: int
    is_folder: bool
    is_file: bool = True
    file_id: tuple[int, int] = field(default=(0, 0), compare=False)
    is_private: bool = field(default=True, compare=False)


class Vfs(Protocol):
    """The file system port."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; ``create`` makes it, for writing, and fails with FileExistsError if it is there.

        IrregularFileError if the path leads to anything else than a file. The call waits for no other process.
        """

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def size_bytes(self, descriptor: int) -> int:
        """The size of an open file."""

    def stamp(self, descriptor: int) -> tuple[int, ...]:
        """What an open file is known by: other numbers once it was written to, or another one has its name."""

    def file_id(self, descriptor: int) -> tuple[int, int]:
        """Return two numbers that no other file has while this one is open, whatever its name is."""

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Read up to ``size_bytes``; fewer only at the end of the file."""

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """The same into memory of the caller's; how many bytes there were."""

    def is_cached(self, descriptor: int, position: int) -> bool:
        """Whether the system has this byte at hand, so that reading it waits for no disk; False if that cannot be told."""

    def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
        """As ``read_into``, if the system has all of it in memory; True if it had.

        If it has not, or if that cannot be told, ``into`` may hold anything.
        """

    def write(self, descriptor: int, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write at a position; returns how many bytes went in, fewer than given if the disk filled up."""

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Give bytes to the socket ``to`` without reading them; how many it took, 0 at the end of the file."""

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut or extend a file."""

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space up to a size, so that writing through a map cannot fail. ENOSPC raises."""

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space behind the end of a file for bytes to come. Its size stays; ``truncate`` frees the space.

        Does nothing on a system without such a call. After an OSError the file can be written to all the same.
        """

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Map the start of a file."""

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable. Never called again on a descriptor for which it failed."""

    def sync_folder(self, path: str) -> None:
        """Make names in a folder durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing what is there."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; FileExistsError if that is taken: one of several racers wins."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def make_folder(self, path: str) -> None:
        """Make a folder, with its parents; FileExistsError if it is there."""

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def list(self, path: str) -> list[FileStat]:
        """What is in a folder, by name."""

    def stat(self, path: str) -> FileStat | None:
        """What is at a path, or None."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's time, as a copied segment keeps that of its source."""

    def lock(self, path: str) -> int | None:
        """Take an exclusive lock on a file, made if missing; None if another holds it. Close to release."""

    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the lock of a file; makes and takes nothing."""


class PosixVfs:
    """The real file system."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file."""
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        return open_regular(path, flags)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        stays_with_fork(descriptor)
        os.close(descriptor)

    def size_bytes(self, descriptor: int) -> int:
        """The size of an open file."""
        return os.fstat(descriptor).st_size

    def stamp(self, descriptor: int) -> tuple[int, ...]:
        """Device, number, size and time of the last change."""
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def file_id(self, descriptor: int) -> tuple[int, int]:
        """Device and number."""
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Read, going on after short reads."""
        data = os.pread(descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        left = size_bytes - len(data)
        while left and parts[-1]:
            parts.append(os.pread(descriptor, left, position + size_bytes - left))
            left -= len(parts[-1])
        return b"".join(parts)

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """Read, going on after short reads."""
        done = os.preadv(descriptor, [into], position)
        while 0 < done < len(into):
            more = os.preadv(descriptor, [into[done:]], position + done)
            if not more:
                break
            done += more
        return done

    def is_cached(self, descriptor: int, position: int) -> bool:
        """By a read that does not wait."""
        return self.read_cached(descriptor, position, memoryview(bytearray(1)))

    def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
        """By a read that does not wait, where there is such a call."""
        try:
            return os.preadv(descriptor, [into], position, os.RWF_NOWAIT) == len(into)
        except (OSError, AttributeError):  # not at hand; or no such flag on this system, or for this file
            return False

    def write(self, descriptor: int, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write, going on after short writes until nothing more goes in."""
        count = written = _write_some(descriptor, position, parts)
        if len(parts) == 1 and written == memoryview(parts[0]).nbytes:
            return written  # nearly always
        left = [memoryview(part).cast("B") for part in parts]
        first = 0
        while True:
            while first < len(left) and count >= len(left[first]):
                count -= len(left[first])
                first += 1
            if first == len(left):
                return written
            left[first] = left[first][count:]
            count = _write_some(descriptor, position + written, left[first:])
            if not count:
                return written
            written += count

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Send by the system's ``sendfile``."""
        return os.sendfile(to, descriptor, position, size_bytes)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut or extend a file."""
        os.ftruncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space up to a size."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
            return
        have = os.fstat(descriptor).st_size  # macOS: write the zeros, a hole would fail later as SIGBUS
        while have < size_bytes:
            have += os.pwrite(descriptor, bytes(min(1 << 20, size_bytes - have)), have)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """By Linux's ``fallocate``, for which Python has no name."""
        allocate = _fallocate()
        if allocate is not None and allocate(descriptor, _KEEP_SIZE, position, size_bytes) != 0:
            failure = ctypes.get_errno()
            raise OSError(failure, os.strerror(failure))

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Map the start of a file."""
        return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable."""
        os.fsync(descriptor)  # noqa: TID251 - this is the port

    def sync_folder(self, path: str) -> None:
        """Make names in a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # noqa: TID251 - this is the port
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing what is there."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        os.link(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Make a folder, with its parents, all for this user alone."""
        missing = [parent for parent in Path(path).parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        os.mkdir(path, _FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        os.rmdir(path)

    def list(self, path: str) -> list[FileStat]:
        """What is in a folder, by name; entries that vanish meanwhile are left out."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append(_described(entry.name, entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda item: item.name)

    def stat(self, path: str) -> FileStat | None:
        """What is at a path, or None."""
        try:
            return _described(os.path.basename(path), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's time."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, path: str) -> int | None:
        """Take an exclusive lock.

        An open-file-description lock where there is one: it conflicts with the record lock that a running Kafka
        broker holds on ``.lock``, conflicts between two engines of one process too, and is not dropped when some
        other descriptor of the file closes. Elsewhere ``flock``. The file is never unlinked, and checked by inode.
        """
        descriptor = take_lock(path)
        if descriptor is not None:
            closes_with_fork(descriptor)
        return descriptor

    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the lock; a file that is not there is not locked."""
        return is_locked(path)


def _write_some(descriptor: int, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """Write as much as one call does, 0 bytes if the disk is full."""
    try:
        if len(parts) == 1:
            return os.pwrite(descriptor, parts[0], position)
        return os.pwritev(descriptor, parts[:_MAX_PARTS], position)
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            return 0
        raise


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """``fallocate`` of the C library; None where there is none."""
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    found = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if found is None:
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found.restype = ctypes.c_int
    return cast(Callable[[int, int, int, int], int], found)


def _described(name: str, status: os.stat_result) -> FileStat:
    modified_ms, mode, file_id = status.st_mtime_ns // 1_000_000, status.st_mode, (status.st_dev, status.st_ino)
    others = stat.S_IRWXO | stat.S_IRWXG if status.st_uid else stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
    return FileStat(
        name, status.st_size, modified_ms, stat.S_ISDIR(mode), stat.S_ISREG(mode), file_id, not mode & others
    )
