"""Files in the folder of one log."""

from __future__ import annotations

import contextlib

from stratalog.errors import CorruptIndexError, SegmentGoneError
from stratalog.spi import IndexFile, LogFiles, SegmentFile
from stratalog_local.disk import Disk, check_name
from stratalog_local.folder import Folder
from stratalog_local.index_file import MappedIndex, PlainIndex
from stratalog_local.segment_file import LocalSegmentFile


class LocalLogFiles(Folder, LogFiles):
    """The folder of one log, with its files. Close an open file before you rename it. An open file may be deleted."""

    def __init__(self, disk: Disk, path: str, name: str) -> None:
        super().__init__(disk, path)
        self.name = name

    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        """Open a ``.log`` file. With ``create``, create the file and allocate ``preallocate_bytes`` of disk space.

        Raises:
            SegmentGoneError: the file is missing, and ``create`` is False.
            FileExistsError: the file exists, and ``create`` is True.
            ReadOnlyError: ``create`` is True, and the store was opened for reading.
            LogDirError: the file cannot be created, or its attributes cannot be read.
        """
        path = self.path(check_name(name))
        if create:
            self._disk.check_writable(path)
            return LocalSegmentFile.create(self._disk, path, preallocate_bytes)
        attributes = self.stat(name)
        if attributes is None:
            raise SegmentGoneError("the file does not exist", path)
        return LocalSegmentFile(
            self._disk,
            path,
            size_bytes=attributes.size_bytes,
            modified_ms=attributes.modified_ms,
            writable=not self._disk.read_only,
            file_id=attributes.file_id if self._disk.read_only else None,
        )

    def open_index(self, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> IndexFile:
        """Open an index file.

        If the file is missing, create it if ``writable`` is True; otherwise return an empty index.

        If ``writable`` and ``reserve`` are True, the file is memory-mapped, and it may have reserved space after its
        entries until it is closed. ``max_bytes`` is the largest size to which the file may grow.

        Raises:
            CorruptIndexError: the file is larger than ``max_bytes``, and ``writable`` is False.
            ReadOnlyError: ``writable`` is True, and the store was opened for reading.
            LogDirError: the file cannot be created, or its attributes cannot be read.
        """
        path = self.path(check_name(name))
        if writable:
            self._disk.check_writable(path)
            with contextlib.suppress(FileExistsError):
                LocalSegmentFile.create(self._disk, path, 0).close()
        attributes = self.stat(name)
        size_bytes, modified_ms = (0, 0) if attributes is None else (attributes.size_bytes, attributes.modified_ms)
        if writable and reserve:
            return MappedIndex(self._disk, path, size_bytes=size_bytes, max_bytes=max_bytes)
        if size_bytes > max_bytes and not writable:
            raise CorruptIndexError(f"{size_bytes} bytes are above the limit of {max_bytes}", path, max_bytes)
        file = LocalSegmentFile(
            self._disk,
            path,
            size_bytes=size_bytes,
            modified_ms=modified_ms,
            writable=writable,
            file_id=attributes.file_id if attributes is not None and self._disk.read_only else None,
        )
        return PlainIndex(file, path, max_bytes)

    def rename(self, old: str, new: str) -> None:
        """Rename a file. If the file is missing, do nothing. The new name is durable only after ``sync``."""
        self.rename_existing(old, new)

    def remove(self, name: str) -> None:
        """Delete a file. If the file is missing, do nothing. The deletion is durable only after ``sync``."""
        self.remove_existing(name)
