"""A file whose descriptor is in the store's HandlePool. If the pool has too many descriptors, it closes idle ones."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import (
    ClosedError,
    FileReplacedError,
    LogDirOfflineError,
    OutOfResourcesError,
    ReadOnlyError,
    SegmentGoneError,
    StorageError,
    log_dir_error,
)
from stratalog_local.disk import Disk


class PooledFile:
    """Base class of ``.log`` and index files.

    Close the file before you rename it. After a failed write or sync, the object refuses all further changes of the
    file, because the content of the page cache is then unknown.
    """

    __slots__ = ("_disk", "_failure", "_is_gone", "_is_writable", "path")

    def __init__(self, disk: Disk, path: str, *, writable: bool) -> None:
        self.path = path
        self._disk, self._is_writable = disk, writable
        self._failure: LogDirOfflineError | None = None
        self._is_gone = False

    def pin(self) -> int:
        """Open the file if necessary, and return its descriptor. The descriptor stays open until ``unpin``.

        Raises:
            SegmentGoneError: the file was closed or deleted.
            ClosedError: the pool was closed. Or the store was closed, and the file was closed or deleted.
            LogDirError: the file cannot be opened.
        """
        if self._is_gone:
            raise self._gone_error()
        try:
            descriptor = self._disk.handles.pin(self, self._open)
        except FileNotFoundError as error:
            raise self._gone_error() from error
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        if self._was_released():  # another thread closed the file before the descriptor was in the pool
            self.unpin(descriptor)
            self._disk.handles.drop(self)
            raise self._gone_error()
        return descriptor

    def pin_for_change(self) -> int:
        """Return a pinned descriptor for a change of the file. Raises the errors of ``pin``, and one more.

        Raises:
            FileReplacedError: another process deleted the file.
        """
        try:
            return self.pin()
        except SegmentGoneError as error:
            if self._is_gone:
                raise
            raise FileReplacedError("another process removed the file", self.path) from error

    def unpin(self, descriptor: int) -> None:
        """Unpin a descriptor that ``pin`` or ``pin_for_change`` returned. The pool may then close it."""
        self._disk.handles.unpin(self, descriptor)

    @property
    def in_service(self) -> bool:
        """True if the file was opened for writing, no earlier write or sync failed, and the store is open."""
        return self._is_writable and self._failure is None and not self._disk.closed

    def check_writable(self) -> None:
        """Raise an error if the file cannot be changed.

        Raises:
            ClosedError: the file or the store was closed.
            ReadOnlyError: the file or the store was opened for reading.
            LogDirOfflineError: an earlier write or sync failed.
        """
        disk = self._disk
        if self._is_gone or not self._is_writable or self._failure is not None or disk.closed or disk.read_only:
            self._refuse()

    def fail(self, error: OSError) -> StorageError:
        """After ``error``, refuse all further changes of the file. Return the LogDirOfflineError to raise."""
        self._failure = LogDirOfflineError(log_dir_error(error, self.path).reason, self.path)
        return self._failure

    def handle_error(self, error: OSError) -> StorageError:
        """Return the LogDirError to raise after the system refused a change of the file.

        If the result is not an OutOfResourcesError, the object refuses all further changes of the file.
        """
        typed_error = log_dir_error(error, self.path)
        return typed_error if isinstance(typed_error, OutOfResourcesError) else self.fail(error)

    def cut(self, size_bytes: int) -> None:
        """Set the size of the file on disk. Raises the errors of ``allocate``."""
        self._change(self._disk.files.truncate, size_bytes)

    def allocate(self, size_bytes: int) -> None:
        """Allocate disk space for the first ``size_bytes`` bytes of the file. A smaller file is extended with zeros.

        Raises:
            OutOfResourcesError: the space was not allocated completely. The file may still be changed.
            LogDirError: the space cannot be allocated. Further changes are refused.
        """
        self._change(self._disk.files.allocate, size_bytes)

    def _change(self, change: Callable[[int, int], object], size_bytes: int) -> None:
        descriptor = self.pin_for_change()
        try:
            change(descriptor, size_bytes)
        except OSError as error:
            raise self.handle_error(error) from error
        finally:
            self.unpin(descriptor)

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``position``, or fewer at the file's end. Raises the errors of ``pin``."""
        descriptor = self.pin()
        try:
            return self.read_pinned(descriptor, position, size_bytes)
        finally:
            self.unpin(descriptor)

    def read_pinned(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``position``, or fewer at the file's end, through a pinned descriptor."""
        if size_bytes <= 0:
            return b""
        try:
            return self._disk.files.read(descriptor, position, size_bytes)
        except OSError as error:
            raise log_dir_error(error, self.path) from error

    def read_into(self, position: int, into: memoryview) -> int:
        """Read until ``into`` is full or the file ends. Return the number of bytes. Raises the errors of ``pin``."""
        descriptor = self.pin()
        try:
            return self._disk.files.read_into(descriptor, position, into)
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        finally:
            self.unpin(descriptor)

    def sync(self) -> None:
        """Make the file's bytes durable. After a failed sync, all further changes and syncs of the file are refused.

        Raises:
            LogDirError: this sync failed, or an earlier write or sync failed.
        """
        self._disk.check_writable(self.path)
        self._check_in_service()
        descriptor = self.pin_for_change()
        try:
            self._disk.files.sync(descriptor)
        except OSError as error:
            raise self.fail(error) from error
        finally:
            self.unpin(descriptor)

    def release_descriptor(self) -> None:
        """Close the file.

        Its descriptor is closed now, or by the last ``unpin``. Later calls of ``pin`` raise an error.
        """
        self._is_gone = True
        self._disk.handles.drop(self)

    def _open(self) -> int:
        return self._disk.files.open(self.path, write=self._is_writable)

    def _refuse(self) -> None:
        if self._is_gone:
            raise ClosedError(f"the file is closed path={self.path}")
        self._disk.check_writable(self.path)
        if not self._is_writable:
            raise ReadOnlyError("the file was opened for reading", self.path)
        self._check_in_service()

    def _check_in_service(self) -> None:
        if self._failure is not None:
            reason = f"out of service, because a write or sync failed ({self._failure.reason})"
            raise LogDirOfflineError(reason, self.path)

    def _was_released(self) -> bool:
        return self._is_gone

    def _gone_error(self) -> StorageError:
        if self._disk.closed:
            return ClosedError(f"the log directory is closed path={self.path}")
        return SegmentGoneError("the file is closed or deleted", self.path)
