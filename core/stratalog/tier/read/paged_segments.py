"""The list of segments of a manifest root, for readers. Pages of the list are read when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

from stratalog.log.read.tier_view import RemoteSegments
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.authenticity import EntryCheck
from stratalog.tier.manifest.entry_tree import walk, walk_back
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import PageRef, Root
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.read.remote_segment import RemoteSegment


class PagedSegments(RemoteSegments):
    """The segments of one manifest root, for readers. Searches by offset and time read only the pages that may match.

    Args:
        root: the root.
        pages: pages of the log's manifest.
        fetcher: reads the segments.
        check: raises TamperedManifestError if the root must not have an entry; None if no check is necessary.
    """

    __slots__ = ("_after", "_check", "_fetcher", "_last", "_pages", "_root")

    def __init__(self, root: Root, pages: Pages, fetcher: Fetcher, check: EntryCheck | None = None) -> None:
        super().__init__()
        self._root, self._pages, self._fetcher, self._check = root, pages, fetcher, check
        self._after = partial(_after, root, pages)  # no reference to self, which would be a cycle through _last
        self._last: RemoteSegment | None = None  # the segment returned last, which most readers need again

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
        """Yield the segments of the root, ascending. Pages between two offsets are not read: each is one PageRef.

        Args:
            detailed_to: yield single segments of pages that begin below this offset or below the log start.
            bound: yield single segments of pages that end above this offset.
        """
        start = self._root.log_start
        for ref in self._root.pages:
            if ref.base_offset >= max(detailed_to, start) and ref.end_offset <= bound:
                yield ref
            else:
                yield from walk(replace(self._root, pages=(ref,), entries=()), self._pages)
        yield from self._root.entries

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Yield the segments that end above ``offset``, ascending.

        With ``since_ms``, pages are skipped whose segments are all older than this timestamp.
        """
        last, start = self._last, max(offset, self._root.log_start)
        if last is not None and last.base_offset <= start < last.end_offset and since_ms is None:
            yield last
            offset = last.end_offset
        for entry in walk(self._root, self._pages, offset, since_ms=since_ms):
            self._last = found = self._readable(entry)
            yield found

    def _readable(self, entry: StoredSegment) -> RemoteSegment:
        if self._check is not None:
            self._check(entry)
        return RemoteSegment(entry, self._fetcher, self._after)


def _after(root: Root, pages: Pages, entry: StoredSegment) -> StoredSegment | None:
    """Return the segment of a root that follows ``entry``; None if ``entry`` is the last one."""
    return next(walk(root, pages, entry.info.end_offset), None)
