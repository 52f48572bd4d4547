"""Conversion of an OSError to a LogDirError.

A table lists the errors that are certainly not failures of the disk. Any other error takes the log directory out of
service. A failed sync of a log's file or folder is never retried, and the table does not apply to it. Unlike stratalog,
Kafka (LogDirFailureChannel) treats every IOException as a failed disk, including "too many open files".
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
TRANSIENT_ERRNOS: Final = HANDLE_ERRNOS | {errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ENOLCK}
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
    """A path that must be a regular file is a folder, FIFO, socket, device or symbolic link. Raised by ``Vfs.open``."""


def log_dir_error(error: OSError, path: str) -> LogDirError:
    """Return the LogDirError for ``error`` at ``path``; a LogDirOfflineError if ``_TABLE`` does not have its errno."""
    reason = error.strerror or type(error).__name__
    if isinstance(error, IrregularFileError):
        return NotAFileError(reason, path)
    error_class = next((kind for numbers, kind in _TABLE if error.errno in numbers), LogDirOfflineError)
    log_error = error_class(reason.lower(), path)
    if error.errno == errno.EROFS:
        log_error.advised("make the file system writable, then repeat the command or open the engine again")
    return log_error
