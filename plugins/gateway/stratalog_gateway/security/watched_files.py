"""Values that are loaded from files, and loaded again when a file changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from stratalog.errors import ConfigError
from stratalog.spi import Clock

_LOGGER: Final = logging.getLogger(__name__)
_CHECK_NS: Final = 1_000_000_000
T = TypeVar("T")
Stamp = tuple[int, int, int]


class WatchedFiles(Generic[T]):
    """A value that is loaded from files. Thread-safe.

    If a changed file is wrong, the value stays unchanged, and a warning is logged once for each change. If a file is
    missing, the value stays unchanged, and a warning is logged at each check.

    Args:
        paths: paths of the files.
        load: function that reads the files. It raises ConfigError, OSError or ValueError if a file is wrong.
        clock: clock for the time between checks.

    Raises:
        ConfigError: a file is missing or wrong.
    """

    def __init__(self, paths: Sequence[str | Path], load: Callable[[], T], clock: Clock) -> None:
        self.paths, self._load, self._clock = tuple(map(Path, paths)), load, clock
        self._lock = threading.Lock()
        try:
            self._stamps = self._found()
            self._value = load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._names()}: {_reason(error)}") from error
        self._next_ns = clock.monotonic_ns() + _CHECK_NS

    def value(self) -> T:
        """Return the value. First check the files as ``refresh`` does, if the last check was at least a second ago."""
        if self._clock.monotonic_ns() >= self._next_ns:
            self.refresh()
        return self._value

    def refresh(self) -> None:
        """Load the value if a file has changed. If a file is missing or wrong, keep the value and log a warning."""
        with self._lock:
            self._next_ns = self._clock.monotonic_ns() + _CHECK_NS
            try:
                stamps = self._found()
                if stamps == self._stamps:
                    return
                self._stamps = stamps  # wrong files are not loaded again until they change
                self._value = self._load()
            except (ConfigError, OSError, ValueError) as error:
                _LOGGER.warning("the contents of %s stay as they were: %s", self._names(), _reason(error))
                return
        _LOGGER.info("%s was read again", self._names())

    def _found(self) -> tuple[Stamp, ...]:
        statuses = [path.stat() for path in self.paths]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)

    def _names(self) -> str:
        return ", ".join(map(str, self.paths))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
