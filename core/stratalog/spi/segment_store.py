"""Segment stores: one log directory's names, bytes and durability. They know nothing of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stratalog.env.closing import Closeable
from stratalog.env.vfs import FileStat
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileSlice


class SegmentFile(ABC):
    """One append-only file of a log. One writer; any number of readers, without locks."""

    __slots__ = ()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes written so far; space reserved behind them does not count."""

    @property
    @abstractmethod
    def modified_ms(self) -> int:
        """When the file was last written."""

    @abstractmethod
    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts behind each other at the end; the position (bytes) where they start.

        All or nothing: a short write is cut back.

        Raises:
            DiskFullError: no space; nothing stays written.
            LogDirOfflineError: the write failed; the file is out of service.
            ReadOnlyError: the store was opened for reading.
        """

    @abstractmethod
    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``; fewer at the end of the file, none past it.

        Raises:
            SegmentGoneError: the file was renamed or deleted meanwhile.
        """

    def read_into(self, position: int, into: memoryview) -> int:
        """As ``read``, of ``len(into)`` bytes into memory of the caller's; how many there were.

        Overridden where that saves a copy: memory that is used again costs no page faults.
        """
        data = self.read(position, len(into))
        into[: len(data)] = data
        return len(data)

    @abstractmethod
    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same, pinned: valid until released even if the segment is deleted meanwhile."""

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Cut to ``size_bytes``; ValueError if there are fewer."""

    def trim(self) -> bool:
        """Give back reserved space, as nothing more is to be appended; True if the caller has to sync to make that durable.

        A store that reserves none has nothing to do.
        """
        return False

    @abstractmethod
    def sync(self) -> None:
        """Make the bytes durable. After a failure every later call raises LogDirOfflineError: it is never retried."""

    @abstractmethod
    def close(self) -> None:
        """Cut reserved space and close. Twice is fine."""


class IndexFile(ABC):
    """One index file: written only at its end, read as one buffer while it grows."""

    __slots__ = ()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of entries; space reserved behind them does not count."""

    @abstractmethod
    def append(self, entries: Buffer) -> None:
        """Add entries. Errors as ``SegmentFile.append``; PluginError past ``max_bytes``, with nothing written."""

    @abstractmethod
    def view(self) -> memoryview:
        """The entries written so far, read-only. It stays valid whatever happens to the file.

        A reader may ask for it without a lock, also while the file is closed: it then still gets what there was.
        """

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Keep the first ``size_bytes`` of entries; ValueError if there are fewer."""

    @abstractmethod
    def trim(self) -> None:
        """Give back reserved space: what a closed segment's index looks like."""

    @abstractmethod
    def sync(self) -> None:
        """Make the entries durable; failures as ``SegmentFile.sync``."""

    @abstractmethod
    def close(self) -> None:
        """Trim and close. Twice is fine."""


class LogFiles(ABC):
    """The folder of one log."""

    name: str

    @abstractmethod
    def path(self, name: str = "") -> str:
        """Where a file is, for error texts."""

    @abstractmethod
    def list(self) -> list[FileStat]:
        """What is in the folder, by name. A folder in it, and what else is no file, says so: nothing reads or removes it."""

    @abstractmethod
    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        """Open a ``.log`` file; ``create`` makes it and refuses one that is there (FileExistsError)."""

    @abstractmethod
    def open_index(self, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> IndexFile:
        """Open an index file, made if missing and ``writable``; a missing one reads as empty.

        Whatever is in the file counts as entries: a clean close leaves nothing else in it.

        Args:
            name: its file name.
            max_bytes: it never grows past this; a larger one that is there is refused unless ``writable``.
            writable: the active segment's. Otherwise appends are refused.
            reserve: whether space behind the entries may be taken in advance, as Kafka does for offset and time
                indexes. Without, the file holds the entries alone at any moment, for readers that cannot tell them
                from reserved space.

        Raises:
            CorruptIndexError: the file is above ``max_bytes``.
            ReadOnlyError: ``writable``, and the store was opened for reading.
        """

    @abstractmethod
    def read_small(self, name: str) -> bytes | None:
        """A whole small file, or None if it is not there. CorruptCheckpointError if above the limit."""

    @abstractmethod
    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace a small file: atomic, and durable on return (temporary file, sync, rename, sync of the folder)."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a file; one that is missing is no error."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file; one that is missing is no error."""

    def set_modified(self, name: str, modified_ms: int) -> None:
        """Say when a file was last written: a compacted segment keeps its source's time. Stores without times do nothing."""
        del name, modified_ms

    @abstractmethod
    def sync(self) -> None:
        """Make the folder's names durable."""


class SegmentStore(Closeable):
    """One log directory, the failure domain. A context manager; ``close`` releases what ``acquire`` took."""

    @abstractmethod
    def path(self, name: str = "") -> str:
        """Where the directory, or a file in it, is: for error texts."""

    @abstractmethod
    def acquire(self) -> None:
        """Take the directory for writing, made if missing.

        Raises:
            LogDirLockedError: another engine or a running Kafka broker has it.
            ReadOnlyError: the store was opened for reading.
        """

    @abstractmethod
    def is_acquired_elsewhere(self) -> bool:
        """Whether somebody holds the directory for writing now; takes nothing, writes nothing."""

    @abstractmethod
    def logs(self) -> list[str]:
        """The names of the folders in the directory.

        Raises:
            LogDirNotFoundError: there is no such directory.
        """

    @abstractmethod
    def open_log(self, name: str, *, create: bool = False) -> LogFiles:
        """Open a log's folder; ``create`` makes it and refuses one that is there (FileExistsError)."""

    @abstractmethod
    def rename_log(self, old: str, new: str) -> None:
        """Rename a log's folder, durable on return."""

    @abstractmethod
    def remove_log(self, name: str) -> None:
        """Delete a log's folder with all files in it."""

    @abstractmethod
    def read_small(self, name: str) -> bytes | None:
        """A whole small file of the directory itself, or None."""

    @abstractmethod
    def replace_small(self, name: str, data: Buffer) -> None:
        """Replace a small file of the directory itself, as ``LogFiles.replace_small``."""

    @abstractmethod
    def remove_small(self, name: str) -> None:
        """Delete a small file of the directory itself, durable on return; one that is missing is no error."""

    @abstractmethod
    def close(self) -> None:
        """Release the directory. Twice is fine."""
