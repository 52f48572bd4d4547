"""Index files. If the index files of an active segment may have reserved space, they are memory-mapped.

A memory map is never closed explicitly, because a reader may still use it. Python frees the map after its last view.
Space is allocated before it is mapped, because the process would be killed by a write through a map to a full disk.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from typing import Final

from stratalog.errors import (
    ClosedError,
    FileReplacedError,
    OutOfResourcesError,
    PluginError,
    SegmentGoneError,
    StorageError,
    log_dir_error,
)
from stratalog.spi import Buffer, IndexFile
from stratalog_local.disk import Disk
from stratalog_local.folder import replace_file
from stratalog_local.pooled_file import PooledFile
from stratalog_local.segment_file import LocalSegmentFile

FIRST_BYTES: Final = 4096


class PlainIndex(IndexFile):
    """Index file without reserved space: all its bytes are entries.

    Args:
        file: the opened file; this object takes ownership.
        max_bytes: largest size to which appends may extend the file.
    """

    __slots__ = ("_content", "_file", "_max_bytes", "_path")

    def __init__(self, file: LocalSegmentFile, path: str, max_bytes: int) -> None:
        self._file, self._path = file, path
        self._max_bytes = max(max_bytes, file.size_bytes)
        self._content = memoryview(b"")  # content at the last call of `view`; between truncations the file only grows

    @property
    def size_bytes(self) -> int:
        """Size of the entries in bytes."""
        return self._file.size_bytes

    def append(self, entries: Buffer) -> None:
        """Implement ``IndexFile.append``."""
        self._file.check_writable()
        size = memoryview(entries).nbytes
        if size:
            check_fits(self.size_bytes + size, self._max_bytes, self._path)
            self._file.append(entries)

    def view(self) -> memoryview:
        """Return the bytes of all entries. Raise LogDirError if the file cannot be read."""
        size, content = self.size_bytes, self._content
        if len(content) < size:
            self._content = content = self._file.read(0, size)
        return content[:size]

    def truncate(self, size_bytes: int) -> None:
        """Implement ``IndexFile.truncate``."""
        self._file.truncate(size_bytes)
        self._content = memoryview(b"")

    def trim(self) -> None:
        """Do nothing: the file contains only entries."""

    def sync(self) -> None:
        """Make the entries durable. Raise LogDirError if this sync or an earlier write or sync failed."""
        self._file.sync()

    def close(self) -> None:
        """Close the file. ``view`` still returns the entries afterwards. Idempotent."""
        try:
            with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):
                self.view()
        finally:
            self._file.close()


class MappedIndex(PooledFile, IndexFile):
    """Index file that is written through a memory map. When the file and the map grow, their size doubles.

    Only one thread may write. Readers call ``view`` without a lock. ``sync`` also makes bytes durable that were written
    through a map.

    Args:
        size_bytes: size of the file; all its bytes are entries.
        max_bytes: largest size to which appends may extend the file.
    """

    __slots__ = ("_allocated_bytes", "_capacity", "_copy", "_map", "_maps", "_max_bytes", "_size_bytes")

    def __init__(self, disk: Disk, path: str, *, size_bytes: int, max_bytes: int) -> None:
        super().__init__(disk, path, writable=True)
        self._size_bytes = self._capacity = size_bytes
        self._max_bytes = max(max_bytes, size_bytes)
        self._allocated_bytes = 0  # size that may be written through a map; 0: an existing file may have holes
        # Read-only view of the whole map, because slices of a view cost less than a view for each reader. `obj` is the
        # map, for writes. Replaced under _change_lock; the pool may set it to None at any time.
        self._map: memoryview | None = None
        self._maps: tuple[weakref.ref[mmap.mmap], ...] = ()  # maps that a view may still use
        self._copy: bytes | None = None  # content that `view` returns after `close`

    @property
    def _change_lock(self) -> threading.Lock:
        """Lock for changes of the map and the file. Other indexes share it: hold only one such lock at a time."""
        return self._disk.change_locks[hash(self.path) % len(self._disk.change_locks)]

    @property
    def size_bytes(self) -> int:
        """Size of the entries in bytes, without reserved space."""
        return self._size_bytes

    def append(self, entries: Buffer) -> None:
        """Append entries to the memory-mapped index file.

        The file and the map grow first if the entries do not fit.
        """
        data = entries if isinstance(entries, bytes) else memoryview(entries).cast("B")
        start, memory_map = self._size_bytes, self._map
        end = start + len(data)
        if memory_map is None or end > self._allocated_bytes or self._failure is not None or self._disk.closed:
            self.check_writable()  # a mapped file is open, and open for writing
            if not data:
                return
            check_fits(end, self._max_bytes, self.path)
            with self._change_lock:
                if end > self._allocated_bytes:
                    self._grow(end)
                memory_map = self._map_file()
        memory_map.obj[start:end] = data  # type: ignore[index]  # a map, not any object
        self._size_bytes = end

    def view(self) -> memoryview:
        """Return the entries as a read-only view: of the map, or after ``close`` of a copy."""
        # without the lock: if entries were appended between the two reads, the map can be shorter than the size
        memory_map, size = self._map, self._size_bytes
        if memory_map is None or len(memory_map) < size:
            with self._change_lock:
                size = self._size_bytes
                if not size:
                    return memoryview(b"")
                if self._copy is not None:
                    return memoryview(self._copy)
                memory_map = self._map_file()
        return memory_map[:size]

    def truncate(self, size_bytes: int) -> None:
        """Implement ``IndexFile.truncate``. If the file cannot be truncated, it keeps its entries."""
        self.check_writable()
        if not 0 <= size_bytes <= self._size_bytes:
            raise ValueError(f"cannot truncate {self._size_bytes} bytes to {size_bytes}")
        with self._change_lock:
            old_size, self._size_bytes = self._size_bytes, size_bytes
            try:
                self._cut(views_see_more=size_bytes < old_size)
            except StorageError:
                self._size_bytes = old_size  # so that no append changes bytes of an older view
                raise

    def trim(self) -> None:
        """Remove the reserved space after the entries from the file. Raise LogDirError if the truncation fails."""
        self.check_writable()
        with self._change_lock:
            self._cut(views_see_more=False)

    def close(self) -> None:
        """Remove the reserved space, and close the file. ``view`` then returns a copy of the entries. Idempotent.

        The reserved space remains if a write or sync failed before, or if the store is closed.
        """
        with self._change_lock:
            if self._copy is not None:
                return
            self._copy = b""
            try:
                with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):  # no file to trim
                    self._copy = self._read_entries()
                    if self.in_service:
                        self._cut(views_see_more=False)
            finally:
                self._map = None
                self._disk.handles.drop((self, "map"))
                self.release_descriptor()

    # --- internal: the caller holds _change_lock --------------------------------------------------------------------

    def _grow(self, at_least: int) -> None:
        capacity = max(self._capacity, min(FIRST_BYTES, self._max_bytes))
        while capacity < at_least:
            capacity = min(capacity * 2, self._max_bytes)
        try:
            self.allocate(capacity)
        except OutOfResourcesError:
            self.cut(self._capacity)  # remove space that may have been allocated partly
            raise
        self._capacity = self._allocated_bytes = capacity
        self._map = None

    def _map_file(self) -> memoryview:
        view = self._map
        if view is not None and len(view) == self._capacity:
            return view
        descriptor = self.pin_for_change()
        try:
            # a read of the map beyond the end of the file would kill the process
            if self._disk.files.size_bytes(descriptor) < self._capacity:
                raise FileReplacedError("another process truncated the index file", self.path)
            memory_map = self._disk.handles.with_room(
                lambda: self._disk.files.map(descriptor, self._capacity, write=True)
            )
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        finally:
            self.unpin(descriptor)
        self._maps = (*(reference for reference in self._maps if reference() is not None), weakref.ref(memory_map))
        view = self._map = memoryview(memory_map).toreadonly()
        self._disk.handles.keep((self, "map"), self._release_map)
        return view

    def _read_entries(self) -> bytes:
        return self.read_bytes(0, self._size_bytes) if self._size_bytes else b""

    def _release_map(self) -> None:
        """Release the map. The pool calls this method, on any thread, when it needs the descriptor of the map."""
        self._map = None
        lock = self._change_lock
        if lock.acquire(blocking=False):  # the holder of the lock may be adding another map
            if not self._has_views():
                self._maps = ()
            lock.release()

    def _has_views(self) -> bool:
        """Return True if a view may still use a map of the file."""
        return any(reference() is not None for reference in self._maps)

    def _cut(self, *, views_see_more: bool) -> None:
        """Truncate the file to its entries.

        If a view covers more bytes, replace the file instead, because access to a map beyond the end of its file kills
        the process.
        """
        self._disk.handles.drop((self, "map"))
        self._map = None
        if views_see_more and self._has_views():
            replace_file(self._disk, self.path, self._read_entries(), sync=False)
            self._disk.handles.drop(self)
        elif self._capacity > self._size_bytes:
            self.cut(self._size_bytes)
        self._capacity, self._allocated_bytes = self._size_bytes, 0


def check_fits(size_bytes: int, max_bytes: int, path: str) -> None:
    """Raise PluginError if ``size_bytes`` is above ``max_bytes``.

    The index format, which is a plugin, should have reported earlier that the index is full.
    """
    if size_bytes > max_bytes:
        raise PluginError(f"an index of {size_bytes} bytes is above its bound of {max_bytes} bytes (path={path})")
