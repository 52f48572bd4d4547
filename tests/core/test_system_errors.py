"""Errors of the operating system, and which of them take a log directory offline."""

from __future__ import annotations

import errno
import os

import pytest

from stratalog.errors import (
    DiskFullError,
    LogDirError,
    LogDirNotFoundError,
    LogDirOfflineError,
    LogDirPermissionError,
    NotAFileError,
    OutOfResourcesError,
    SystemLimitError,
)
from stratalog.errors.system import IrregularFileError, log_dir_error

LISTED: dict[type[LogDirError], tuple[str, ...]] = {
    SystemLimitError: ("EMFILE", "ENFILE", "ENOMEM", "EINTR", "EAGAIN", "EBUSY", "ENOLCK"),
    DiskFullError: ("ENOSPC", "EDQUOT", "EFBIG"),
    LogDirNotFoundError: ("ENOENT", "ENOTDIR"),
    LogDirPermissionError: ("EACCES", "EPERM"),
    NotAFileError: ("EISDIR", "ELOOP", "EEXIST", "ENOTEMPTY", "ENAMETOOLONG"),
}


@pytest.mark.parametrize("number", sorted(set(errno.errorcode)), ids=lambda number: errno.errorcode[number])
def test_an_error_condemns_the_directory_unless_the_table_lists_it(number: int) -> None:
    kinds = [kind for kind, names in LISTED.items() if number in {getattr(errno, name) for name in names}]
    error = log_dir_error(OSError(number, os.strerror(number)), "/logs/t-0")
    assert [type(error)] == (kinds or [LogDirOfflineError])
    assert error.path == "/logs/t-0"
    assert error.reason == os.strerror(number).lower()


def test_the_advice_for_a_read_only_file_system_is_to_make_it_writable() -> None:
    """The general advice, to repair the disk, would be wrong for a directory that was mounted for reading."""
    error = log_dir_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), "/logs")
    assert isinstance(error, LogDirOfflineError)
    assert str(error).startswith("read-only file system path=/logs: make the file system writable")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENXIO, errno.EISDIR])
def test_an_error_about_no_file_condemns_no_directory(number: int) -> None:
    error = log_dir_error(IrregularFileError(number, "a FIFO has the name of a file"), "/logs/t-0/x")
    assert type(error) is NotAFileError


def test_only_a_lack_of_descriptors_or_memory_is_worth_another_try() -> None:
    assert SystemLimitError.retriable
    assert not DiskFullError.retriable
    assert issubclass(SystemLimitError, OutOfResourcesError)
    assert issubclass(DiskFullError, OutOfResourcesError)
