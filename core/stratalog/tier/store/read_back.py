"""The rules of ``tier.verify``, which decides which objects are read back after their upload."""

from __future__ import annotations

import threading
from typing import Final

AUTO: Final = "auto"
FIRST: Final = "first"
ALWAYS: Final = "always"
NEVER: Final = "never"


class Verification:
    """Decides by the setting ``tier.verify`` which objects of a tier are read back. Thread-safe.

    Args:
        mode: ``always`` or ``never`` for all objects; ``first`` reads back the objects of a kind until one was correct;
            ``auto`` reads back all objects of plugins, and others as ``first``, or never if ``trusts_store``.
        is_bundled: True if the store comes with stratalog, and is no plugin.
        trusts_store: True if the store comes with stratalog, and either verifies checksums of uploads or keeps files on
            this machine.
    """

    def __init__(self, mode: str, *, is_bundled: bool, trusts_store: bool) -> None:
        self._mode, self._is_bundled, self._trusts_store = mode, is_bundled, trusts_store
        self._verified = set[str]()  # under _lock
        self._lock = threading.Lock()

    def is_due(self, kind: str, *, is_bundled: bool) -> bool:
        """Return True if the next object of a kind must be read back after its upload.

        Args:
            kind: the label of the layout that writes the object, or another name, such as "manifest page".
            is_bundled: True if the component that writes the object comes with stratalog.
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
        """Record that an object of this kind was read back and was correct; ``first`` then reads back no other one."""
        with self._lock:
            self._verified.add(kind)
