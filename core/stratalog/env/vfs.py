"""The file system interface: the engine accesses disks only through a ``Vfs``.

Descriptors are ints, as in ``os``. Methods raise OSError, as ``os`` does. The segment store converts these errors to
typed errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, cast

from stratalog.env.forks import closes_with_fork, stays_with_fork
from stratalog.env.locks import is_locked, take_lock
from stratalog.env.regular_file import open_regular
from stratalog.errors.system import FULL_ERRNOS

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE


@dataclass(frozen=True, slots=True)
class FileStat:
    """Attributes of one entry of a folder, as ``Vfs.list`` and ``Vfs.stat`` return them.

    Attributes:
        name: name of the entry in its folder.
        size_bytes: size of the file.
        modified_ms: time of the last modification (ms since 1970).
        is_folder: True for a folder.
        is_file: True for a regular file; False for a folder, a FIFO, a socket, a device or a symbolic link.
        file_id: result of ``Vfs.file_id`` for the entry.
        is_private: False if users other than the owner may access the file. A file of root counts as private even if
            its group may read it, because services get their secrets in such files.
    """

    name: str
    size_bytes: int
    modified_ms: int
    is_folder: bool
    is_file: bool = True
    file_id: tuple[int, int] = field(default=(0, 0), compare=False)
    is_private: bool = field(default=True, compare=False)


class Vfs(Protocol):
    """Interface to a file system. All access of an engine to disks goes through it."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file for reading, or for reading and writing if ``write`` is set; return its descriptor.

        If ``create`` is set, the file must not exist: it is created, and opened for reading and writing. The call never
        blocks, even if the path is a FIFO.

        Raises:
            IrregularFileError: ``create`` is not set, and the path is not a regular file, for example a symbolic link.
            FileExistsError: ``create`` is set, and the path exists, even if it is not a file.
        """

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def size_bytes(self, descriptor: int) -> int:
        """Return the size (bytes) of an open file."""

    def stamp(self, descriptor: int) -> tuple[int, ...]:
        """Return numbers that identify an open file and its contents. Normally, each write changes the numbers."""

    def file_id(self, descriptor: int) -> tuple[int, int]:
        """Return two numbers that no other file has while this file is open. A rename does not change the numbers."""

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``position`` on; fewer bytes only if the file ends before."""

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """Fill ``into`` from ``position`` on; return the number of bytes read: fewer only at the end of the file."""

    def is_cached(self, descriptor: int, position: int) -> bool:
        """Return True if the byte at ``position`` is in the page cache; False if it is not, or if that is unknown."""

    def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
        """Fill ``into`` from ``position`` on if all its bytes are in the page cache, and return True; otherwise False.

        If the method returns False, the contents of ``into`` are undefined.
        """

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` at ``position``, and return the number of bytes written: fewer only if the disk is full."""

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Send at most ``size_bytes`` bytes from ``position`` on to the socket ``to``, without copies in this process.

        Return the number of sent bytes, which may be less than ``size_bytes``; 0 at the end of the file.
        """

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size of a file: remove bytes at its end, or append zeros. The space from ``reserve`` is freed."""

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space for the first ``size_bytes`` bytes of a file; raise OSError (ENOSPC) if there is none.

        A smaller file grows to ``size_bytes``, with zeros. Writes through a memory map can then not run out of space.
        """

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space for ``size_bytes`` bytes from ``position`` on. The file size does not change.

        ``truncate`` frees the space after the end of the file. On a system that cannot reserve space, the method does
        nothing. After an OSError, the file can still be written to.
        """

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Return a memory map of the first ``size_bytes`` bytes of a file, read-only unless ``write`` is set."""

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable. After a failure, the engine never syncs that descriptor again."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable, after files in it were created, renamed or deleted."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder; an existing file ``new`` is replaced. ``sync_folder`` makes the rename durable."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; raise FileExistsError if that name exists.

        If several processes create the same name at the same time, only one of them succeeds.
        """

    def remove(self, path: str) -> None:
        """Delete a file. Its contents can still be read through open descriptors."""

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents; raise FileExistsError if it exists."""

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def list(self, path: str, start: str = "") -> list[FileStat]:
        """Return the entries of a folder, sorted by name. Symbolic links are not followed.

        An entry whose name is below ``start`` is left out, unless ``start`` begins with the name.
        """

    def stat(self, path: str) -> FileStat | None:
        """Return the attributes of the entry at a path, or None if there is no entry. Symbolic links are followed."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's modification time (ms since 1970)."""

    def lock(self, path: str) -> int | None:
        """Take an exclusive lock on a file, and return its descriptor, or None if the lock is held.

        A missing file is created. Close the descriptor to release the lock.
        """

    def is_locked(self, path: str) -> bool:
        """Return True if the lock of a file is held; False if it is free or the file does not exist."""


class PosixVfs:
    """The real file system, through the functions of ``os``."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a regular file and return its descriptor, as ``Vfs.open`` specifies."""
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        return open_regular(path, flags)

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
        descriptor = take_lock(path)
        if descriptor is not None:
            closes_with_fork(descriptor)
        return descriptor

    def is_locked(self, path: str) -> bool:
        """Return True if the lock of a file is held; False if it is free or the file does not exist.

        Linux checks the lock without taking it. Other systems take a shared lock during the call; a concurrent ``lock``
        then returns None.
        """
        return is_locked(path)


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
