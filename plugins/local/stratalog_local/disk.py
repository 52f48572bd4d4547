"""State that an open store shares with its folders and files."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from stratalog.errors import ClosedError, ConfigError, ReadOnlyError
from stratalog.spi import HandlePool, Vfs

_LOCKS: Final = 64


@dataclass(slots=True)
class Disk:
    """Access of one store to the file system.

    ``small_limit_bytes`` is the value of the setting ``limits.checkpoint.bytes``. ``closed`` is True after the store
    was closed. ``change_locks`` contains the locks for changes of memory-mapped index files. Several files share a
    lock, because one lock for each file would use too much memory.
    """

    files: Vfs
    handles: HandlePool
    read_only: bool
    small_limit_bytes: int
    closed: bool = False
    change_locks: tuple[threading.Lock, ...] = field(
        default_factory=lambda: tuple(threading.Lock() for _ in range(_LOCKS))
    )

    def check_open(self, path: str) -> None:
        """Raise ClosedError if the store is closed. The error text contains ``path``."""
        if self.closed:
            raise ClosedError(f"the log directory is closed path={path}")

    def check_writable(self, path: str) -> None:
        """Raise ClosedError if the store is closed, and ReadOnlyError if the store was opened for reading."""
        self.check_open(path)
        if self.read_only:
            raise ReadOnlyError("the log directory was opened for reading", path)


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a file or folder in a log directory.

    Raises:
        ConfigError: the name is empty, ``.`` or ``..``, or contains a slash or a null character.
    """
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} is not the name of a file or folder in a log directory")
    return name
