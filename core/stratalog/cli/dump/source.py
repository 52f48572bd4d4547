"""Bytes to dump, read a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from stratalog.env.vfs import Vfs
from stratalog.errors import ConfigError, LogDirError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileSlice
from stratalog.spi.indexes import IndexRole

PIECE_BYTES: Final = 1 << 20
_ANY_END: Final = (1 << 63) - 1


class Source(Protocol):
    """A file, or a part of an object, that is read as if it were a file."""

    @property
    def label(self) -> str:
        """Its path, for people and errors."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``, fewer at the end."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """An open file."""

    label: str
    size_bytes: int
    files: Vfs
    descriptor: int

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        with _told(self.label):
            return memoryview(self.files.read(self.descriptor, position, size_bytes))


@dataclass(frozen=True, slots=True)
class BytesSource:
    """Bytes in memory."""

    label: str
    data: bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes there are."""
        return len(self.data)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        return memoryview(self.data)[position : position + size_bytes]


@dataclass(frozen=True, slots=True)
class RangeSource:
    """Bytes that somebody else reads: ``fetch(start, end)`` gives [start, end)."""

    label: str
    size_bytes: int
    fetch: Callable[[int, int], Buffer]

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        return memoryview(self.fetch(position, min(position + size_bytes, self.size_bytes)))


@dataclass(frozen=True, slots=True)
class LogSource:
    """A ``.log`` file by itself, as a segment without indexes."""

    source: Source
    base_offset: int
    end_offset: int = _ANY_END
    max_timestamp_ms: int = -1
    age_from_ms: int = -1

    @property
    def label(self) -> str:
        """The file."""
        return self.source.label

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.source.size_bytes

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        return self.source.read(position, size_bytes)

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same."""
        return FileSlice(self.read(position, size_bytes))

    def forget(self) -> bool:
        """Nothing is cached."""
        return False

    def index_entries(self, role: IndexRole) -> Buffer:
        """None."""
        del role
        return b""


@contextmanager
def opened(files: Vfs, path: Path) -> Iterator[FileSource]:
    """A file that is open meanwhile; ConfigError if there is none, LogDirError if it cannot be opened."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    with _told(str(path)):
        descriptor = files.open(str(path.resolve()))  # the port follows no links
    try:
        yield FileSource(str(path), files.size_bytes(descriptor), files, descriptor)
    finally:
        files.close(descriptor)


@contextmanager
def _told(label: str) -> Iterator[None]:
    """Errors of the system name the file; those of writing the output are none of ours, and pass elsewhere."""
    try:
        yield
    except OSError as error:
        raise LogDirError(f"cannot be read: {error.strerror or error}", label) from error


def whole(source: Source, limit_bytes: int) -> bytes:
    """All bytes of a small file; ConfigError if it is larger than any of its kind should be."""
    if source.size_bytes > limit_bytes:
        raise ConfigError(f"{source.label} has {source.size_bytes} bytes, {limit_bytes} are read of such a file")
    return bytes(source.read(0, source.size_bytes))


def zeros_from(source: Source) -> int:
    """The position from which on every byte is zero; the size if the last one is not."""
    end = source.size_bytes
    while end:
        start = max(0, end - PIECE_BYTES)
        kept = len(bytes(source.read(start, end - start)).rstrip(b"\0"))
        if kept:
            return start + kept
        end = start
    return 0
