"""Locks on files, with which one process at a time owns a log directory or a cache folder."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stratalog.env.regular_file import open_regular

try:
    import fcntl
except ImportError:  # Windows: locks are not available there, but dumps and readers of a tier work
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

# Open-file-description locks. On other systems, their struct has another layout, and ``flock`` is used instead.
_OFD_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_OFD_GET_LOCK: Final = getattr(fcntl, "F_OFD_GETLK", None) if sys.platform == "linux" else None


def take_lock(path: str) -> int | None:
    """Lock a file exclusively as ``PosixVfs.lock`` does; return its descriptor, or None if the lock is held."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        if _try_lock(descriptor) and _same_file(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_locked(path: str) -> bool:
    """Return True if the lock of a file is held; False if it is free or the file does not exist.

    Linux checks the lock without taking it. Other systems take a shared lock during the call.
    """
    with _open_for_reading(path) as descriptor:
        if descriptor is None:
            return False
        if _OFD_GET_LOCK is None:
            return not _try_shared(descriptor)
        answer = fcntl.fcntl(descriptor, _OFD_GET_LOCK, _lock_request(fcntl.F_RDLCK))
        kind: int = struct.unpack_from("h", answer)[0]
        return kind != fcntl.F_UNLCK


def _lock_request(kind: int) -> bytes:
    return struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0)


def _try_lock(descriptor: int) -> bool:
    try:
        if _OFD_SET_LOCK is not None:
            fcntl.fcntl(descriptor, _OFD_SET_LOCK, _lock_request(fcntl.F_WRLCK))
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _try_shared(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _same_file(descriptor: int, path: str) -> bool:
    opened_status = os.fstat(descriptor)
    try:
        path_status = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (opened_status.st_dev, opened_status.st_ino) == (path_status.st_dev, path_status.st_ino)


@contextlib.contextmanager
def _open_for_reading(path: str) -> Iterator[int | None]:
    try:
        descriptor = open_regular(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
