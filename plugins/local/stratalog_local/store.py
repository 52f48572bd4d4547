"""Store of log directories on local disk, and the files in the folder of one log."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from stratalog.errors import (
    ConfigError,
    CorruptIndexError,
    LogDirError,
    LogDirLockedError,
    LogDirNotFoundError,
    LogDirPermissionError,
    NotAFileError,
    SegmentGoneError,
    log_dir_error,
)
from stratalog.spi import IndexFile, LogFiles, OpenContext, SegmentFile, SegmentStore
from stratalog_local.disk import Disk, check_name
from stratalog_local.folder import Folder
from stratalog_local.index_file import MappedIndex, PlainIndex
from stratalog_local.segment_file import LocalSegmentFile

_LOGGER: Final = logging.getLogger(__name__)
LOCK_FILE: Final = ".lock"  # Kafka's name of the lock file; it must not change


class LocalStore(Folder, SegmentStore):
    """One log directory on local disk.

    ``location`` of the context is the path of the directory, with or without the prefix ``file://``. The constructor
    raises ConfigError if the location contains no path.
    """

    def __init__(self, context: OpenContext) -> None:
        disk = Disk(
            files=context.env.files,
            handles=context.handles,
            read_only=context.read_only,
            small_limit_bytes=context.limits.checkpoint_bytes,
        )
        super().__init__(disk, _strip_scheme(context.location))
        self._lock: int | None = None  # descriptor that holds the lock
        self._reported_links = set[str]()  # names

    def acquire(self) -> None:
        """Implement ``SegmentStore.acquire``. A second call has no effect."""
        path, files = self.path(), self._disk.files
        self._disk.check_writable(path)
        if self._lock is not None:
            return
        try:
            if not self.exists():
                with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
                    self.make()
            self._lock = self._disk.handles.with_room(lambda: files.lock(self.path(LOCK_FILE)))
        except OSError as error:
            typed_error = log_dir_error(error, path)
            if isinstance(typed_error, NotAFileError) or (
                isinstance(typed_error, LogDirPermissionError) and self._has_lock_file()
            ):
                typed_error = log_dir_error(error, self.path(LOCK_FILE))
            raise typed_error from error
        if self._lock is None:
            raise LogDirLockedError("another engine or a running broker holds the directory", path)

    def _has_lock_file(self) -> bool:
        try:
            return self.stat(LOCK_FILE) is not None
        except LogDirError:  # raised if the directory itself denies access
            return False

    def is_acquired_elsewhere(self) -> bool:
        """Implement ``SegmentStore.is_acquired_elsewhere``."""
        path = self.path(LOCK_FILE)
        self._disk.check_open(path)
        if self._lock is not None:
            return False
        try:
            return self._disk.handles.with_room(lambda: self._disk.files.is_locked(path))
        except OSError as error:
            raise log_dir_error(error, path) from error

    def logs(self) -> list[str]:
        """Return the names of the folders in the directory, sorted. Raise LogDirError if the read fails.

        A symbolic link to a folder is left out, with a warning at the first call, because a broker follows it.
        """
        entries = self.list()
        for entry in entries:
            if not entry.is_file and not entry.is_folder and entry.name not in self._reported_links:
                self._report_link(entry.name)
        return [entry.name for entry in entries if entry.is_folder]

    def _report_link(self, name: str) -> None:
        with contextlib.suppress(LogDirError):  # a link that cannot be followed leads to no log
            attributes = self.stat(name)
            if attributes is not None and attributes.is_folder:
                self._reported_links.add(name)
                _LOGGER.warning(
                    "a folder is ignored, because it is a symbolic link: path=%s: mount the folder of a log with this "
                    "name instead",
                    self.path(name),
                )

    def open_log(self, name: str, *, create: bool = False) -> LogFiles:
        """Open or create a log's folder; see ``SegmentStore.open_log``. A new folder is durable on return."""
        folder = LocalLogFiles(self._disk, self.path(check_name(name)), name)
        if create:
            if not self.exists():
                raise LogDirNotFoundError("the directory does not exist", self.path())
            folder.make()
        elif not folder.exists():
            raise LogDirNotFoundError("the folder does not exist", folder.path())
        return folder

    def rename_log(self, old: str, new: str) -> None:
        """Rename a log's folder; see ``SegmentStore.rename_log``. An empty folder ``new`` is replaced."""
        if not self.rename_existing(old, new):
            raise LogDirNotFoundError("the folder does not exist", self.path(old))
        self.sync()

    def remove_log(self, name: str) -> None:
        """Implement ``SegmentStore.remove_log``. The deletion is durable on return."""
        self.remove_tree(name)
        self.sync()

    def remove_small(self, name: str) -> None:
        """Implement ``SegmentStore.remove_small``."""
        if self.remove_existing(name):
            self.sync()

    def close(self) -> None:
        """Implement ``SegmentStore.close``."""
        self._disk.closed = True
        lock, self._lock = self._lock, None
        if lock is not None:
            self._disk.files.close(lock)


def _strip_scheme(location: str) -> str:
    path = location.removeprefix("file://")
    if not path:  # the path of the current folder is "."
        raise ConfigError(f"{location!r} is not a log directory: use a path or file:///PATH")
    return path.rstrip("/") or path[:1]


class LocalLogFiles(Folder, LogFiles):
    """The folder of one log, with its files. Close an open file before you rename it. An open file may be deleted."""

    def __init__(self, disk: Disk, path: str, name: str) -> None:
        super().__init__(disk, path)
        self.name = name

    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        """Implement ``LogFiles.open_segment``."""
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
        """Open an index file; see ``LogFiles.open_index``. With ``writable`` and ``reserve``, map it to memory."""
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
