"""Segment stores: access to the files of one log directory. A segment store does not interpret the bytes of records."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stratalog.env.closing import Closeable
from stratalog.env.vfs import FileStat
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileSlice


class SegmentFile(ABC):
    """One append-only file of a log, for one writer and any number of readers without locks.

    If the store was opened for reading, ``append``, ``truncate`` and ``sync`` raise ReadOnlyError.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The number of bytes written, without reserved space after them."""

    @property
    @abstractmethod
    def modified_ms(self) -> int:
        """The time of the last write to the file (ms since 1970)."""

    @abstractmethod
    def append(self, data: Buffer) -> int:
        """Append the bytes of ``data``, which may be empty, and return the position of the first byte.

        The write is all or nothing: after a short write, the store truncates the file to its old size. The result is
        the old size, and ``size_bytes`` grows by the size of ``data``. If a store breaks these rules, the engine takes
        the log out of service.

        Raises:
            DiskFullError: no space; none of the bytes stays in the file.
            LogDirOfflineError: the write failed; the file is out of service.
            ReadOnlyError: the store was opened for reading.
        """

    @abstractmethod
    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` bytes from ``position``: fewer if the file ends before, ``b""`` after its end.

        Raises:
            SegmentGoneError: the file is closed, or was renamed or deleted in the meantime.
            LogDirError: the system refused the read.
        """

    def read_into(self, position: int, into: memoryview) -> int:
        """Read up to ``len(into)`` bytes from ``position`` into ``into``; return their number, 0 after the file's end.

        The rest of ``into`` is not changed. Raises the errors of ``read``. The default implementation copies the result
        of ``read``. Override this method if the store can read directly into the memory.
        """
        data = self.read(position, len(into))
        into[: len(data)] = data
        return len(data)

    @abstractmethod
    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """Return a slice with the bytes that ``read`` would return. Raises the errors of ``read``.

        The bytes stay available until the slice is released, even if the segment is deleted before. The store may read
        the bytes only when ``data`` of the slice is first used. If the file was truncated or closed before that,
        ``data`` raises SegmentGoneError. If the file was deleted, ``data`` still returns the bytes.
        """

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to ``size_bytes``, where the next append begins.

        Raises:
            ValueError: ``size_bytes`` is negative or above the size of the file.
            LogDirError: the file cannot be truncated.
        """

    def trim(self) -> bool:
        """Release reserved space, because no append follows. Return True if the caller must call ``sync`` afterwards.

        Without that ``sync``, the new file size is not durable. A second call does nothing and returns False. The
        default implementation, for a store that reserves no space, returns False.
        """
        return False

    @abstractmethod
    def sync(self) -> None:
        """Make the bytes durable. Raise LogDirOfflineError if this sync or an earlier one failed.

        A failed sync is never retried. After a power loss, the bytes that were written before the last successful sync
        are unchanged; later bytes can be missing or wrong.
        """

    @abstractmethod
    def close(self) -> None:
        """Release reserved space and close the file. A second call does nothing."""


class IndexFile(ABC):
    """One index file. It is written only at its end, and is read as one buffer while it grows."""

    __slots__ = ()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the index entries in bytes, without the reserved space after them."""

    @abstractmethod
    def append(self, entries: Buffer) -> None:
        """Append entries to the file. Raises the errors of ``SegmentFile.append``.

        If the file would exceed ``max_bytes`` of ``open_index``, the method raises PluginError and writes nothing.
        """

    @abstractmethod
    def view(self) -> memoryview:
        """Return a read-only view of the entries written so far. The view stays valid after changes of the file.

        A reader may call this method without a lock, even while another thread closes the file. After ``close``, the
        view has the entries that the file had before.
        """

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Keep the first ``size_bytes`` bytes of the entries. Raises the errors of ``SegmentFile.truncate``."""

    @abstractmethod
    def trim(self) -> None:
        """Release reserved space. The file then contains only entries, as the index file of a closed segment does.

        More entries may be appended later, for example if a roll of the segment fails after this call.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make the entries durable. Raise LogDirOfflineError if this sync or an earlier one failed."""

    @abstractmethod
    def close(self) -> None:
        """Trim and close the file. A second call does nothing."""


class LogFiles(ABC):
    """The folder of one log. ``name`` is the folder's name. Thread-safe.

    If the system refuses an operation, methods raise LogDirError. Methods raise ConfigError for the names ``.`` and
    ``..``, and for a name with ``/`` or a null character. All methods except ``path`` raise ConfigError for an empty
    name. If the store was opened for reading, methods raise ReadOnlyError for each change.
    """

    name: str

    @abstractmethod
    def path(self, name: str = "") -> str:
        """Return the path of a file, or of the folder if ``name`` is "", for error texts.

        Each file has its own path, which ends with its name. The file need not exist.
        """

    @abstractmethod
    def list(self) -> list[FileStat]:
        """Return the files and subfolders of the folder, sorted by name.

        ``FileStat`` shows if an item is a regular file. The core neither reads nor removes other items.
        """

    @abstractmethod
    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        """Open a ``.log`` file, or create it if ``create`` is True.

        An opened file contains the bytes of all earlier appends. If ``preallocate_bytes`` is above 0, a new file
        reserves that much space, which is not part of its size or contents.

        Raises:
            SegmentGoneError: without ``create``, the file does not exist.
            FileExistsError: with ``create``, the file exists.
        """

    @abstractmethod
    def open_index(self, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> IndexFile:
        """Open an index file. If it is missing, create it if ``writable`` is True, and return an empty index.

        All bytes of an existing file count as entries, because ``close`` removes reserved space after them. A crash can
        leave reserved space in the file; the engine finds it with ``IndexReader.check``.

        Args:
            name: file name of the index.
            max_bytes: largest size of the file. If ``writable`` is True and an existing file is larger, the limit is
                the size of that file.
            writable: True for the index of the active segment. If False, changes of the index raise ReadOnlyError.
            reserve: True if the store may reserve space after the entries in advance, as Kafka does for offset and time
                indexes. If False, the file holds only entries at any time, for readers that cannot distinguish entries
                from reserved space.

        Raises:
            CorruptIndexError: ``writable`` is False, and an existing file is larger than ``max_bytes``.
            ReadOnlyError: ``writable`` is True, and the store was opened for reading.
        """

    @abstractmethod
    def read_small(self, name: str) -> bytes | None:
        """Return the contents of a whole small file, or None if it does not exist.

        Raises:
            CorruptCheckpointError: the file is larger than ``limits.checkpoint.bytes``.
        """

    @abstractmethod
    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace or create a small file atomically. The change is durable when the method returns.

        After a power loss during the call, the file has its old or its new content. In a file system, the store writes
        a temporary file, syncs it, renames it, and syncs the folder. The engine reads the file back: ``read_small``
        must return ``data``.
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a file. If a file already has the name ``new``, replace it. A missing file ``old`` is not an error.

        The engine checks that no file has the name ``old`` afterwards.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file. A missing file is not an error. The engine checks that no file has the name afterwards."""

    def set_modified(self, name: str, modified_ms: int) -> None:
        """Set the modification time of a file (ms since 1970), which stays until the next write.

        Compaction gives a new segment the time of its source. The default implementation does nothing, for a store
        without modification times.
        """
        del name, modified_ms

    @abstractmethod
    def sync(self) -> None:
        """Make the new, changed and removed file names in the folder durable."""


