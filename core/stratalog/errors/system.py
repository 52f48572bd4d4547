"""Errors of the operating system, and the typed error that each one becomes: the one table for all log directories.

An error condemns a log directory unless the table names it: only an error that certainly says nothing about the disk is
listed. A failed sync of a log's file or folder is final, whatever its error number, and does not go through the table.

Source: apache/kafka LogDirFailureChannel takes every IOException for a failed disk, "too many open files" included.
"""

from __future__ import annotations

import errno
from typing import Final

from stratalog.errors.places import (
    DiskFullError,
    LogDirError,
    LogDirNotFoundError,
    LogDirOfflineError,
    LogDirPermissionError,
    NotAFileError,
    SystemLimitError,
)

HANDLE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})  # closing another file helps
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TRANSIENT_ERRNOS: Final = HANDLE_ERRNOS | {
    errno.ENOMEM,
    errno.EINTR,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENOLCK,
}
MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
MISPLACED_ERRNOS: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG})
REFUSED_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM})

_TABLE: Final[tuple[tuple[frozenset[int], type[LogDirError]], ...]] = (
    (FULL_ERRNOS, DiskFullError),
    (TRANSIENT_ERRNOS, SystemLimitError),
    (MISSING_ERRNOS, LogDirNotFoundError),
    (MISPLACED_ERRNOS, NotAFileError),
    (REFUSED_ERRNOS, LogDirPermissionError),
)


class IrregularFileError(OSError):
    """A path leads to a folder, FIFO, socket or device. ``Vfs.open`` raises it and never waits for a FIFO's other end."""


def log_dir_error(error: OSError, path: str) -> LogDirError:
    """Return the typed error for an error of the operating system; LogDirOfflineError if the table does not list it.

    Args:
        error: what the operating system raised.
        path: of the file or folder.
    """
    reason = error.strerror or type(error).__name__
    if isinstance(error, IrregularFileError):
        return NotAFileError(reason, path)
    found = next((kind for numbers, kind in _TABLE if error.errno in numbers), LogDirOfflineError)
    return found(reason.lower(), path)
