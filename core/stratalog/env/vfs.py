"""The file system interface: the engine accesses disks only through a ``Vfs``.

Descriptors are ints, as in ``os``. Methods raise OSError, as ``os`` does. The segment store converts these errors to
typed errors.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileStat:
    """Attributes of one entry of a folder, as ``Vfs.list`` and ``Vfs.stat`` return them.

    Attributes:
        name: name of the entry in its folder.
        size_bytes: size of the file.
        modified_ms: time of the last modification (ms since 1970).
        is_folder: True for a folder.
        is_file: True for a regular file; False for a folder, a FIFO, a socket, a device or a symbolic link.
        file_id: result of ``Vfs.file_id`` for the entry.
        is_private: False if users other than the owner may access the file. A file of root counts as private even if
            its group may read it, because services get their secrets in such files.
    """

    name: str
    size_bytes: int
    modified_ms: int
    is_folder: bool
    is_file: bool = True
    file_id: tuple[int, int] = field(default=(0, 0), compare=False)
    is_private: bool = field(default=True, compare=False)


class Vfs(Protocol):
    """Interface to a file system. All access of an engine to disks goes through it."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file for reading, or for reading and writing if ``write`` is set; return its descriptor.

        If ``create`` is set, the file must not exist: it is created, and opened for reading and writing. The call never
        blocks, even if the path is a FIFO.

        Raises:
            IrregularFileError: ``create`` is not set, and the path is not a regular file, for example a symbolic link.
            FileExistsError: ``create`` is set, and the path exists, even if it is not a file.
        """

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""

    def size_bytes(self, descriptor: int) -> int:
        """Return the size (bytes) of an open file."""

    def stamp(self, descriptor: int) -> tuple[int, ...]:
        """Return numbers that identify an open file and its contents. Normally, each write changes the numbers."""

    def file_id(self, descriptor: int) -> tuple[int, int]:
        """Return two numbers that no other file has while this file is open. A rename does not change the numbers."""

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``position`` on; fewer bytes only if the file ends before."""

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """Fill ``into`` from ``position`` on; return the number of bytes read: fewer only at the end of the file."""

    def is_cached(self, descriptor: int, position: int) -> bool:
        """Return True if the byte at ``position`` is in the page cache; False if it is not, or if that is unknown."""

    def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
        """Fill ``into`` from ``position`` on if all its bytes are in the page cache, and return True; otherwise False.

        If the method returns False, the contents of ``into`` are undefined.
        """

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` at ``position``, and return the number of bytes written: fewer only if the disk is full."""

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Send at most ``size_bytes`` bytes from ``position`` on to the socket ``to``, without copies in this process.

        Return the number of sent bytes, which may be less than ``size_bytes``; 0 at the end of the file.
        """

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size of a file: remove bytes at its end, or append zeros. The space from ``reserve`` is freed."""

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space for the first ``size_bytes`` bytes of a file; raise OSError (ENOSPC) if there is none.

        A smaller file grows to ``size_bytes``, with zeros. Writes through a memory map can then not run out of space.
        """

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space for ``size_bytes`` bytes from ``position`` on. The file size does not change.

        ``truncate`` frees the space after the end of the file. On a system that cannot reserve space, the method does
        nothing. After an OSError, the file can still be written to.
        """

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Return a memory map of the first ``size_bytes`` bytes of a file, read-only unless ``write`` is set."""

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes durable. After a failure, the engine never syncs that descriptor again."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable, after files in it were created, renamed or deleted."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder; an existing file ``new`` is replaced. ``sync_folder`` makes the rename durable."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; raise FileExistsError if that name exists.

        If several processes create the same name at the same time, only one of them succeeds.
        """

    def remove(self, path: str) -> None:
        """Delete a file. Its contents can still be read through open descriptors."""

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents; raise FileExistsError if it exists."""

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def list(self, path: str, start: str = "") -> list[FileStat]:
        """Return the entries of a folder, sorted by name. Symbolic links are not followed.

        An entry whose name is below ``start`` is left out, unless ``start`` begins with the name.
        """

    def stat(self, path: str) -> FileStat | None:
        """Return the attributes of the entry at a path, or None if there is no entry. Symbolic links are followed."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set a file's modification time (ms since 1970)."""

    def lock(self, path: str) -> int | None:
        """Take an exclusive lock on a file, and return its descriptor, or None if the lock is held.

        A missing file is created. Close the descriptor to release the lock.
        """

    def is_locked(self, path: str) -> bool:
        """Return True if the lock of a file is held; False if it is free or the file does not exist."""
