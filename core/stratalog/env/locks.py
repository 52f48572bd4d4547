"""Locks on files, with which one process at a time owns a log directory or a cache folder."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows: locks are not available there, but dumps and readers of a tier work
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

# Open-file-description locks. On other systems, their struct has another layout, and ``flock`` is used instead.
_OFD_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_OFD_GET_LOCK: Final = getattr(fcntl, "F_OFD_GETLK", None) if sys.platform == "linux" else None


def take_lock(descriptor: int, path: str) -> bool:
    """Lock the open file exclusively, as ``PosixVfs.lock`` does; return False if its lock is held.

    Also return False if ``path`` no longer names the file.
    """
    return _try_lock(descriptor) and _same_file(descriptor, path)


def is_locked(descriptor: int) -> bool:
    """Return True if the lock of the open file is held.

    Linux checks the lock without taking it. Other systems take a shared lock during the call.
    """
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
