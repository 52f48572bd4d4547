"""One folder: checked names, typed errors, and atomic replacement of small files."""

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
    StorageError,
    log_dir_error,
)
from stratalog.spi import Buffer, FileStat
from stratalog_local.disk import Disk, checked_name

_NEW: Final = ".tmp"
# Errors that only opening a folder returns, never a sync.
_NOT_OPENED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES})


class Folder:
    """A folder on disk. Thread-safe.

    Methods raise LogDirError if the disk or the system refuses an operation, ClosedError after the store is closed, and
    ReadOnlyError for a change if the store was opened for reading.

    Args:
        disk: disk of the store; borrowed.
        path: path of the folder, which need not exist yet.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk, self._path = disk, path
        self._failed = False  # A sync of the folder failed: names may be lost, and a second sync would not report that.
        self._replacing = threading.Lock()  # two writers of one small file would share its temporary name

    def path(self, name: str = "") -> str:
        """Return the path of the folder, or of an entry in it."""
        return f"{self._path}/{checked_name(name)}" if name else self._path

    def list(self) -> list[FileStat]:
        """Return the entries of the folder, sorted by name."""
        self._disk.check_open(self._path)
        try:
            return self._disk.handles.with_room(lambda: self._disk.files.list(self._path))
        except OSError as error:
            raise log_dir_error(error, self._path) from error

    def stat(self, name: str) -> FileStat | None:
        """Return the entry with this name; None if it does not exist."""
        return self._stat(self.path(checked_name(name)))

    def exists(self) -> bool:
        """Return True if the path exists and is a folder."""
        found = self._stat(self._path)
        return found is not None and found.is_folder

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if the file is missing.

        Raises:
            CorruptCheckpointError: the file is larger than ``limits.checkpoint.bytes``.
        """
        path, files = self.path(checked_name(name)), self._disk.files
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
        """Replace a file: write a temporary file, sync it, rename it, and sync the folder."""
        path = self.path(checked_name(name))
        self._disk.check_writable(path)
        with self._replacing:
            replace_file(self._disk, path, data, sync=True)
            self.sync()

    def rename(self, old: str, new: str) -> bool:
        """Rename an entry; return False if ``old`` does not exist. The new name is durable only after ``sync``."""
        old_path, new_path = self.path(checked_name(old)), self.path(checked_name(new))
        self._disk.check_writable(old_path)
        try:
            self._disk.files.rename(old_path, new_path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise log_dir_error(error, old_path) from error
        return True

    def remove(self, name: str) -> bool:
        """Delete a file; return False if the file did not exist. The deletion is durable only after ``sync``."""
        path = self.path(checked_name(name))
        self._disk.check_writable(path)
        try:
            self._disk.files.remove(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise log_dir_error(error, path) from error
        return True

    def set_modified(self, name: str, modified_ms: int) -> None:
        """Set a file's modification time (ms since 1970)."""
        path = self.path(checked_name(name))
        self._disk.check_writable(path)
        try:
            self._disk.files.set_modified(path, modified_ms)
        except OSError as error:
            raise log_dir_error(error, path) from error

    def remove_tree(self, name: str) -> None:
        """Delete a folder with everything in it. A missing folder is no error. Durable only after ``sync``."""
        path = self.path(checked_name(name))
        self._disk.check_writable(path)
        inside = Folder(self._disk, path)
        try:
            entries = inside.list()
        except LogDirNotFoundError:
            return
        for entry in entries:
            if entry.is_folder:
                inside.remove_tree(entry.name)
            else:
                inside.remove(entry.name)
        try:
            self._disk.files.remove_folder(path)
        except OSError as error:
            raise log_dir_error(error, path) from error

    def make(self) -> None:
        """Create the folder and its missing parents, durable on return.

        Raises:
            FileExistsError: an entry with that name exists.
        """
        self._disk.check_writable(self._path)
        files, above = self._disk.files, _parent(self._path)
        try:
            if files.stat(above) is None:
                with contextlib.suppress(FileExistsError):  # another thread or process created it in between
                    Folder(self._disk, above).make()
            files.make_folder(self._path)
            self._disk.handles.with_room(lambda: files.sync_folder(above))
        except FileExistsError:
            raise
        except OSError as error:
            raise log_dir_error(error, self._path) from error

    def sync(self) -> None:
        """Make the names in the folder durable. A failed sync is never retried: every later call raises LogDirOfflineError.

        If the folder cannot be opened, no sync was attempted, and the call may be repeated.
        """
        self._disk.check_writable(self._path)
        if self._failed:
            raise LogDirOfflineError("an earlier sync of the folder failed", self._path)
        try:
            self._disk.handles.with_room(lambda: self._disk.files.sync_folder(self._path))
        except OSError as error:
            found = log_dir_error(error, self._path)
            if error.errno in _NOT_OPENED:
                raise found from error
            self._failed = True
            raise LogDirOfflineError(found.reason, self._path) from error

    def _stat(self, path: str) -> FileStat | None:
        self._disk.check_open(path)
        try:
            return self._disk.files.stat(path)
        except OSError as error:
            raise log_dir_error(error, path) from error


def replace_file(disk: Disk, path: str, data: Buffer, *, sync: bool) -> None:
    """Replace ``path`` by a new file: write a temporary file, and rename it.

    With ``sync``, the contents are durable before the rename; without it, a power loss may leave a partial file. The
    new name is durable only after a sync of the folder.

    Raises:
        LogDirError: the disk has no space, or writing, the sync or the rename failed; the old file stays.
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
    except FileExistsError:  # left by a crash
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
    above, mark, _ = path.rstrip("/").rpartition("/")
    return above or (mark or ".")
