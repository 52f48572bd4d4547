"""Interface of a segment for searching and reading, wherever its bytes are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stratalog.model.batches import Buffer
from stratalog.model.offsets import OffsetPosition
from stratalog.spi.indexes import IndexRole

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers


@runtime_checkable
class StoresArrow(Protocol):
    """A segment that may be stored as columns."""

    def stored_arrow(self, start: int, end: int, columns: Sequence[str] | None) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the data records with offsets in [start, end) as Arrow batches in ``arrow_schema(columns)``.

        The result is None if the segment is stored as batches. Records of aborted transactions are included.
        """


class KeepsReadPosition:
    """A segment that remembers where its last reader stopped.

    Attributes:
        next_read: the offset after the last large fetch, and the position where the batch with this offset begins; None
            before the first large fetch. Most fetches continue there and need no index. The hint is replaced as a
            whole, so it is set without a lock.
    """

    __slots__ = ("next_read",)

    next_read: OffsetPosition | None


class ReadableSegment(Protocol):
    """One segment, local or in a tier. Offsets are [base_offset, end_offset); positions are bytes of the ``.log`` file.

    Methods that read bytes raise StorageError if the read fails, for example SegmentGoneError if the file is gone, and
    StoreError if the tier's store fails.
    """

    @property
    def base_offset(self) -> int:
        """First offset that the segment may hold."""

    @property
    def end_offset(self) -> int:
        """First offset after the segment; for the active segment, the offset of the next record."""

    @property
    def size_bytes(self) -> int:
        """Size of the ``.log`` file."""

    @property
    def max_timestamp_ms(self) -> int:
        """Largest record timestamp, -1 if no record has one."""

    @property
    def age_from_ms(self) -> int:
        """Start of the age for time-based retention (ms since 1970).

        It is the largest record timestamp, or the time of the last write to the file if no record has a timestamp.
        """

    @property
    def label(self) -> str:
        """Path of the ``.log`` file, or key of the object, for error texts."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` bytes from ``position``, fewer at the end of the segment."""

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index as bytes; empty if the segment has no index of this role."""

    def forget(self) -> bool:
        """Drop the cached bytes, because they turned out to be damaged.

        Returns:
            True if reading again may return other bytes: bytes from a tier may have been damaged in transfer.
        """
