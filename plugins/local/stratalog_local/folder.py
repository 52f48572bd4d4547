"""One folder. It checks names, raises typed errors, and replaces small files atomically."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import Final

from stratalog.errors import (
    CorruptCheckpointError,
    DiskFullError,
    LogDirNotFoundError,
    LogDirOfflineError,
    NotAFileError,
    StorageError,
    log_dir_error,
)
from stratalog.spi import Buffer, FileStat
from stratalog_local.disk import Disk, check_name

_NEW: Final = ".tmp"
# Errors that are possible only when a folder is opened, not in a sync.
_NOT_OPENED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES})

_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})  # POSIX allows both errors


class Folder:
    """A folder on disk. Thread-safe.

    Methods raise LogDirError if the system refuses an operation, ClosedError after the store was closed, and
    ConfigError for an invalid name. Methods that change the folder raise ReadOnlyError if the store was opened for
    reading.

    Args:
        path: path of the folder, which need not exist.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk, self._path = disk, path
        self._has_failed_sync = False  # if a sync fails, names may be lost; a second sync would not report this
        self._replace_lock = threading.Lock()  # two writers of one small file would use the same temporary name

    def path(self, name: str = "") -> str:
        """Return the path of the file or folder ``name``. If ``name`` is empty, return the path of this folder."""
        return f"{self._path}/{check_name(name)}" if name else self._path

    def list(self) -> list[FileStat]:
        """Return the files and folders in this folder, sorted by name. Symbolic links are not followed."""
        self._disk.check_open(self._path)
        try:
            return self._disk.handles.with_room(lambda: self._disk.files.list(self._path))
        except OSError as error:
            raise log_dir_error(error, self._path) from error

    def stat(self, name: str) -> FileStat | None:
        """Return the attributes of a file or folder; None if it does not exist. A symbolic link is followed."""
        return self._stat(self.path(check_name(name)))

    def exists(self) -> bool:
        """Return True if there is a folder, or a symbolic link to a folder, at the path."""
        attributes = self._stat(self._path)
        return attributes is not None and attributes.is_folder

    def read_small(self, name: str) -> bytes | None:
        """Return the contents of a small file; None if the file is missing.

        Raises:
            CorruptCheckpointError: the file is larger than ``limits.checkpoint.bytes``.
        """
        path, files = self.path(check_name(name)), self._disk.files
        self._disk.check_open(path)
        try:
            descriptor = self._disk.handles.with_room(lambda: files.open(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise log_dir_error(error, path) from error
        try:
            size, limit = files.size_bytes(descriptor), self._disk.small_limit_bytes
            if size > limit:
                raise CorruptCheckpointError(f"{size} bytes are above limits.checkpoint.bytes={limit}", path)
            return files.read(descriptor, 0, size)
        except OSError as error:
            raise log_dir_error(error, path) from error
        finally:
            files.close(descriptor)

    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace or create a small file atomically. The new file is durable on return."""
        path = self.path(check_name(name))
        self._disk.check_writable(path)
        with self._replace_lock:
            replace_file(self._disk, path, data, sync=True)
            self.sync()

    def rename_existing(self, old: str, new: str) -> bool:
        """Rename a file or folder. An existing file ``new`` is replaced. Return False if ``old`` does not exist.

        The new name is durable only after ``sync``.
        """
        old_path, new_path = self.path(check_name(old)), self.path(check_name(new))
        self._disk.check_writable(old_path)
        try:
            self._disk.files.rename(old_path, new_path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                full = NotAFileError("a folder with files has the new name", new_path)
                raise full.advised("move the folder away, then repeat the call") from error
            raise log_dir_error(error, old_path) from error
        return True

    def remove_existing(self, name: str) -> bool:
        """Delete a file. Return False if the file does not exist. The deletion is durable only after ``sync``."""
        path = self.path(check_name(name))
        self._disk.check_writable(path)
        try:
            self._disk.files.remove(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise log_dir_error(error, path) from error
        return True

    def set_modified(self, name: str, modified_ms: int) -> None:
        """Set a file's modification time (ms since 1970). Raise LogDirNotFoundError if the file is missing."""
        path = self.path(check_name(name))
        self._disk.check_writable(path)
        try:
            self._disk.files.set_modified(path, modified_ms)
        except OSError as error:
            raise log_dir_error(error, path) from error

    def remove_tree(self, name: str) -> None:
        """Delete the folder ``name`` with all its contents. The deletion is durable only after ``sync``.

        If ``name`` is a symbolic link to a folder, delete only the link. Do nothing if ``name`` is missing or is a file.
        """
        path = self.path(check_name(name))
        self._disk.check_writable(path)
        if self._remove_empty(name):
            return
        folder = Folder(self._disk, path)
        try:
            entries = folder.list()
        except LogDirNotFoundError:
            return
        for entry in entries:
            if entry.is_folder:
                folder.remove_tree(entry.name)
            else:
                folder.remove_existing(entry.name)
        try:
            self._disk.files.remove_folder(path)
        except OSError as error:
            raise log_dir_error(error, path) from error

    def _remove_empty(self, name: str) -> bool:
        """Delete ``name`` if it is an empty folder or a link to a folder.

        Return False if it is a folder that is not empty.
        """
        path = self.path(name)
        try:
            self._disk.files.remove_folder(path)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise log_dir_error(error, path) from error
            attributes = self._stat(path)
            # the system refuses to remove a symbolic link as a folder; the attributes describe the target of the link
            if attributes is not None and attributes.is_folder:
                self.remove_existing(name)
        return True

    def make(self) -> None:
        """Create the folder and its missing parents. The new folders are durable on return.

        Raises:
            FileExistsError: the folder, or a file at its path, exists.
        """
        self._disk.check_writable(self._path)
        files, parent = self._disk.files, _parent(self._path)
        try:
            if files.stat(parent) is None:
                with contextlib.suppress(FileExistsError):  # another thread or process has created it meanwhile
                    Folder(self._disk, parent).make()
            files.make_folder(self._path)
            self._disk.handles.with_room(lambda: files.sync_folder(parent))
        except FileExistsError:
            raise
        except OSError as error:
            raise log_dir_error(error, self._path) from error

    def sync(self) -> None:
        """Make new, changed and deleted names in the folder durable.

        Raises:
            LogDirOfflineError: this sync or an earlier sync failed. A failed sync is never retried.
            LogDirError: the folder cannot be opened. The caller may retry.
        """
        self._disk.check_writable(self._path)
        if self._has_failed_sync:
            raise LogDirOfflineError("an earlier sync of the folder failed", self._path)
        try:
            self._disk.handles.with_room(lambda: self._disk.files.sync_folder(self._path))
        except OSError as error:
            typed_error = log_dir_error(error, self._path)
            if error.errno in _NOT_OPENED:
                raise typed_error from error
            self._has_failed_sync = True
            raise LogDirOfflineError(typed_error.reason, self._path) from error

    def _stat(self, path: str) -> FileStat | None:
        self._disk.check_open(path)
        try:
            return self._disk.files.stat(path)
        except OSError as error:
            raise log_dir_error(error, path) from error


def replace_file(disk: Disk, path: str, data: Buffer, *, sync: bool) -> None:
    """Write ``data`` to a temporary file, and rename the file to ``path``. A file at ``path`` is replaced.

    With ``sync``, ``data`` is durable before the rename. Without ``sync``, a power loss may leave a partial file. The
    rename is durable only after a sync of the folder.

    Raises:
        LogDirError: the write, the sync or the rename failed. The old file is unchanged.
    """
    files, temporary = disk.files, path + _NEW
    try:
        _write_new(disk, temporary, data, sync=sync)
        files.rename(temporary, path)
    except (OSError, StorageError) as error:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        if isinstance(error, OSError):
            raise log_dir_error(error, path) from error
        raise


def _write_new(disk: Disk, path: str, data: Buffer, *, sync: bool) -> None:
    files = disk.files

    def create() -> int:
        return files.open(path, write=True, create=True)

    try:
        descriptor = disk.handles.with_room(create)
    except FileExistsError:  # the file remained after a crash
        files.remove(path)
        descriptor = disk.handles.with_room(create)
    try:
        if files.write(descriptor, 0, data) < memoryview(data).nbytes:
            raise DiskFullError("no space left on device", path)
        if sync:
            files.sync(descriptor)
    finally:
        files.close(descriptor)


def _parent(path: str) -> str:
    parent, slash, _ = path.rstrip("/").rpartition("/")
    return parent or (slash or ".")
