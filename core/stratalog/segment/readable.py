"""What a log needs of a segment to search and read it, wherever its bytes are."""

from __future__ import annotations

from typing import Protocol

from stratalog.model.batches import Buffer
from stratalog.model.offsets import OffsetPosition
from stratalog.model.segment_info import FileSlice
from stratalog.spi.indexes import IndexRole


class ReadOn:
    """A segment that knows where its last reader stopped.

    Attributes:
        left_at: the offset after the last fetch, and the position where its batch begins: most fetches go on there, and
            need no index. A hint that is replaced as a whole, so it is set without a lock.
    """

    __slots__ = ("left_at",)

    def __init__(self) -> None:
        self.left_at: OffsetPosition | None = None


class ReadableSegment(Protocol):
    """One segment of either tier. Offsets are [base_offset, end_offset); positions are bytes of the ``.log`` file."""

    @property
    def base_offset(self) -> int:
        """The first offset it may hold."""

    @property
    def end_offset(self) -> int:
        """The first offset after it; for the active segment, of the next record."""

    @property
    def size_bytes(self) -> int:
        """Of the ``.log`` file."""

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if no record has one."""

    @property
    def age_from_ms(self) -> int:
        """What retention by time goes by: the largest timestamp, or when the file was last written."""

    @property
    def label(self) -> str:
        """The file or object, for error texts."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``, fewer at the end of the segment."""

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same, pinned until released."""

    def index_entries(self, role: IndexRole) -> Buffer:
        """The entries of an index as bytes; empty if the segment has none of this role."""

    def forget(self) -> bool:
        """Drop what is cached of it, because it turned out to be damaged.

        Returns:
            Whether reading again may give other bytes: those of a tier may have been damaged on the way.
        """
