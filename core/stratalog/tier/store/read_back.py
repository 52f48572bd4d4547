"""Decide which objects are read back before a manifest names them or their local data is deleted."""

from __future__ import annotations

import threading
from typing import Final

AUTO: Final = "auto"
FIRST: Final = "first"
ALWAYS: Final = "always"
NEVER: Final = "never"


class Verification:
    """The setting ``tier.verify`` for one opened tier. Thread-safe.

    Args:
        mode: ``auto``, ``first``, ``always`` or ``never``.
        is_bundled: True if the store comes with stratalog.
        trusts_store: True if, in addition, it checks checksums of uploads or keeps files of this system.
    """

    def __init__(self, mode: str, *, is_bundled: bool, trusts_store: bool) -> None:
        self._mode, self._is_bundled, self._trusts_store = mode, is_bundled, trusts_store
        self._verified = set[str]()  # under _lock
        self._lock = threading.Lock()

    def is_due(self, kind: str, *, is_bundled: bool) -> bool:
        """Return True if the next object of this kind is to be read back.

        Args:
            kind: of object: the label of a layout, or the name of a kind of manifest object.
            is_bundled: True if the writer of such objects comes with stratalog.
        """
        if self._mode == AUTO and not (is_bundled and self._is_bundled):
            return True
        if self._mode == AUTO and self._trusts_store:
            return False
        if self._mode in {ALWAYS, NEVER}:
            return self._mode == ALWAYS
        with self._lock:
            return kind not in self._verified

    def passed(self, kind: str) -> None:
        """Note that an object of this kind was read back as it was written."""
        with self._lock:
            self._verified.add(kind)
