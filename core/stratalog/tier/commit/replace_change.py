"""Replacement of committed segments: the change that a commit makes on top of the head, the latest manifest root.

A running engine uses ``SwapDecision``, which leaves out swaps whose old segments are no longer in the head. A job
without an engine uses ``Replacing``, which fails as a whole if the segments have changed since the plan was made.
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
    """Replacement of consecutive segments (``old``) by one segment (``new``) that has all their offsets."""

    old: tuple[StoredSegment, ...]
    new: StoredSegment


class SwapDecision:
    """Decides which swaps of segments one commit makes. Used for one commit.

    The commit leaves out a swap if the latest root no longer has exactly the ``old`` segments of the swap.

    Args:
        swaps: the swaps, ascending.
        first_dirty_offset: first offset that is not compacted after the commit. The commit keeps the current value if
            this is None or lower, or if a swap above the log start is left out.

    Attributes:
        placed: the swaps in the change that ``decide`` last returned.
    """

    def __init__(
        self, swaps: Sequence[SegmentSwap], kind: ChangeKind, reason: str, first_dirty_offset: int | None, pages: Pages
    ) -> None:
        self._swaps, self._kind, self._reason = swaps, kind, reason
        self._first_dirty_offset, self._pages = first_dirty_offset, pages
        self.placed: tuple[SegmentSwap, ...] = ()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``, the latest root; None if nothing would change.

        The kind ERASE is committed even without swaps, unless ``root`` has no segments or already has that kind.
        """
        self.placed = ()
        if root is None or not root.segments:
            return None
        swap_by_offset = dict(self._find_placeable(root))
        self.placed = tuple(swap_by_offset.values())
        dirty_offset = self._dirty_offset(root)
        is_repeated = self._kind is ChangeKind.ERASE and root.change == ChangeKind.ERASE
        if (
            not swap_by_offset
            and dirty_offset == root.first_dirty_offset
            and (self._kind is not ChangeKind.ERASE or is_repeated)
        ):
            return None
        return replace(
            root.unchanged(self._kind, self._reason),
            first_dirty_offset=dirty_offset,
            added=tuple(self._splice_entries(root, swap_by_offset)),
            replaced=self._bounds(),
        )

    def _find_placeable(self, root: Root) -> Iterator[tuple[int, SegmentSwap]]:
        """Yield (base offset, swap) of each swap whose old segments are all still in the root."""
        if not self._swaps:
            return
        entries = walk(root, self._pages, self._swaps[0].old[0].info.base_offset)
        entry = next(entries, None)
        for swap in self._swaps:
            start, end = swap.old[0].info.base_offset, swap.old[-1].info.end_offset
            while entry is not None and entry.info.base_offset < start:
                entry = next(entries, None)
            current_entries = list[StoredSegment]()
            while entry is not None and entry.info.base_offset < end:
                current_entries.append(entry)
                entry = next(entries, None)
            if tuple(current_entries) == swap.old:
                yield start, swap

    def _bounds(self) -> tuple[int, int] | None:
        if not self.placed:
            return None
        return self.placed[0].old[0].info.base_offset, self.placed[-1].old[-1].info.end_offset

    def _splice_entries(self, root: Root, swap_by_offset: dict[int, SegmentSwap]) -> Iterator[StoredSegment]:
        """Yield all entries from the first to the last swap, with new entries in place of the swapped ones."""
        bounds = self._bounds()
        if bounds is None:
            return
        position, end = bounds
        for entry in walk(root, self._pages, position):
            base = entry.info.base_offset
            if base >= end:
                return
            if base in swap_by_offset:
                yield swap_by_offset[base].new
                position = swap_by_offset[base].new.info.end_offset
            elif base >= position:
                yield entry

    def _dirty_offset(self, root: Root) -> int:
        left_out = [swap for swap in self._swaps if swap not in self.placed]
        is_complete = all(swap.old[-1].info.end_offset <= root.log_start for swap in left_out)
        if self._first_dirty_offset is None or not is_complete:
            return root.first_dirty_offset
        return max(min(self._first_dirty_offset, root.end_offset), root.first_dirty_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Planned replacement of closed segments by others in one commit.

    Attributes:
        entries: the new segments, ascending. Without ``keeps_others``, they cover exactly ``span``.
        span: offsets [start, end); each bound is a border between segments.
        digest: hash that ``digest_of`` returned for the segments in the span when the plan was made.
        keeps_others: True to keep the segments of the span whose offsets no new segment has.
        first_dirty_offset: first offset that is not compacted after the commit; None keeps the committed value.
        mark: progress of a writer that numbers its writes; None for other writers.
        reason: text for people.
    """

    entries: tuple[StoredSegment, ...]
    span: tuple[int, int]
    digest: str
    keeps_others: bool = False
    first_dirty_offset: int | None = None
    mark: WriteMark | None = None
    reason: str

    def change(self, root: Root | None, current_entries: Sequence[StoredSegment]) -> Change:
        """Return the change to commit on top of ``root``, the latest root.

        ``current_entries`` are the segments of ``root`` in the span.

        Raises:
            StorageError: there is no root, or ``current_entries`` differ from the segments of the plan.
        """
        if root is None or digest_of(current_entries) != self.digest:
            raise StorageError(
                f"the tier has other segments in [{self.span[0]}, {self.span[1]}) than at the time of the plan: plan "
                "again"
            )
        new_entries, span = self._merge_kept(current_entries) if self.keeps_others else (self.entries, self.span)
        dirty_offset = root.first_dirty_offset if self.first_dirty_offset is None else self.first_dirty_offset
        return replace(
            root.unchanged(ChangeKind.REPLACE, self.reason),
            first_dirty_offset=dirty_offset,
            added=new_entries,
            replaced=span,
            mark=self.mark,
        )

    def _merge_kept(
        self, current_entries: Sequence[StoredSegment]
    ) -> tuple[tuple[StoredSegment, ...], tuple[int, int]]:
        """Return the new and the kept segments, and the offsets [start, end) from the first to the last new one."""
        start, end = self.entries[0].info.base_offset, self.entries[-1].info.end_offset
        bases = [entry.info.base_offset for entry in self.entries]
        kept_entries = [
            entry
            for entry in current_entries
            if start <= entry.info.base_offset < end
            and self.entries[bisect_right(bases, entry.info.base_offset) - 1].info.end_offset <= entry.info.base_offset
        ]
        return tuple(sorted((*self.entries, *kept_entries), key=lambda entry: entry.info.base_offset)), (start, end)


def digest_of(entries: Iterable[StoredSegment]) -> str:
    """Return the SHA-256, in hex, of the offsets and object keys of segments; another hash later shows a change."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.info.base_offset} {entry.info.end_offset} {' '.join(sorted(entry.keys))}\n".encode())
    return digest.hexdigest()