class SegmentStore(Closeable):
    """One log directory. Thread-safe, and a context manager.

    If a disk error occurs in a log directory, the engine takes all logs of that directory out of service, but no other
    directory. Opening a store changes nothing. A store that was opened for reading takes no lock, and can be used while
    another process writes to the directory. The rules of ``LogFiles`` for errors and names apply.
    """

    @abstractmethod
    def path(self, name: str = "") -> str:
        """Return the path of the directory, or of the file ``name`` in it, for error texts."""

    @abstractmethod
    def acquire(self) -> None:
        """Lock the directory for writing. Create the directory if it is missing.

        The lock excludes other stores of this process and of other processes. If a process is killed, its lock is
        released.

        Raises:
            LogDirLockedError: another engine or a running Kafka broker holds the lock.
            ReadOnlyError: the store was opened for reading.
        """

    @abstractmethod
    def is_acquired_elsewhere(self) -> bool:
        """Return True if another store or a Kafka broker holds the directory's lock now.

        The call neither takes the lock nor writes. If this store holds the lock, the result is False.
        """

    @abstractmethod
    def logs(self) -> list[str]:
        """Return the names of all folders in the directory, sorted. This includes folders that hold no log.

        Raises:
            LogDirNotFoundError: the directory does not exist.
        """

    @abstractmethod
    def open_log(self, name: str, *, create: bool = False) -> LogFiles:
        """Open a log's folder, or create it if ``create`` is True.

        Raises:
            LogDirNotFoundError: the folder does not exist or, with ``create``, the directory does not exist.
            FileExistsError: with ``create``, the folder exists.
        """

    @abstractmethod
    def rename_log(self, old: str, new: str) -> None:
        """Rename a log's folder. The change is durable when the method returns.

        Raises:
            LogDirNotFoundError: no folder has the name ``old``.
        """

    @abstractmethod
    def remove_log(self, name: str) -> None:
        """Delete a log's folder with all files in it. A missing folder is not an error."""

    @abstractmethod
    def read_small(self, name: str) -> bytes | None:
        """Return the contents of a small file of the directory itself, as ``LogFiles.read_small`` does."""

    @abstractmethod
    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace or create a small file of the directory itself. The rules of ``LogFiles.replace_small`` apply."""

    @abstractmethod
    def remove_small(self, name: str) -> None:
        """Delete a small file of the directory itself, durably on return. A missing file is not an error."""

    @abstractmethod
    def close(self) -> None:
        """Release the lock of the directory. Files that are still open can then only be closed. Idempotent."""
