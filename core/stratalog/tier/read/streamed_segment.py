"""A tiered segment that is read once, from start to end."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment


class StreamedSegment:
    """A ReadableSegment over bytes that are read once, in order; supports no index lookups.

    Args:
        stored: the entry in the manifest; it gives the bounds, size and timestamps.
        pieces: the bytes of the ``.log`` file.
    """

    def __init__(self, stored: StoredSegment, pieces: Iterable[memoryview]) -> None:
        info = stored.info
        self.base_offset, self.end_offset, self.size_bytes = info.base_offset, info.end_offset, info.size_bytes
        self.max_timestamp_ms, self.age_from_ms = info.max_timestamp_ms, info.modified_ms
        self.label = stored.log_key
        self._pieces = iter(pieces)
        self._held, self._start = bytearray(), 0  # bytes not passed yet, and their position

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
