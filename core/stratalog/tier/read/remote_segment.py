"""Segments in a tier, with the methods that readers of a log use, and the list of the segments of a manifest root.

Pages of the list are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError, ObjectNotFoundError
from stratalog.log.read.tier_view import RemoteSegments
from stratalog.model.batches import Buffer
from stratalog.model.offsets import OffsetPosition
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.readable import KeepsReadPosition, ReadableSegment
from stratalog.segment.section_file import Identity
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import INDEX_KINDS, StoredSegment
from stratalog.tier.manifest.authenticity import EntryCheck
from stratalog.tier.manifest.entry_tree import walk, walk_back
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import PageRef, Root, segment_time_ms
from stratalog.tier.read.chunk_reader import Successor, no_successor
from stratalog.tier.read.fetcher import Fetcher

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers


class StoredBounds:
    """Base class of readable segments in a tier, with bounds and times from ``entry``. Subclasses set ``entry``."""

    __slots__ = ()

    entry: StoredSegment

    @property
    def base_offset(self) -> int:
        """The first offset that the segment may hold."""
        return self.entry.info.base_offset

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self.entry.info.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the original ``.log`` file."""
        return self.entry.info.size_bytes

    @property
    def max_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if no record has one."""
        return self.entry.info.max_timestamp_ms

    @property
    def age_from_ms(self) -> int:
        """Time from which retention counts the age: the largest timestamp; the time of the last write without one."""
        return segment_time_ms(self.entry)


class RemoteSegment(StoredBounds, KeepsReadPosition):
    """A ``ReadableSegment`` whose bytes are in the tier. Its readers must check the CRCs of batches.

    Args:
        entry: the manifest entry of the segment.
        fetcher: reads the bytes.
        successor: returns the segment after a given segment, for prefetching.
    """

    __slots__ = ("_fetcher", "_successor", "entry")

    def __init__(self, entry: StoredSegment, fetcher: Fetcher, successor: Successor = no_successor) -> None:
        self.next_read: OffsetPosition | None = None
        self.entry, self._fetcher, self._successor = entry, fetcher, successor

    @property
    def info(self) -> SegmentInfo:
        """The description of the segment in the manifest: offsets, size, timestamps and leader epochs."""
        return self.entry.info

    @property
    def label(self) -> str:
        """The key of the object with the ``.log`` file's bytes."""
        return self.entry.log_key

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, fewer at the end; raise the errors of ``Fetcher.read_log``."""
        end = min(position + size_bytes, self.size_bytes)
        if position >= end:
            return memoryview(b"")
        return self._fetcher.read_log(self.entry, position, end, self._successor)

    def read_over(self, position: int, buffer: memoryview) -> memoryview:
        """Return up to ``len(buffer)`` bytes from ``position`` on, fewer at the end of the file.

        The bytes may be in the memory of ``buffer``. Raises the errors of ``Fetcher.read_log``.
        """
        end = min(position + len(buffer), self.size_bytes)
        if position >= end:
            return buffer[:0]
        return self._fetcher.read_log(self.entry, position, end, self._successor, buffer)

    def stored_arrow(self, start: int, end: int, columns: Sequence[str] | None) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the data records with offsets in [start, end) as Arrow batches, from a layout that stores columns.

        Return None if the layout stores no columns: the caller then decodes the batches of the log. ``columns`` are the
        names of the columns to return; None returns all. The call, and the iteration over the result, raise the errors
        of ``Fetcher.read_log``.
        """
        return self._fetcher.read_arrow(self.entry, start, end, columns, self._successor)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index as bytes; empty if the segment has no index with this role.

        Raises the errors of ``Fetcher.read_log``.
        """
        kind = INDEX_KINDS.get(role)
        return self.read_file(kind) if kind is not None else b""

    def extra_index(self, label: str) -> bytes:
        """Return the EXTRA index with this label (``name@version``); ``b""`` if it is missing, damaged or empty.

        Raises:
            The errors of ``Fetcher.read_log``, except those about damaged or missing objects.
        """
        try:
            data = memoryview(self.read_file(FileKind.EXTRA))
        except (CorruptionError, ObjectNotFoundError):  # the records are read instead
            return b""

        def read(position: int, size_bytes: int) -> memoryview:
            return data[position : position + size_bytes]

        extras = unpack_extras(read, len(data))
        if extras is None or extras.identity != Identity.in_tier(self.entry.info):
            return b""
        return extras.index(label, read) or b""

    def read_file(self, kind: FileKind) -> bytes:
        """Return the original bytes of a small file (an index, the snapshot, the epochs); empty if there is none.

        Raises the errors of ``Fetcher.read_log``.
        """
        return self._fetcher.read_index(self.entry, kind)

    def forget(self) -> bool:
        """Drop the cached bytes of the segment, and return True. The next read requests them from the store."""
        self._fetcher.forget(self.entry)
        return True


class PagedSegments(RemoteSegments):
    """The segments of one manifest root, for readers. Searches by offset and time read only the pages that may match.

    Args:
        pages: pages of the log's manifest.
        fetcher: reads the segments.
        check: raises TamperedManifestError if the root must not have an entry; None if no check is necessary.
    """

    __slots__ = ("_allowed_layout", "_check", "_fetcher", "_last_segment", "_pages", "_root", "_successor")

    def __init__(self, root: Root, pages: Pages, fetcher: Fetcher, check: EntryCheck | None = None) -> None:
        super().__init__()
        self._root, self._pages, self._fetcher, self._check = root, pages, fetcher, check
        self._allowed_layout = ""  # the layout that was checked last; most entries have the same one
        # No reference to self, which would be a cycle through _last_segment.
        self._successor = partial(_next_entry, root, pages)
        self._last_segment: RemoteSegment | None = None  # the segment returned last, which most readers need again

    def __len__(self) -> int:
        return self._root.segments

    def __iter__(self) -> Iterator[ReadableSegment]:
        return self.from_offset(0)

    def __reversed__(self) -> Iterator[ReadableSegment]:
        return (self._readable(entry) for entry in walk_back(self._root, self._pages))

    def __getitem__(self, index: int) -> ReadableSegment:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return next(islice(self, index, None) if index >= 0 else islice(reversed(self), -index - 1, None))

    @property
    def start_offset(self) -> int | None:
        """The base offset of the first segment, None if there is none."""
        return self._root.start_offset if self._root.segments else None

    @property
    def end_offset(self) -> int | None:
        """The exclusive end offset of the last segment, None if there is none."""
        return self._root.end_offset if self._root.segments else None

    def coarse(self, detailed_to: int, bound: int) -> Iterator[PageRef | StoredSegment]:
        """Yield the segments of the root, ascending. A page that is not read is yielded as one PageRef.

        Args:
            detailed_to: read the pages that begin below this offset or below the log start.
            bound: read the pages whose end offset (exclusive) is above this offset.
        """
        start = self._root.log_start
        for ref in self._root.pages:
            if ref.base_offset >= max(detailed_to, start) and ref.end_offset <= bound:
                yield ref
            else:
                yield from walk(replace(self._root, pages=(ref,), entries=()), self._pages)
        yield from self._root.entries

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Yield the segments whose exclusive end offset is above ``offset``, ascending.

        With ``since_ms``, skip the pages in which all segments are older than this timestamp.
        """
        last, start = self._last_segment, max(offset, self._root.log_start)
        if last is not None and last.base_offset <= start < last.end_offset and since_ms is None:
            yield last
            offset = last.end_offset
        for entry in walk(self._root, self._pages, offset, since_ms=since_ms):
            self._last_segment = segment = self._readable(entry)
            yield segment

    def _readable(self, entry: StoredSegment) -> RemoteSegment:
        if self._check is not None and entry.layout != self._allowed_layout:
            self._check(entry)
            self._allowed_layout = entry.layout
        return RemoteSegment(entry, self._fetcher, self._successor)


def _next_entry(root: Root, pages: Pages, entry: StoredSegment) -> StoredSegment | None:
    """Return the segment of a root that follows ``entry``; None if ``entry`` is the last one."""
    return next(walk(root, pages, entry.info.end_offset), None)
