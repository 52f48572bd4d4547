"""Values that are loaded from files, and reloaded when a file changes. Administrators edit some of these files."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.error_codes import Code, RefusedError

_LOGGER: Final = logging.getLogger(__name__)
_CHECK_NS: Final = 1_000_000_000
T = TypeVar("T")
Stamp = tuple[int, int, int]


class _Failure(NamedTuple):
    """A failed check. ``stamps`` contains the stamps of the files that were not loaded; None if a file is missing."""

    stamps: tuple[Stamp, ...] | None
    reason: str


class WatchedFiles(Generic[T]):
    """A value that is loaded from files. Thread-safe.

    If a changed file is wrong, missing or cannot be read, the value stays unchanged, and a warning is logged once. A
    wrong file is loaded again when it changes. A file that could not be read is loaded again at the next check.

    Args:
        load: function that reads the files. It raises ConfigError, OSError or ValueError if a file is wrong.

    Raises:
        ConfigError: a file is missing or wrong, or cannot be read.
    """

    def __init__(self, paths: Sequence[str | Path], load: Callable[[], T], clock: Clock) -> None:
        self.paths, self._load, self._clock = tuple(map(Path, paths)), load, clock
        self._lock = threading.Lock()
        try:
            self._loaded_stamps = self._read_stamps()
            self._value = load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._names()}: {_reason(error)}") from error
        self._failure: _Failure | None = None  # failure of the last check; under _lock
        self._wrong_contents: _Failure | None = None  # wrong contents, which are not loaded again; under _lock
        self._next_ns = clock.monotonic_ns() + _CHECK_NS

    @property
    def failure(self) -> str:
        """Reason why the last check did not load the files; "" if they are loaded, or if a file is missing."""
        failure = self._failure
        return "" if failure is None or failure.stamps is None else failure.reason

    def value(self) -> T:
        """Return the value. If the last check was at least a second ago, first call ``refresh``."""
        if self._clock.monotonic_ns() >= self._next_ns:
            self.refresh()
        return self._value

    def refresh(self) -> None:
        """Load the value if a file has changed. If a file is missing or wrong, or cannot be read, keep the value."""
        with self._lock:
            self._next_ns = self._clock.monotonic_ns() + _CHECK_NS
            stamps = None
            try:
                stamps = self._read_stamps()
                if stamps == self._loaded_stamps:
                    self._failure = None
                    return
                if self._wrong_contents is not None and stamps == self._wrong_contents.stamps:
                    self._failure = self._wrong_contents
                    return
                self._value = self._load()
            except (ConfigError, OSError, ValueError) as error:
                failure = _Failure(stamps, _reason(error))
                if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
                    self._wrong_contents = failure
                if failure != self._failure:
                    self._failure = failure
                    _LOGGER.warning("the contents of %s stay as they were: %s", self._names(), failure.reason)
                return
            self._loaded_stamps, self._failure = stamps, None
        _LOGGER.info("%s was read again", self._names())

    def _read_stamps(self) -> tuple[Stamp, ...]:
        statuses = [path.stat() for path in self.paths]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)

    def _names(self) -> str:
        return ", ".join(map(str, self.paths))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class EditedFile(Generic[T]):
    """Contents of a file. The file is reloaded when it changes. Thread-safe.

    Args:
        load: function that reads the file, and raises ConfigError if the file is wrong.
        save: function that replaces the file durably, and raises OSError if the file cannot be written.
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
