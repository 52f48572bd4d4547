"""Files in the folder of one log."""

from __future__ import annotations

import contextlib

from stratalog.errors import CorruptIndexError, SegmentGoneError
from stratalog.spi import Buffer, FileStat, IndexFile, LogFiles, SegmentFile
from stratalog_local.disk import Disk, checked_name
from stratalog_local.folder import Folder
from stratalog_local.index_file import MappedIndex, PlainIndex
from stratalog_local.segment_file import LocalSegmentFile


class LocalLogFiles(LogFiles):
    """Files of one log. Close an open file before it is renamed; an open file may be removed."""

    def __init__(self, disk: Disk, folder: Folder, name: str) -> None:
        self.name = name
        self._disk, self._folder = disk, folder

    def path(self, name: str = "") -> str:
        """Return the path of a file, or of the folder if ``name`` is empty."""
        return self._folder.path(name)

    def list(self) -> list[FileStat]:
        """Return the entries of the folder, sorted by name."""
        return self._folder.list()

    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        """Open a ``.log`` file.

        Raises:
            SegmentGoneError: the file is missing.
            FileExistsError: ``create`` is set and the file exists.
        """
        path = self._folder.path(checked_name(name))
        if create:
            self._disk.check_writable(path)
            return LocalSegmentFile.create(self._disk, path, preallocate_bytes)
        found = self._folder.stat(name)
        if found is None:
            raise SegmentGoneError("the file does not exist", path)
        return LocalSegmentFile(
            self._disk,
            path,
            size_bytes=found.size_bytes,
            modified_ms=found.modified_ms,
            writable=not self._disk.read_only,
        )

    def open_index(self, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> IndexFile:
        """Open an index file."""
        path = self._folder.path(checked_name(name))
        if writable:
            self._disk.check_writable(path)
            with contextlib.suppress(FileExistsError):
                LocalSegmentFile.create(self._disk, path, 0).close()
        found = self._folder.stat(name)
        size_bytes, modified_ms = (0, 0) if found is None else (found.size_bytes, found.modified_ms)
        if writable and reserve:
            return MappedIndex(self._disk, path, size_bytes=size_bytes, max_bytes=max_bytes)
        if size_bytes > max_bytes and not writable:
            raise CorruptIndexError(f"{size_bytes} bytes are above the limit of {max_bytes}", path, max_bytes)
        file = LocalSegmentFile(self._disk, path, size_bytes=size_bytes, modified_ms=modified_ms, writable=writable)
        return PlainIndex(file, path, max_bytes)

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it is missing."""
        return self._folder.read_small(name)

    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace a small file. The change is durable on return."""
        self._folder.replace_small(name, data)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._folder.rename(old, new)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._folder.remove(name)

    def set_modified(self, name: str, modified_ms: int) -> None:
        """Set a file's modification time."""
        self._folder.set_modified(name, modified_ms)

    def sync(self) -> None:
        """Make the folder's names durable."""
        self._folder.sync()
