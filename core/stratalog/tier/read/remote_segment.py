"""One tiered segment, as readers of a log see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError, ObjectNotFoundError
from stratalog.model.batches import Buffer
from stratalog.model.offsets import OffsetPosition
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.readable import ReadOn
from stratalog.segment.segment_identity import Identity
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import INDEX_KINDS, StoredSegment
from stratalog.tier.read.chunk_reader import Successor, no_successor
from stratalog.tier.read.fetcher import Fetcher

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers


class StoredBounds:
    """Bounds and times of a readable segment that a manifest lists; a subclass sets ``stored``, the manifest's entry."""

    __slots__ = ()

    stored: StoredSegment

    @property
    def base_offset(self) -> int:
        """The first offset that the segment may hold."""
        return self.stored.info.base_offset

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self.stored.info.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the original ``.log`` file."""
        return self.stored.info.size_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if no record has one."""
        return self.stored.info.max_timestamp_ms

    @property
    def age_from_ms(self) -> int:
        """The segment's time for retention: the largest timestamp, or the time when the file was last written."""
        info = self.stored.info
        return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms


class RemoteSegment(StoredBounds, ReadOn):
    """A ``ReadableSegment`` whose bytes are in the tier. It checks sizes; the reader checks the CRCs of batches."""

    __slots__ = ("_fetcher", "_successor", "stored")

    def __init__(self, stored: StoredSegment, fetcher: Fetcher, successor: Successor = no_successor) -> None:
        self.left_at: OffsetPosition | None = None
        self.stored, self._fetcher, self._successor = stored, fetcher, successor

    @property
    def info(self) -> SegmentInfo:
        """The segment's facts in the manifest."""
        return self.stored.info

    @property
    def label(self) -> str:
        """The key of the object with the ``.log`` file's bytes."""
        return self.stored.log_key

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, fewer at the end; raises the errors of ``Fetcher.read_log``."""
        end = min(position + size_bytes, self.size_bytes)
        if position >= end:
            return memoryview(b"")
        return self._fetcher.read_log(self.stored, position, end, self._successor)

    def read_over(self, position: int, into: memoryview) -> memoryview:
        """Return as many bytes as ``into`` has room for; they are in ``into`` if they come from the cache on disk."""
        end = min(position + len(into), self.size_bytes)
        if position >= end:
            return into[:0]
        return self._fetcher.read_log(self.stored, position, end, self._successor, into)

    def stored_arrow(self, start: int, end: int, columns: Sequence[str] | None) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the data records with offsets in [start, end) as stored; None if batches are stored."""
        return self._fetcher.read_arrow(self.stored, start, end, columns, self._successor)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index as bytes; empty if the segment has none of this role."""
        kind = INDEX_KINDS.get(role)
        return self.read_file(kind) if kind is not None else b""

    def extra_index(self, label: str) -> bytes:
        """Return an EXTRA index by ``name@version``; ``b""`` if none fits, or if it is empty.

        One request fetches all EXTRA indexes of a segment, which stay in the cache of indexes.
        """
        try:
            data = memoryview(self.read_file(FileKind.EXTRA))
        except (CorruptionError, ObjectNotFoundError):  # the records are read instead
            return b""

        def read(position: int, size_bytes: int) -> memoryview:
            return data[position : position + size_bytes]

        found = unpack_extras(read, len(data))
        if found is None or found.identity != Identity.in_tier(self.stored.info):
            return b""
        return found.index(label, read) or b""

    def read_file(self, kind: FileKind) -> bytes:
        """Return the original bytes of a small file (an index, the snapshot, the epochs); empty if there is none."""
        return self._fetcher.read_index(self.stored, kind)

    def forget(self) -> bool:
        """Drop cached bytes that are damaged, and return True; the next read asks the store again."""
        self._fetcher.forget(self.stored)
        return True
