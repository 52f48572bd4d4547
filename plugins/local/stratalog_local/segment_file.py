"""One ``.log`` file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from stratalog.spi import (
    Buffer,
    ClosedError,
    DiskFullError,
    FileReplacedError,
    FileSlice,
    FileStat,
    OutOfResourcesError,
    SegmentFile,
    SegmentGoneError,
    StorageError,
    log_dir_error,
)
from stratalog_local.disk import Disk
from stratalog_local.pooled import PooledFile

AHEAD_BYTES: Final = 1 << 20  # reserved at a time
LARGE_BYTES: Final = 8 * AHEAD_BYTES  # of a file in which that is done: of a smaller one it would be too large a part
UNBOUNDED: Final = 1 << 63


class LocalSegmentFile(PooledFile, SegmentFile):
    """An append-only file. One writer; readers see bytes once they are all written.

    Args:
        disk: of the store; borrowed.
        path: of the file.
        size_bytes: how much of it counts.
        modified_ms: when it was last written.
        writable: whether it may be changed.
        reserved: space was taken in advance: the file on disk is larger than ``size_bytes`` says, until it is closed.

    Without that, space for the next appends is reserved while a large file grows: else each of them looks for some, which is
    a tenth of the time of a write of 16 KiB. The size of the file stays that of what was written.
    """

    __slots__ = ("_closed", "_file_id", "_has_ahead", "_modified_ms", "_reserved", "_room_bytes", "_size_bytes")

    def __init__(
        self, disk: Disk, path: str, *, size_bytes: int, modified_ms: int, writable: bool, reserved: bool = False
    ) -> None:
        super().__init__(disk, path, writable=writable)
        self._size_bytes = size_bytes  # moved by the writer, after the bytes are there: readers need no lock
        self._modified_ms, self._reserved = modified_ms, reserved
        self._has_ahead = False  # space behind the end of the file
        self._room_bytes = (
            UNBOUNDED if reserved else LARGE_BYTES
        )  # while the file is no larger, nothing more is reserved
        self._closed = False
        self._file_id: tuple[int, int] | None = None  # of the file as it was opened first, for writing

    @classmethod
    def create(cls, disk: Disk, path: str, preallocate_bytes: int) -> LocalSegmentFile:
        """Make the file; FileExistsError if it is there. Nothing is left of it if its space cannot be had."""
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
            found = files.stat(path)
        except FileExistsError:
            raise
        except OSError as error:
            raise log_dir_error(error, path) from error
        modified_ms = 0 if found is None else found.modified_ms
        return cls(disk, path, size_bytes=0, modified_ms=modified_ms, writable=True, reserved=bool(preallocate_bytes))

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    @property
    def modified_ms(self) -> int:
        """When the file was last written; for one that is gone, what was known of it."""
        with contextlib.suppress(OSError):
            found: FileStat | None = self._disk.files.stat(self.path)
            if found is not None:
                self._modified_ms = found.modified_ms
        return self._modified_ms

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end, or none."""
        disk, start = self._disk, self._size_bytes
        if self._is_gone or not self._writable or self._failed is not None or disk.closed:
            self.check_writable()
        size = memoryview(parts[0]).nbytes if len(parts) == 1 else sum([memoryview(part).nbytes for part in parts])
        if start + size > self._room_bytes:
            self._reserve(start + size)
        descriptor = disk.handles.pin_open(self)
        if descriptor is None:
            descriptor = self._pin_reopened()
        try:
            written = disk.files.write(descriptor, start, parts)
            if written < size:
                self._cut_back(descriptor)
                raise DiskFullError(f"{size} bytes do not fit, {written} did", self.path)
        except OSError as error:
            raise self._not_written(descriptor, error) from error
        finally:
            disk.handles.unpin(self, descriptor)
        self._size_bytes = start + size
        return start

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        wanted = min(size_bytes, self._size_bytes - position)
        return memoryview(self.read_bytes(position, wanted) if wanted > 0 else b"")

    def read_into(self, position: int, into: memoryview) -> int:
        """The same into memory of the caller's."""
        wanted = min(len(into), self._size_bytes - position)
        return super().read_into(position, into[:wanted]) if wanted > 0 else 0

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same, with the file's descriptor, which stays open until the slice is released."""
        descriptor = self.pin()
        try:
            data = self.read_pinned(descriptor, position, min(size_bytes, self._size_bytes - position))
        except BaseException:
            self.unpin(descriptor)
            raise
        return FileSlice(memoryview(data), position, descriptor, partial(self.unpin, descriptor))

    def truncate(self, size_bytes: int) -> None:
        """Cut, reserved space included."""
        self.check_writable()
        if not 0 <= size_bytes <= self._size_bytes:
            raise ValueError(f"cannot cut {self._size_bytes} bytes to {size_bytes}")
        before, self._size_bytes = self._size_bytes, size_bytes
        try:
            self._cut()
        except OutOfResourcesError:
            self._size_bytes = before
            raise

    def trim(self) -> bool:
        """Cut reserved space: after a loss of power it would be zeros that follow the last record."""
        self.check_writable()
        grew = self._reserved
        self._give_back()
        return grew

    def sync(self) -> None:
        """Make the bytes durable, in the file that has the name.

        Raises:
            FileReplacedError: another process removed, replaced or cut the file: the bytes may be gone.
        """
        super().sync()
        if self._lost_bytes():  # a truncation of our own may have come in between
            reason = self._lost_bytes()
            if reason:
                raise FileReplacedError(reason, self.path)

    def close(self) -> None:
        """Cut reserved space and let the descriptor go."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.in_service:
                with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):  # nothing is left to cut
                    self._give_back()
        finally:
            self.let_go()

    def _open(self) -> int:
        """Open the file; for writing, only the one that was opened first: another one of that name is not ours to change."""
        descriptor = super()._open()
        if self._writable:
            found = self._disk.files.file_id(descriptor)
            if self._file_id is None:
                self._file_id = found
            elif found != self._file_id:
                self._disk.files.close(descriptor)
                raise FileReplacedError("another process replaced the file", self.path)
        return descriptor

    def _pin_reopened(self) -> int:
        """As ``pin_for_change``, of a file that is not open: a new one may have the number of one that was removed."""
        descriptor = self.pin_for_change()
        if self._disk.files.size_bytes(descriptor) < self._size_bytes:
            self.unpin(descriptor)
            raise FileReplacedError("another process replaced or cut the file", self.path)
        return descriptor

    def _lost_bytes(self) -> str:
        """Say what another process did to the file that was opened; "" if all that was written has the name still."""
        size = self._size_bytes
        try:
            found = self._disk.files.stat(self.path)
        except OSError as error:
            return log_dir_error(error, self.path).reason
        if found is None:
            return "another process removed the file"
        if found.file_id != self._file_id:
            return "another process replaced the file"
        if found.size_bytes < min(size, self._size_bytes):
            return f"another process cut the file to {found.size_bytes} bytes, of {size} that were written"
        return ""

    def _reserve(self, end: int) -> None:
        """Take space up to ``AHEAD_BYTES`` behind ``end``. Where there is none, the write tells whether it needs that."""
        self._room_bytes = end + AHEAD_BYTES
        descriptor = self.pin()
        self._has_ahead = True  # even where a full disk ends it: part of it may have been taken
        try:
            self._disk.files.reserve(descriptor, self._size_bytes, self._room_bytes - self._size_bytes)
        except OSError as error:
            if not isinstance(
                log_dir_error(error, self.path), OutOfResourcesError
            ):  # no such thing on this file system
                self._room_bytes, self._has_ahead = UNBOUNDED, False
        finally:
            self.unpin(descriptor)

    def _give_back(self) -> None:
        """Cut space that was reserved. The file keeps the time of its last append, by which retention may go."""
        if self._reserved:
            self._cut()
        elif self._has_ahead:
            modified_ms = self.modified_ms
            self._cut()
            with contextlib.suppress(OSError):  # then its records live longer
                self._disk.files.set_modified(self.path, modified_ms)

    def _cut(self) -> None:
        self.cut(self._size_bytes)
        self._has_nothing_ahead()

    def _not_written(self, descriptor: int, error: OSError) -> StorageError:
        """Cut back what a failed write left; the error to raise. The file stays in service if nothing is left."""
        found = self.refused(error)
        try:
            self._cut_back(descriptor)
        except OSError as uncut:  # recovery cuts what this leaves
            return self.fail(uncut) if isinstance(found, OutOfResourcesError) else found
        return found

    def _cut_back(self, descriptor: int) -> None:
        self._disk.files.truncate(descriptor, self._size_bytes)
        self._has_nothing_ahead()

    def _has_nothing_ahead(self) -> None:
        self._reserved = self._has_ahead = False
        self._room_bytes = LARGE_BYTES
