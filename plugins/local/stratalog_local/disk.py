"""State that all parts of one store share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from stratalog.errors import ClosedError, ConfigError, ReadOnlyError
from stratalog.spi import HandlePool, Vfs

_LOCKS: Final = 64


@dataclass(slots=True)
class Disk:
    """Access of one store to the disk.

    ``closed`` is set once, when the store closes. ``changing`` holds the locks of the store's indexes. Many indexes
    share one lock, because a lock per index would cost too much memory.
    """

    files: Vfs
    handles: HandlePool
    read_only: bool
    small_limit_bytes: int
    closed: bool = False
    changing: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(_LOCKS)))

    def check_open(self, path: str) -> None:
        """Raise ClosedError if the store is closed."""
        if self.closed:
            raise ClosedError(f"the log directory is closed path={path}")

    def check_writable(self, path: str) -> None:
        """Raise ReadOnlyError if the store was opened for reading, ClosedError if it is closed."""
        self.check_open(path)
        if self.read_only:
            raise ReadOnlyError("opened for reading", path)


def checked_name(name: str) -> str:
    """Return ``name`` if it can only name an entry of one folder.

    Raises:
        ConfigError: the name is empty, ``.`` or ``..``, or contains a slash or a NUL.
    """
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} is not the name of a file or folder in a log directory")
    return name
