"""A tiered segment that is read once, from start to end."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment


class StreamedSegment:
    """A segment as a ReadableSegment over bytes that are read once, in order; supports no index lookups."""

    def __init__(self, stored: StoredSegment, pieces: Iterable[memoryview]) -> None:
        self._stored, self._pieces = stored, iter(pieces)
        self._held, self._start = bytearray(), 0  # bytes not passed yet, and their position

    @property
    def base_offset(self) -> int:
        """The first offset that the segment may hold."""
        return self._stored.info.base_offset

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self._stored.info.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the original ``.log`` file."""
        return self._stored.info.size_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp in the entry."""
        return self._stored.info.max_timestamp_ms

    @property
    def age_from_ms(self) -> int:
        """The file's time in the entry."""
        return self._stored.info.modified_ms

    @property
    def label(self) -> str:
        """The key of the object."""
        return self._stored.log_key

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return bytes from ``position``, which must not decrease between calls."""
        self._held = self._held[position - self._start :]
        self._start = position
        while len(self._held) < size_bytes and (piece := next(self._pieces, None)) is not None:
            self._held += piece
        return memoryview(bytes(self._held[:size_bytes]))

    def finish(self) -> None:
        """Read the rest, so the hash of the whole log is checked."""
        for _ in self._pieces:
            pass

    def index_entries(self, role: IndexRole) -> bytes:
        """Return empty bytes: no index is needed."""
        del role
        return b""

    def forget(self) -> bool:
        """Return False: nothing is cached."""
        return False
