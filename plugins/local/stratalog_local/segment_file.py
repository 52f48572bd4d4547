"""One ``.log`` file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from stratalog.spi import Buffer, ClosedError, DiskFullError, FileSlice, FileStat, SegmentFile, SegmentGoneError
from stratalog_local.disk import Disk, typed
from stratalog_local.pooled import PooledFile


class LocalSegmentFile(PooledFile, SegmentFile):
    """An append-only file. One writer; readers see bytes once they are all written.

    Args:
        disk: of the store; borrowed.
        path: of the file.
        size_bytes: how much of it counts.
        modified_ms: when it was last written.
        writable: whether it may be changed.
        reserved: space was taken in advance: the file on disk is larger than ``size_bytes`` says, until it is closed.
    """

    __slots__ = ("_closed", "_modified_ms", "_reserved", "_size_bytes")

    def __init__(
        self, disk: Disk, path: str, *, size_bytes: int, modified_ms: int, writable: bool, reserved: bool = False
    ) -> None:
        super().__init__(disk, path, writable=writable)
        self._size_bytes = size_bytes  # moved by the writer, after the bytes are there: readers need no lock
        self._modified_ms, self._reserved = modified_ms, reserved
        self._closed = False

    @classmethod
    def create(cls, disk: Disk, path: str, preallocate_bytes: int) -> LocalSegmentFile:
        """Make the file; FileExistsError if it is there. Nothing is left of it if its space cannot be had."""
        files = disk.files
        try:
            descriptor = files.open(path, write=True, create=True)
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
            raise typed(error, path) from error
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
        descriptor = disk.handles.pin_open(self)
        if descriptor is None:
            descriptor = self.pin()
        try:
            written = disk.files.write(descriptor, start, parts)
            if written < size:
                self._cut_back(descriptor)
                raise DiskFullError(f"{size} bytes do not fit, {written} did", self.path)
        except OSError as error:
            failure = self.fail(error)
            with contextlib.suppress(OSError):  # the disk is in trouble: recovery cuts what this leaves
                self._cut_back(descriptor)
            raise failure from error
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
        self._size_bytes = size_bytes
        self._cut()

    def trim(self) -> bool:
        """Cut reserved space: after a loss of power it would be zeros that follow the last record."""
        self.check_writable()
        trims = self._reserved
        if trims:
            self._cut()
        return trims

    def close(self) -> None:
        """Cut reserved space and let the descriptor go."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._reserved and self.in_service:
                with contextlib.suppress(ClosedError, SegmentGoneError):  # nothing is left to cut
                    self._cut()
        finally:
            self.let_go()

    def _cut(self) -> None:
        self.cut(self._size_bytes)
        self._reserved = False

    def _cut_back(self, descriptor: int) -> None:
        self._disk.files.truncate(descriptor, self._size_bytes)
        self._reserved = False
