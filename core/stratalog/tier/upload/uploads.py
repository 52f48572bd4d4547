"""Which objects this process is uploading: nobody may take them for leftovers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable


class Uploads:
    """The keys that this process chose for objects of one log, until it is settled whether a root names them. Thread-safe.

    What is not among them, was put under our leader epoch and is named by no root, was left by a process that is no more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._left = False

    def begin(self, key: str) -> None:
        """A key was chosen."""
        with self._lock:
            self._keys.add(key)

    def end(self, keys: Iterable[str]) -> None:
        """A root names these, or they are deleted."""
        with self._lock:
            self._keys.difference_update(keys)

    def leave(self, keys: Iterable[str]) -> None:
        """These are given up: no root will name them, and whether they are there nobody knows."""
        with self._lock:
            self._keys.difference_update(keys)
            self._left = True

    def deleted(self, keys: Iterable[str], failed: Collection[str]) -> None:
        """These are given up and were deleted, but for those that ``failed``."""
        self.end(keys)
        if failed:
            self.leave(failed)

    def under_way(self) -> Collection[str]:
        """The keys now."""
        with self._lock:
            return frozenset(self._keys)

    @property
    def has_left(self) -> bool:
        """Whether something was given up since ``looked``."""
        return self._left

    def looked(self) -> None:
        """From now on the store is looked through for what was given up."""
        with self._lock:
            self._left = False
