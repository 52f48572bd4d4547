"""Files that administrators edit, directly or by requests. A file is reloaded when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from stratalog.spi import Clock
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.security.watched_files import WatchedFiles

T = TypeVar("T")


class EditedFile(Generic[T]):
    """Contents of a file. The file is reloaded when it changes. Thread-safe.

    Args:
        load: function that reads the file, and raises ConfigError if the file is wrong.
        save: function that replaces the file durably, and raises OSError if the file cannot be written.
        clock: clock for the time between checks of the file.

    Raises:
        ConfigError: the file is missing or wrong.
    """

    def __init__(self, path: str, load: Callable[[Path], T], save: Callable[[Path, T], None], clock: Clock) -> None:
        self._save, self._lock = save, threading.Lock()
        self._watched = WatchedFiles((path,), lambda: load(Path(path)), clock)

    @property
    def current(self) -> T:
        """The contents of the file at its last load. The property returns the same object until the file is reloaded.

        The property checks the file if the last check was at least a second ago, and reloads a changed file. A wrong
        file is not loaded.
        """
        return self._watched.value()

    def change(self, edit: Callable[[T], T]) -> None:
        """Call ``edit`` with the current contents, and replace the contents durably with its result.

        If the file is missing now, ``edit`` is called with the contents that were last loaded. If ``edit`` returns its
        argument, nothing is written. Errors of ``edit`` are raised unchanged.

        Raises:
            RefusedError: the file cannot be written or read, or its contents are wrong. A wrong file is not replaced,
                because the changes of its editor would be lost.
        """
        with self._lock:
            self._watched.refresh()
            old, failure = self._watched.value(), self._watched.failure
            if failure:
                reason = f"the file cannot be changed, because its contents are wrong: {failure}"
                raise RefusedError(Code.KAFKA_STORAGE_ERROR, reason)
            new = edit(old)
            if new is not old:
                try:
                    self._save(self._watched.paths[0], new)
                except OSError as error:
                    raise RefusedError(Code.KAFKA_STORAGE_ERROR, str(error)) from error
                self._watched.refresh()
