"""Keys of objects whose upload or commit is in progress in this process. The collector must not delete the objects."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable


class Uploads:
    """Keys of objects of one log that this process uploads, until it is known if a root names them. Thread-safe.

    An object of this process's leader epoch that no root names, and whose key is not registered here, was left by an
    earlier process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._has_left = False

    def begin(self, key: str) -> None:
        """Register a key before its object is uploaded."""
        with self._lock:
            self._keys.add(key)

    def end(self, keys: Iterable[str]) -> None:
        """Remove ``keys``: a root names them, or their objects were deleted or never uploaded."""
        with self._lock:
            self._keys.difference_update(keys)

    def leave(self, keys: Iterable[str]) -> None:
        """Remove ``keys`` that this process will not commit. Set ``has_left``, because their objects may be stored."""
        with self._lock:
            self._keys.difference_update(keys)
            self._has_left = True

    def end_deleted(self, keys: Iterable[str], failed: Collection[str]) -> None:
        """Remove ``keys``, whose objects this process tried to delete.

        ``failed`` has the keys of objects that could not be deleted. If there are any, ``has_left`` becomes True.
        """
        self.end(keys)
        if failed:
            self.leave(failed)

    def registered_keys(self) -> Collection[str]:
        """Return the keys that are registered now."""
        with self._lock:
            return frozenset(self._keys)

    @property
    def has_left(self) -> bool:
        """True if this process may have left objects without a commit since the last search for such objects began."""
        return self._has_left

    def begin_search(self) -> None:
        """Reset ``has_left``; call this when a search of the store for objects that no root names begins."""
        with self._lock:
            self._has_left = False
