"""Replacement of committed segments: the change that a commit makes on top of the head, the latest manifest root.

A running engine uses ``SwapDecision``, which leaves out swaps whose old segments are no longer in the head. A job uses
``Replacing``, which fails as a whole if the head has other segments than at the time of the plan.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stratalog.errors import StorageError
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import Change, ChangeKind, Root, WriteMark


@dataclass(frozen=True, slots=True)
class SegmentSwap:
    """Replacement of consecutive segments (``old``) by one segment (``new``) with the same offsets."""

    old: tuple[StoredSegment, ...]
    new: StoredSegment


class SwapDecision:
    """Decides which swaps one commit makes. Used for one commit.

    A swap is left out if the head no longer has exactly its old entries, because the log has changed in the meantime.

    Args:
        wanted: the swaps, ascending.
        kind: kind of the change.
        reason: text for people.
        first_dirty_offset: offset up to which the log is compacted after the commit; None keeps the committed value. It
            is committed only if all swaps that are left out are below the log start.
        pages: pages of the log's manifest.

    Attributes:
        placed: the swaps in the change that ``decide`` last returned.
    """

    def __init__(
        self,
        wanted: Sequence[SegmentSwap],
        kind: ChangeKind,
        reason: str,
        first_dirty_offset: int | None,
        pages: Pages,
    ) -> None:
        self._wanted, self._kind, self._reason = wanted, kind, reason
        self._first_dirty_offset, self._pages = first_dirty_offset, pages
        self.placed: tuple[SegmentSwap, ...] = ()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``; None if there is nothing to commit."""
        self.placed = ()
        if root is None or not root.segments:
            return None
        kept = dict(self._placeable(root))
        self.placed = tuple(kept.values())
        dirty = self._dirty_offset(root)
        is_said = self._kind is ChangeKind.ERASE and root.change == ChangeKind.ERASE
        if not kept and dirty == root.first_dirty_offset and (self._kind is not ChangeKind.ERASE or is_said):
            return None
        return replace(
            root.unchanged(self._kind, self._reason),
            first_dirty_offset=dirty,
            added=tuple(self._spliced(root, kept)),
            replaced=self._bounds(),
        )

    def _placeable(self, root: Root) -> Iterator[tuple[int, SegmentSwap]]:
        """Yield the swaps whose old entries are exactly those of the root, each with its base offset."""
        if not self._wanted:
            return
        there = walk(root, self._pages, self._wanted[0].old[0].info.base_offset)
        entry = next(there, None)
        for found in self._wanted:
            start, end = found.old[0].info.base_offset, found.old[-1].info.end_offset
            while entry is not None and entry.info.base_offset < start:
                entry = next(there, None)
            held = list[StoredSegment]()
            while entry is not None and entry.info.base_offset < end:
                held.append(entry)
                entry = next(there, None)
            if tuple(held) == found.old:
                yield start, found

    def _bounds(self) -> tuple[int, int] | None:
        if not self.placed:
            return None
        return self.placed[0].old[0].info.base_offset, self.placed[-1].old[-1].info.end_offset

    def _spliced(self, root: Root, kept: dict[int, SegmentSwap]) -> Iterator[StoredSegment]:
        """Yield all entries from the first to the last swap, with the new entries in place of the old ones."""
        bounds = self._bounds()
        if bounds is None:
            return
        position, end = bounds
        for entry in walk(root, self._pages, position):
            base = entry.info.base_offset
            if base >= end:
                return
            if base in kept:
                yield kept[base].new
                position = kept[base].new.info.end_offset
            elif base >= position:
                yield entry

    def _dirty_offset(self, root: Root) -> int:
        overtaken = [found for found in self._wanted if found not in self.placed]
        is_whole = all(found.old[-1].info.end_offset <= root.log_start for found in overtaken)
        if self._first_dirty_offset is None or not is_whole:
            return root.first_dirty_offset
        return max(min(self._first_dirty_offset, root.end_offset), root.first_dirty_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Replacement of closed segments by others in one commit.

    Attributes:
        entries: the new segments. They cover exactly ``span``, or with ``keeps_others`` some whole segments of it.
        span: offsets [start, end), which are borders of segments.
        keeps_others: True if segments of the span that no entry replaces are kept.
        digest: ``digest_of`` the segments in the span at the time of the plan.
        first_dirty_offset: first offset that is not compacted after the commit; None keeps the committed value.
        mark: number of the writer's round; None for a writer without numbered rounds.
        reason: text for people.
    """

    entries: tuple[StoredSegment, ...]
    span: tuple[int, int]
    digest: str
    keeps_others: bool = False
    first_dirty_offset: int | None = None
    mark: WriteMark | None = None
    reason: str

    def change(self, root: Root | None, held: Sequence[StoredSegment]) -> Change:
        """Return the change to commit on top of ``root``, the head, which has the segments ``held`` in the span.

        Raises:
            StorageError: ``held`` differs from the segments of the plan.
        """
        if root is None or digest_of(held) != self.digest:
            raise StorageError(
                f"the tier has other segments in [{self.span[0]}, {self.span[1]}) than at the time of the plan: plan "
                "again"
            )
        added, span = self._filled(held) if self.keeps_others else (self.entries, self.span)
        dirty = root.first_dirty_offset if self.first_dirty_offset is None else self.first_dirty_offset
        return replace(
            root.unchanged(ChangeKind.REPLACE, self.reason),
            first_dirty_offset=dirty,
            added=added,
            replaced=span,
            mark=self.mark,
        )

    def _filled(self, held: Sequence[StoredSegment]) -> tuple[tuple[StoredSegment, ...], tuple[int, int]]:
        """Return the entries with the kept segments between them, and the offsets [start, end) that they cover."""
        start, end = self.entries[0].info.base_offset, self.entries[-1].info.end_offset
        bases = [entry.info.base_offset for entry in self.entries]
        kept = [
            entry
            for entry in held
            if start <= entry.info.base_offset < end
            and self.entries[bisect_right(bases, entry.info.base_offset) - 1].info.end_offset <= entry.info.base_offset
        ]
        return tuple(sorted((*self.entries, *kept), key=lambda entry: entry.info.base_offset)), (start, end)


def digest_of(entries: Iterable[StoredSegment]) -> str:
    """Return a hash of the offsets and object keys of segments, to check later if the log still has these objects."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.info.base_offset} {entry.info.end_offset} {' '.join(sorted(entry.keys))}\n".encode())
    return digest.hexdigest()
