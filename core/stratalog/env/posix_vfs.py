"""The real file system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from stratalog.env.forks import closes_with_fork, stays_with_fork
from stratalog.env.locks import is_locked, take_lock
from stratalog.env.vfs import FileStat
from stratalog.errors.system import FULL_ERRNOS, IrregularFileError

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)  # without it, opening a FIFO waits for its other end; no effect on files
# Errors of opening a socket, a device, a link, or (for writing) a folder.
_UNOPENED: Final = frozenset({errno.ENXIO, errno.EOPNOTSUPP, errno.ENODEV, errno.ELOOP, errno.EISDIR})
_KINDS: Final = (  # the last entry matches every mode
    (stat.S_ISDIR, "a folder", errno.EISDIR),
    (stat.S_ISFIFO, "a FIFO", errno.ENXIO),
    (stat.S_ISSOCK, "a socket", errno.ENXIO),
    (stat.S_ISLNK, "a symbolic link", errno.ELOOP),
    (bool, "a device", errno.ENXIO),
)


class PosixVfs:
    """The real file system, through the functions of ``os``."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a regular file and return its descriptor, as ``Vfs.open`` specifies."""
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        return _open_regular(path, flags)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        stays_with_fork(descriptor)
        os.close(descriptor)

    def size_bytes(self, descriptor: int) -> int:
        """Return the size (bytes) of an open file."""
        return os.fstat(descriptor).st_size

    def stamp(self, descriptor: int) -> tuple[int, ...]:
        """Return device, inode number, size (bytes) and modification time (ns since 1970).

        The numbers may stay equal after a write that keeps the size and follows another write within some milliseconds.
        """
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def file_id(self, descriptor: int) -> tuple[int, int]:
        """Return device and inode number."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``position`` on; fewer bytes only if the file ends before."""
        data = os.pread(descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        remaining_bytes = size_bytes - len(data)
        while remaining_bytes and parts[-1]:
            parts.append(os.pread(descriptor, remaining_bytes, position + size_bytes - remaining_bytes))
            remaining_bytes -= len(parts[-1])
        return b"".join(parts)

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """Fill ``into`` from ``position`` on; return the number of bytes read: fewer only at the end of the file."""
        read_bytes = os.preadv(descriptor, [into], position)
        while 0 < read_bytes < len(into):
            more_bytes = os.preadv(descriptor, [into[read_bytes:]], position + read_bytes)
            if not more_bytes:
                break
            read_bytes += more_bytes
        return read_bytes

    def is_cached(self, descriptor: int, position: int) -> bool:
        """Return True if the byte at ``position`` can be read without waiting for the disk; False if unknown."""
        return self.read_cached(descriptor, position, memoryview(bytearray(1)))

    def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
        """Read all of ``into`` without waiting for the disk, and return True; False if the system cannot do so."""
        try:
            return os.preadv(descriptor, [into], position, os.RWF_NOWAIT) == len(into)
        except (OSError, AttributeError):  # not cached, or this system or file does not support the flag
            return False

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` at ``position``, and return the number of bytes written: fewer only if the disk is full."""
        written_bytes, size = 0, data.nbytes if isinstance(data, memoryview) else len(data)
        try:
            written_bytes = os.pwrite(descriptor, data, position)
            while 0 < written_bytes < size:
                more_bytes = os.pwrite(descriptor, memoryview(data).cast("B")[written_bytes:], position + written_bytes)
                if not more_bytes:
                    break
                written_bytes += more_bytes
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
        return written_bytes

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Send bytes of a file to the socket ``to`` with the system's ``sendfile``, and return their number."""
        return os.sendfile(to, descriptor, position, size_bytes)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size of a file."""
        os.ftruncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space for the first ``size_bytes`` bytes, with ``posix_fallocate`` or by writing zeros."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
            return
        allocated_bytes = os.fstat(descriptor).st_size  # macOS: a hole instead of zeros could cause SIGBUS later
        while allocated_bytes < size_bytes:
            allocated_bytes += os.pwrite(descriptor, bytes(min(1 << 20, size_bytes - allocated_bytes)), allocated_bytes)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space with Linux's ``fallocate``; do nothing on other systems."""
        allocate = _fallocate()
        if allocate is not None and allocate(descriptor, _KEEP_SIZE, position, size_bytes) != 0:
            failure = ctypes.get_errno()
            raise OSError(failure, os.strerror(failure))

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Return a memory map of the first ``size_bytes`` bytes of a file, read-only unless ``write`` is set."""
        return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable."""
        os.fsync(descriptor)  # noqa: TID251 - this is the port

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # noqa: TID251 - this is the port
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder; an existing file ``new`` is replaced."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; raise FileExistsError if that name exists."""
        os.link(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents, for this user only; raise FileExistsError if it exists."""
        missing = [parent for parent in Path(path).parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        os.mkdir(path, _FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        os.rmdir(path)

    def list(self, path: str, start: str = "") -> list[FileStat]:
        """Return the entries of a folder, as ``Vfs.list`` specifies, without entries that are deleted during the call."""
        listing = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name < start and not start.startswith(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    listing.append(_make_stat(entry.name, entry.stat(follow_symlinks=False)))
        return sorted(listing, key=lambda item: item.name)

    def stat(self, path: str) -> FileStat | None:
        """Return the attributes of the entry at a path, or None if there is no entry."""
        try:
            return _make_stat(os.path.basename(path), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's modification time (ms since 1970)."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, path: str) -> int | None:
        """Take an exclusive lock on a file, and return its descriptor, or None if the lock is held.

        The result is also None if another program replaces or deletes the file during the call. A missing file is
        created. Linux uses an open-file-description lock, which conflicts with a running Kafka broker's record lock on
        ``.lock``, and with the lock of another engine in the same process. Other systems use ``flock``.
        """
        descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        is_taken = False
        try:
            is_taken = take_lock(descriptor, path)
        finally:
            if not is_taken:
                os.close(descriptor)
        if not is_taken:
            return None
        closes_with_fork(descriptor)
        return descriptor

    def is_locked(self, path: str) -> bool:
        """Return True if the lock of a file is held; False if it is free or the file does not exist.

        Linux checks the lock without taking it. Other systems take a shared lock during the call; a concurrent ``lock``
        then returns None.
        """
        try:
            descriptor = _open_regular(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return is_locked(descriptor)
        finally:
            os.close(descriptor)


def _open_regular(path: str, flags: int) -> int:
    """Open a file with the ``flags`` of ``os.open``, and return its descriptor.

    Raises:
        IrregularFileError: the path is not a regular file.
        OSError: any other error of ``os.open``.
    """
    try:
        descriptor = os.open(path, flags | _NO_WAIT, _FILE_MODE)
    except OSError as error:
        mode = _mode_at(path) if error.errno in _UNOPENED else stat.S_IFREG
        if stat.S_ISREG(mode):
            raise
        raise _irregular(path, mode) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return descriptor


def _mode_at(path: str) -> int:
    """Return the mode of the entry at ``path``, or ``S_IFREG`` if the mode cannot be read."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return stat.S_IFREG


def _irregular(path: str, mode: int) -> IrregularFileError:
    name, number = next((name, number) for is_kind, name, number in _KINDS if is_kind(mode))
    return IrregularFileError(number, f"{name} has the name of a file", path)


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the function ``fallocate`` of the C library, or None if the library has no such function."""
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return cast(Callable[[int, int, int, int], int], function)


def _make_stat(name: str, status: os.stat_result) -> FileStat:
    modified_ms, mode, file_id = status.st_mtime_ns // 1_000_000, status.st_mode, (status.st_dev, status.st_ino)
    forbidden_bits = stat.S_IRWXO | stat.S_IRWXG if status.st_uid else stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
    return FileStat(
        name, status.st_size, modified_ms, stat.S_ISDIR(mode), stat.S_ISREG(mode), file_id, not mode & forbidden_bits
    )
