"""Opening of regular files. Another kind of file, such as a FIFO, raises an error and never blocks the caller."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from stratalog.errors.system import IrregularFileError

_FILE_MODE: Final = 0o600
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


def open_regular(path: str, flags: int) -> int:
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
