"""Register of the objects that this process is uploading, which the collector must not delete as orphans."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable


class Uploads:
    """Keys of objects of one log that this process uploads, until it is known if a root names them. Thread-safe.

    If an object has this process's leader epoch, no root names it, and it is not registered here, then it is an orphan
    of an earlier process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._left = False

    def begin(self, key: str) -> None:
        """Register a key before its object is uploaded."""
        with self._lock:
            self._keys.add(key)

    def end(self, keys: Iterable[str]) -> None:
        """Remove keys that a root names now, or whose objects were deleted or never uploaded."""
        with self._lock:
            self._keys.difference_update(keys)

    def leave(self, keys: Iterable[str]) -> None:
        """Remove keys that this process will not commit, and whose objects may be in the store; set ``has_left``."""
        with self._lock:
            self._keys.difference_update(keys)
            self._left = True

    def deleted(self, keys: Iterable[str], failed: Collection[str]) -> None:
        """Remove ``keys``, whose objects this process has deleted; those of ``failed`` could not be deleted."""
        self.end(keys)
        if failed:
            self.leave(failed)

    def under_way(self) -> Collection[str]:
        """Return the registered keys."""
        with self._lock:
            return frozenset(self._keys)

    @property
    def has_left(self) -> bool:
        """True if ``leave`` was called after the last ``looked``: then orphans of this process may be in the store."""
        return self._left

    def looked(self) -> None:
        """Reset ``has_left``, because a search of the store for orphans begins."""
        with self._lock:
            self._left = False
