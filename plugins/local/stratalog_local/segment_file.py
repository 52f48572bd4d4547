"""Append-only files: ``.log`` files, and index files without reserved space."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from stratalog.errors import (
    ClosedError,
    DiskFullError,
    FileReplacedError,
    OutOfResourcesError,
    SegmentGoneError,
    StorageError,
    log_dir_error,
)
from stratalog.spi import Buffer, FileSlice, FileStat, SegmentFile
from stratalog_local.disk import Disk
from stratalog_local.pooled_file import PooledFile

# Space that is reserved in one step. Without it, the allocation of blocks takes a tenth of the time of a 16 KiB append.
AHEAD_BYTES: Final = 1 << 20
# Space is reserved only in files above this size: in a smaller file, the reserved share would be too large.
LARGE_BYTES: Final = 8 * AHEAD_BYTES
UNBOUNDED: Final = 1 << 63


class LocalSegmentFile(PooledFile, SegmentFile):
    """An append-only file, for one writer and any number of readers. Readers see only complete appends.

    Args:
        size_bytes: size of the valid content.
        modified_ms: modification time of the file (ms since 1970).
        reserved: True if the file has preallocated space. The file on disk is then larger than ``size_bytes`` until it
            is closed.
        file_id: identity of the file; None if it is not known. A file with another identity is not read.
    """

    __slots__ = ("_file_id", "_has_ahead", "_is_closed", "_is_reserved", "_modified_ms", "_room_bytes", "_size_bytes")

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        size_bytes: int,
        modified_ms: int,
        writable: bool,
        reserved: bool = False,
        file_id: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(disk, path, writable=writable)
        self._size_bytes = size_bytes  # the writer updates it after the bytes are written, so readers need no lock
        self._modified_ms, self._is_reserved = modified_ms, reserved
        self._has_ahead = False  # True if space is reserved after the end of the file
        self._room_bytes = UNBOUNDED if reserved else LARGE_BYTES  # appends below this file size reserve no space
        self._is_closed = False
        self._file_id = file_id  # for a file that is written: its identity at its first opening

    @classmethod
    def create(cls, disk: Disk, path: str, preallocate_bytes: int) -> LocalSegmentFile:
        """Create an empty file and allocate ``preallocate_bytes`` of disk space. Return the file, opened for writing.

        Raises:
            FileExistsError: the file exists.
            LogDirError: the file cannot be created, or its space cannot be allocated. If the allocation fails, the file
                is deleted.
        """
        files = disk.files
        try:
            descriptor = disk.handles.with_room(lambda: files.open(path, write=True, create=True))
            try:
                if preallocate_bytes:
                    files.allocate(descriptor, preallocate_bytes)
            except OSError:
                with contextlib.suppress(OSError):
                    files.remove(path)
                raise
            finally:
                files.close(descriptor)
            attributes = files.stat(path)
        except FileExistsError:
            raise
        except OSError as error:
            raise log_dir_error(error, path) from error
        modified_ms = 0 if attributes is None else attributes.modified_ms
        return cls(disk, path, size_bytes=0, modified_ms=modified_ms, writable=True, reserved=bool(preallocate_bytes))

    @property
    def size_bytes(self) -> int:
        """Number of valid bytes, without reserved space."""
        return self._size_bytes

    @property
    def modified_ms(self) -> int:
        """Modification time of the file (ms since 1970); the last known time if the file cannot be read."""
        with contextlib.suppress(OSError):
            attributes: FileStat | None = self._disk.files.stat(self.path)
            if attributes is not None:
                self._modified_ms = attributes.modified_ms
        return self._modified_ms

    def append(self, data: Buffer) -> int:
        """Append the bytes, and return the position of the first byte.

        Raises the errors of ``SegmentFile.append``, and FileReplacedError if another process deleted, replaced or
        truncated the file. After an OutOfResourcesError, the file may still be changed.
        """
        disk, start = self._disk, self._size_bytes
        if self._is_gone or not self._is_writable or self._failure is not None or disk.closed:
            self.check_writable()
        size = len(data) if type(data) is bytearray else memoryview(data).nbytes
        if start + size > self._room_bytes:
            self._reserve(start + size)
        descriptor = disk.handles.pin_open(self)
        if descriptor is None:
            descriptor = self._pin_reopened()
        try:
            written_bytes = disk.files.write(descriptor, start, data)
            if written_bytes < size:
                self._cut_back(descriptor)
                raise DiskFullError(f"only {written_bytes} of {size} bytes fit on the disk", self.path)
        except OSError as error:
            raise self._undo_write(descriptor, error) from error
        finally:
            disk.handles.unpin(self, descriptor)
        self._size_bytes = start + size
        return start

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return ``size_bytes`` bytes from ``position``; fewer if the file ends earlier."""
        available_bytes, disk = min(size_bytes, self._size_bytes - position), self._disk
        if available_bytes <= 0:
            return memoryview(b"")
        descriptor = disk.handles.pin_open(self)
        if descriptor is None:
            descriptor = self.pin()
        try:
            return memoryview(disk.files.read(descriptor, position, available_bytes))
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        finally:
            disk.handles.unpin(self, descriptor)

    def read_into(self, position: int, into: memoryview) -> int:
        """Implement ``SegmentFile.read_into``."""
        available_bytes = min(len(into), self._size_bytes - position)
        return super().read_into(position, into[:available_bytes]) if available_bytes > 0 else 0

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """Return a slice, whose first use of ``data`` reads the bytes; see ``SegmentFile.slice``."""
        handles, size_bytes = self._disk.handles, max(0, min(size_bytes, self._size_bytes - position))
        descriptor = handles.pin_open(self)
        if descriptor is None:
            descriptor = self.pin()
        read = partial(self._read_slice, descriptor, position, size_bytes)
        return FileSlice(read, position, descriptor, partial(handles.unpin, self, descriptor), size_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to ``size_bytes``, and remove its reserved space; see ``SegmentFile.truncate``.

        After an OutOfResourcesError, the file keeps its size.
        """
        self.check_writable()
        if not 0 <= size_bytes <= self._size_bytes:
            raise ValueError(f"cannot truncate {self._size_bytes} bytes to {size_bytes}")
        old_size, self._size_bytes = self._size_bytes, size_bytes
        try:
            self._cut()
        except OutOfResourcesError:
            self._size_bytes = old_size
            raise

    def trim(self) -> bool:
        """Remove preallocated space after the last record. Return True if the file had such space."""
        self.check_writable()
        had_space = self._is_reserved
        self._release_space()
        return had_space

    def sync(self) -> None:
        """Make the bytes durable, and check that the path still names the same file.

        Raise FileReplacedError if another process deleted, replaced or truncated the file, and SegmentGoneError if this
        process closed it.
        """
        super().sync()
        if self._find_loss():  # check twice: this process may have truncated the file meanwhile
            reason = self._find_loss()
            if reason:
                if self._is_gone:  # during the sync, this process closed the file, and renamed or replaced it
                    raise self._gone_error()
                raise FileReplacedError(reason, self.path)

    def close(self) -> None:
        """Remove reserved space, and close the file. Idempotent.

        The reserved space remains if a write or sync failed before, or if the store is closed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.in_service:
                with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):  # no file to cut
                    self._release_space()
        finally:
            self.release_descriptor()

    def _read_slice(self, descriptor: int, position: int, size_bytes: int) -> memoryview:
        """Return the bytes of a slice. Raise SegmentGoneError if they may have changed since the slice was created."""
        data = self.read_pinned(descriptor, position, size_bytes)
        # a log closes a file before it truncates it; if the path no longer names the file, it was deleted, not truncated
        if len(data) < size_bytes or (self._is_gone and self._is_named(descriptor)):
            raise SegmentGoneError("the file was truncated or closed before its bytes were read", self.path)
        return memoryview(data)

    def _is_named(self, descriptor: int) -> bool:
        """Return True if the file's path still names the opened file."""
        attributes = self._disk.files.stat(self.path)
        return attributes is not None and attributes.file_id == self._disk.files.file_id(descriptor)

    def _open(self) -> int:
        """Open the file.

        If another file is at its path, raise FileReplacedError; if this object only reads, SegmentGoneError.
        """
        descriptor = super()._open()
        if self._is_writable or self._file_id is not None:
            file_id = self._disk.files.file_id(descriptor)
            if self._file_id is None:
                self._file_id = file_id
            elif file_id != self._file_id:
                self._disk.files.close(descriptor)
                kind = FileReplacedError if self._is_writable else SegmentGoneError
                raise kind("another process replaced the file", self.path)
        return descriptor

    def _pin_reopened(self) -> int:
        """Open the file again, and pin its descriptor for a change."""
        descriptor = self.pin_for_change()
        # check the size, because a new file may have the inode number of the deleted file
        if self._disk.files.size_bytes(descriptor) < self._size_bytes:
            self.unpin(descriptor)
            raise FileReplacedError("another process replaced or truncated the file", self.path)
        return descriptor

    def _find_loss(self) -> str:
        """Return the reason why bytes may be lost. Return "" if this file is still at its path, with all its bytes.

        Raises LogDirError if the attributes of the path cannot be read.
        """
        size = self._size_bytes
        try:
            attributes = self._disk.files.stat(self.path)
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        if attributes is None:
            return "another process removed the file"
        if attributes.file_id != self._file_id:
            return "another process replaced the file"
        if attributes.size_bytes < min(size, self._size_bytes):
            return f"another process truncated the file to {attributes.size_bytes} bytes; {size} were written"
        return ""

    def _reserve(self, end: int) -> None:
        """Reserve space up to ``AHEAD_BYTES`` after ``end``. Ignore a full disk: the next write reports it."""
        self._room_bytes = end + AHEAD_BYTES
        descriptor = self._disk.handles.pin_open(self)
        if descriptor is None:
            # not ``pin``: afterwards, the append would skip the checks of a reopened file
            descriptor = self._pin_reopened()
        self._has_ahead = True  # set first: if the disk is full, part of the space may have been reserved
        try:
            self._disk.files.reserve(descriptor, self._size_bytes, self._room_bytes - self._size_bytes)
        except OSError as error:
            is_full = isinstance(log_dir_error(error, self.path), OutOfResourcesError)
            if not is_full:  # the file system cannot reserve space
                self._room_bytes, self._has_ahead = UNBOUNDED, False
        finally:
            self.unpin(descriptor)

    def _release_space(self) -> None:
        """Remove reserved space. Keep the modification time, because retention may use it."""
        if self._is_reserved or self._has_ahead:
            modified_ms = self.modified_ms
            self._cut()
            with contextlib.suppress(OSError):  # if this fails, retention deletes the records later
                self._disk.files.set_modified(self.path, modified_ms)

    def _cut(self) -> None:
        self.cut(self._size_bytes)
        self._clear_reservation()

    def _undo_write(self, descriptor: int, error: OSError) -> StorageError:
        """Remove the bytes of a failed write from the file, and return the error to raise."""
        typed_error = self.handle_error(error)
        try:
            self._cut_back(descriptor)
        except OSError as truncate_error:  # recovery truncates the file later
            return self.fail(truncate_error) if isinstance(typed_error, OutOfResourcesError) else typed_error
        return typed_error

    def _cut_back(self, descriptor: int) -> None:
        self._disk.files.truncate(descriptor, self._size_bytes)
        self._clear_reservation()

    def _clear_reservation(self) -> None:
        self._is_reserved = self._has_ahead = False
        self._room_bytes = LARGE_BYTES
