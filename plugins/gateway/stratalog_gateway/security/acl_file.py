"""The file of ACLs, which is read again when it changes, and which requests of administrators change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog.spi import Clock, Vfs
from stratalog_gateway.security.acls import Acl, Acls, load_acls, save_acls
from stratalog_gateway.security.watched_files import WatchedFiles


class AclFile:
    """The ACLs of a file. Thread-safe.

    Args:
        path: the file.
        files: file system for changes of the file.
        clock: source of the time between checks of the file.

    Raises:
        ConfigError: the file is missing or wrong.
    """

    def __init__(self, path: str, files: Vfs, clock: Clock) -> None:
        self._files, self._lock = files, threading.Lock()
        self._watched = WatchedFiles((path,), lambda: load_acls(Path(path)), clock)

    @property
    def current(self) -> Acls:
        """The ACLs, the same object until the file changes."""
        return self._watched.value()

    def add(self, acls: Sequence[Acl]) -> None:
        """Add ACLs durably; those that are there already change nothing. Raises OSError."""
        with self._lock:
            self._watched.refresh()
            self._save((*self._watched.value().all, *acls))

    def remove(self, matches: Callable[[Acl], bool]) -> list[Acl]:
        """Remove ACLs durably, and return them. Raises OSError."""
        with self._lock:
            self._watched.refresh()
            known = self._watched.value().all
            gone = [acl for acl in known if matches(acl)]
            if gone:
                self._save(tuple(acl for acl in known if acl not in gone))
        return gone

    def _save(self, acls: Sequence[Acl]) -> None:
        save_acls(self._files, self._watched.paths[0], dict.fromkeys(acls))
        self._watched.refresh()
