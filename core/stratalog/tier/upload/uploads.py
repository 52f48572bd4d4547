"""The objects that this process is uploading; the collector must not delete them as orphans."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable


class Uploads:
    """Keys that this process chose for objects of one log, until it is certain if a root names them. Thread-safe.

    An object under our leader epoch that no root names and that is not among these keys is an orphan of an earlier
    process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._left = False

    def begin(self, key: str) -> None:
        """Add a chosen key."""
        with self._lock:
            self._keys.add(key)

    def end(self, keys: Iterable[str]) -> None:
        """Remove keys that a root names now, or whose objects are deleted."""
        with self._lock:
            self._keys.difference_update(keys)

    def leave(self, keys: Iterable[str]) -> None:
        """Remove keys that no root will name; their objects may or may not be in the store."""
        with self._lock:
            self._keys.difference_update(keys)
            self._left = True

    def deleted(self, keys: Iterable[str], failed: Collection[str]) -> None:
        """Remove keys whose uploads failed and whose objects were deleted, except ``failed``, which may still exist."""
        self.end(keys)
        if failed:
            self.leave(failed)

    def under_way(self) -> Collection[str]:
        """Return the current keys."""
        with self._lock:
            return frozenset(self._keys)

    @property
    def has_left(self) -> bool:
        """True if ``leave`` was called after the last call of ``looked``."""
        return self._left

    def looked(self) -> None:
        """Reset ``has_left``, because the store is searched for orphans from now on."""
        with self._lock:
            self._left = False
