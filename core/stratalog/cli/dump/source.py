"""Sources of the bytes of a dump: files, and parts of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratalog.env.vfs import Vfs
from stratalog.errors import ConfigError, LogDirError
from stratalog.model.batches import Buffer
from stratalog.spi.indexes import IndexRole

PIECE_BYTES: Final = 1 << 20
_ANY_END: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a part of an object that can be read like a file.

    Attributes:
        label: path, for output and error texts.
        size_bytes: number of bytes that can be read from position 0 on.
        fetch: function that returns the bytes [start, end).
    """

    label: str
    size_bytes: int
    fetch: Callable[[int, int], Buffer]

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Read up to ``size_bytes`` from ``position``; return fewer bytes at the end of the source."""
        return memoryview(self.fetch(position, max(position, min(position + size_bytes, self.size_bytes))))


@dataclass(frozen=True, slots=True)
class LogSource(Source):
    """A ``.log`` file without its other files, read as a segment without indexes."""

    base_offset: int
    end_offset: int = _ANY_END
    max_timestamp_ms: int = -1
    age_from_ms: int = -1

    def forget(self) -> bool:
        """Do nothing, because nothing is cached; return False."""
        return False

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return b"", because the source has no indexes."""
        del role
        return b""


@contextmanager
def open_source(files: Vfs, path: Path) -> Iterator[Source]:
    """Yield an open file; raise ConfigError if there is no such file, and LogDirError if it cannot be opened."""
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file" if path.exists() else f"there is no file {path}")
    with _naming_file(str(path)):
        descriptor = files.open(str(path.resolve()))  # Vfs.open follows no symbolic links

    def fetch(start: int, end: int) -> bytes:
        with _naming_file(str(path)):
            return files.read(descriptor, start, end - start)

    try:
        yield Source(str(path), files.size_bytes(descriptor), fetch)
    finally:
        files.close(descriptor)


@contextmanager
def _naming_file(label: str) -> Iterator[None]:
    """Convert an OSError of the ``with`` block to a LogDirError that names the file."""
    try:
        yield
    except OSError as error:
        raise LogDirError(f"cannot be read: {error.strerror or error}", label) from error


def read_all(source: Source, limit_bytes: int) -> bytes:
    """Return all bytes of a small file; raise ConfigError if the file is larger than ``limit_bytes``."""
    if source.size_bytes > limit_bytes:
        raise ConfigError(
            f"{source.label} has {source.size_bytes} bytes, above the limit of {limit_bytes} bytes for such a file"
        )
    return bytes(source.read(0, source.size_bytes))


def zeros_from(source: Source) -> int:
    """Return the position from which on all bytes of the source are zero."""
    end = source.size_bytes
    while end:
        start = max(0, end - PIECE_BYTES)
        nonzero_bytes = len(bytes(source.read(start, end - start)).rstrip(b"\0"))
        if nonzero_bytes:
            return start + nonzero_bytes
        end = start
    return 0
