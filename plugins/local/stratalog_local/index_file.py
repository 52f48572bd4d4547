"""Index files: grown as a map in an active segment, plain elsewhere.

A map is never closed by hand, because a reader may still look through it: the last view to go takes it along. Space is
allocated before it is mapped, since writing through a map to a full disk kills the process.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from typing import Final

from stratalog.spi import (
    Buffer,
    ClosedError,
    FileReplacedError,
    IndexFile,
    OutOfResourcesError,
    PluginError,
    SegmentGoneError,
    log_dir_error,
)
from stratalog_local.disk import Disk
from stratalog_local.folder import replace_file
from stratalog_local.pooled import PooledFile
from stratalog_local.segment_file import LocalSegmentFile

FIRST_BYTES: Final = 4096


class PlainIndex(IndexFile):
    """A file that holds entries and nothing else at any moment.

    Args:
        file: the opened file; taken over.
        path: of the file.
        max_bytes: it never grows past this.
    """

    __slots__ = ("_file", "_max_bytes", "_path", "_read")

    def __init__(self, file: LocalSegmentFile, path: str, max_bytes: int) -> None:
        self._file, self._path = file, path
        self._max_bytes = max(max_bytes, file.size_bytes)
        self._read = memoryview(b"")  # as of the last view; entries are only added, or cut by truncate

    @property
    def size_bytes(self) -> int:
        """Bytes of entries."""
        return self._file.size_bytes

    def append(self, entries: Buffer) -> None:
        """Add entries."""
        self._file.check_writable()
        size = memoryview(entries).nbytes
        if size:
            check_fits(self.size_bytes + size, self._max_bytes, self._path)
            self._file.append([entries])

    def view(self) -> memoryview:
        """The entries, read once and kept until there are more."""
        size, read = self.size_bytes, self._read
        if len(read) < size:
            self._read = read = self._file.read(0, size)
        return read[:size]

    def truncate(self, size_bytes: int) -> None:
        """Keep the first ``size_bytes``."""
        self._file.truncate(size_bytes)
        self._read = memoryview(b"")

    def trim(self) -> None:
        """Nothing: no space is reserved."""

    def sync(self) -> None:
        """Make the entries durable."""
        self._file.sync()

    def close(self) -> None:
        """Close; what is to be read later is read now."""
        try:
            with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):
                self.view()
        finally:
            self._file.close()


class MappedIndex(PooledFile, IndexFile):
    """A file that grows as a map, by doubling. One writer; readers take views without a lock.

    A sync of the file covers what was written through maps of it.

    Args:
        disk: of the store; borrowed.
        path: of the file, which is there.
        size_bytes: of it; all are entries.
        max_bytes: it never grows past this.
    """

    __slots__ = ("_allocated_bytes", "_capacity", "_copy", "_map", "_maps", "_max_bytes", "_size_bytes")

    def __init__(self, disk: Disk, path: str, *, size_bytes: int, max_bytes: int) -> None:
        super().__init__(disk, path, writable=True)
        self._size_bytes = self._capacity = size_bytes
        self._max_bytes = max(max_bytes, size_bytes)
        self._allocated_bytes = 0  # how much may be written through a map: a file we find may have holes
        self._map: mmap.mmap | None = None  # replaced under _changing; the pool may set it to None at any time
        self._maps: tuple[weakref.ref[mmap.mmap], ...] = ()  # those that somebody may still look through
        self._copy: bytes | None = None  # of a closed index: what readers see

    @property
    def _changing(self) -> threading.Lock:
        """Held while the map or the file changes. Some other indexes have the same; whoever has one takes no other."""
        return self._disk.changing[hash(self.path) % len(self._disk.changing)]

    @property
    def size_bytes(self) -> int:
        """Bytes of entries."""
        return self._size_bytes

    def append(self, entries: Buffer) -> None:
        """Write entries through the map, which grows first if they do not fit."""
        data = entries if isinstance(entries, bytes) else memoryview(entries).cast("B")
        start, mapped = self._size_bytes, self._map
        end = start + len(data)
        if mapped is None or end > self._allocated_bytes or self._failed is not None or self._disk.closed:
            self.check_writable()  # what is mapped is open, and for writing
            if not data:
                return
            check_fits(end, self._max_bytes, self.path)
            with self._changing:
                if end > self._allocated_bytes:
                    self._grow(end)
                mapped = self._mapped()
        mapped[start:end] = data
        self._size_bytes = end

    def view(self) -> memoryview:
        """The entries, through the map; of a closed index a copy."""
        mapped, size = self._map, self._size_bytes  # in this order: a map is never shorter than the size before it
        if mapped is None or len(mapped) < size:
            with self._changing:
                size = self._size_bytes
                if not size:
                    return memoryview(b"")
                if self._copy is not None:
                    return memoryview(self._copy)
                mapped = self._mapped()
        return memoryview(mapped)[:size].toreadonly()

    def truncate(self, size_bytes: int) -> None:
        """Keep the first ``size_bytes``, on disk too."""
        self.check_writable()
        if not 0 <= size_bytes <= self._size_bytes:
            raise ValueError(f"cannot cut {self._size_bytes} bytes to {size_bytes}")
        with self._changing:
            shrinks = size_bytes < self._size_bytes
            self._size_bytes = size_bytes
            self._cut(views_see_more=shrinks)

    def trim(self) -> None:
        """Give back the space behind the entries."""
        self.check_writable()
        with self._changing:
            self._cut(views_see_more=False)

    def close(self) -> None:
        """Trim and let everything go."""
        with self._changing:
            if self._copy is not None:
                return
            self._copy = b""
            try:
                with contextlib.suppress(ClosedError, FileReplacedError, SegmentGoneError):  # nothing is left to trim
                    self._copy = self._entries()
                    if self.in_service:
                        self._cut(views_see_more=False)
            finally:
                self._map = None
                self._disk.handles.drop((self, "map"))
                self.let_go()

    # --- inside: all under _changing ---------------------------------------------------------------------------------

    def _grow(self, at_least: int) -> None:
        capacity = max(self._capacity, min(FIRST_BYTES, self._max_bytes))
        while capacity < at_least:
            capacity = min(capacity * 2, self._max_bytes)
        try:
            self.allocate(capacity)
        except OutOfResourcesError:
            self.cut(self._capacity)  # a part may have been allocated
            raise
        self._capacity = self._allocated_bytes = capacity
        self._map = None

    def _mapped(self) -> mmap.mmap:
        mapped = self._map
        if mapped is not None and len(mapped) == self._capacity:
            return mapped
        descriptor = self.pin_for_change()
        try:
            if self._disk.files.size_bytes(descriptor) < self._capacity:  # reading past its end would be fatal
                raise FileReplacedError("another process cut the index file", self.path)
            mapped = self._disk.handles.with_room(lambda: self._disk.files.map(descriptor, self._capacity, write=True))
        except OSError as error:
            raise log_dir_error(error, self.path) from error
        finally:
            self.unpin(descriptor)
        self._maps = (*(known for known in self._maps if known() is not None), weakref.ref(mapped))
        self._map = mapped
        self._disk.handles.keep((self, "map"), self._let_map_go)
        return mapped

    def _entries(self) -> bytes:
        return self.read_bytes(0, self._size_bytes) if self._size_bytes else b""

    def _let_map_go(self) -> None:
        """Called by the pool, on any thread, when others need the map's descriptor."""
        self._map = None
        changing = self._changing
        if changing.acquire(blocking=False):  # who has it may be about to note another map
            if not self._is_seen():
                self._maps = ()
            changing.release()

    def _is_seen(self) -> bool:
        """Whether somebody may look through a map of the file."""
        return any(known() is not None for known in self._maps)

    def _cut(self, *, views_see_more: bool) -> None:
        """Cut the file to its entries. A view that sees more of it than that would be fatal to use: it keeps the old file."""
        self._disk.handles.drop((self, "map"))
        self._map = None
        if views_see_more and self._is_seen():
            replace_file(self._disk, self.path, self._entries(), sync=False)
            self._disk.handles.drop(self)
        elif self._capacity > self._size_bytes:
            self.cut(self._size_bytes)
        self._capacity, self._allocated_bytes = self._size_bytes, 0


def check_fits(size_bytes: int, max_bytes: int, path: str) -> None:
    """Raise PluginError if an index would grow past its bound: its builder should have said that it is full."""
    if size_bytes > max_bytes:
        raise PluginError(f"an index of {size_bytes} bytes is above its bound max_bytes={max_bytes} path={path}")
