"""Replacement of committed segments by rewritten ones: objects first, then the root that names them.

One commit makes all replacements or none. The collector deletes the replaced objects later, so readers of older roots
can finish. The commit is decided on the head at that time. Segments that retention removed meanwhile stay removed. If
an entry is not the one that was read, its replacement is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.tier.commit.committer import Decide
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import PAGE_ITEMS, Change, ChangeKind, Root
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.uploader import Offloader, claimed

MOST_ENTRIES: Final = PAGE_ITEMS
"""The most replacements for one commit; a larger change would need more memory and more repeated work after a crash."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Consecutive entries, and the one entry that replaces them at the same offsets."""

    old: tuple[StoredSegment, ...]
    new: StoredSegment


class Replacer:
    """Replaces segments of one log in one leader epoch. For one thread; its commits exclude those of other duties.

    Args:
        store: receives the objects.
        offloader: uploads with the topic's current layout.
        pages: of the log's manifest.
        prefix: of the log in the tier.
        leader_epoch: of the writer; part of keys and roots; fences other writers.
        commit: publishes a change under a leader epoch, as ``Committer.commit``.
    """

    def __init__(
        self,
        store: TierStore,
        offloader: Offloader,
        pages: Pages,
        prefix: str,
        leader_epoch: int,
        commit: Callable[[int, Decide], Root | None],
    ) -> None:
        self._store, self._offloader, self._pages, self._prefix = store, offloader, pages, prefix
        self.leader_epoch, self._commit = leader_epoch, commit

    def begin(self) -> Root | None:
        """Return the head; begins the leader epoch in the tier if needed, which fences the previous writer.

        Raises:
            FencedEpochError: another writer owns the log: uploads would be useless.
            StoreError: the store failed.
        """

        def decide(root: Root | None) -> Change | None:
            is_new = root is not None and root.leader_epoch < self.leader_epoch
            return claimed(root, "a new leader epoch begins") if is_new else None

        return self._commit(self.leader_epoch, decide)

    def upload(self, source: SegmentSource) -> StoredSegment:
        """Store a segment under new keys; no root names it yet. It raises the errors of ``Offloader.upload``."""
        return self._offloader.upload(source, self._prefix, self.leader_epoch)

    def discard(self, unnamed: Sequence[StoredSegment]) -> None:
        """Delete uploads that no root will ever name. The collector deletes later what cannot be deleted now."""
        keys = sorted(key for entry in unnamed for key in entry.keys)
        self._offloader.uploads.deleted(keys, self._store.delete(keys))

    def replace(
        self,
        replacements: Sequence[Replacement],
        kind: ChangeKind,
        reason: str,
        *,
        first_dirty_offset: int | None = None,
    ) -> tuple[Replacement, ...]:
        """Commit replacements, ascending; return those that took effect. The others are outdated and are discarded.

        ``first_dirty_offset`` is committed only if outdated replacements are all below the log start.

        Raises:
            FencedEpochError: another writer owns the log; the collector deletes the uploads.
            StoreTimeoutError: read the head again to find out if the replacements were committed.
            The errors of ``Committer.commit``.
        """
        placing = _Placing(replacements, kind, reason, first_dirty_offset, self._pages)
        try:
            self._commit(self.leader_epoch, placing.decide)
        except BaseException:
            self._offloader.uploads.leave(key for found in replacements for key in found.new.keys)
            raise
        self._offloader.uploads.end(key for found in placing.placed for key in found.new.keys)
        self.discard([found.new for found in replacements if found not in placing.placed])
        return placing.placed


class _Placing:
    """One decision to replace; keeps the replacements of the last decided change."""

    def __init__(
        self,
        wanted: Sequence[Replacement],
        kind: ChangeKind,
        reason: str,
        first_dirty_offset: int | None,
        pages: Pages,
    ) -> None:
        self._wanted, self._kind, self._reason = wanted, kind, reason
        self._first_dirty_offset, self._pages = first_dirty_offset, pages
        self.placed: tuple[Replacement, ...] = ()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``; a ``Decide``."""
        self.placed = ()
        if root is None or not root.segments:
            return None
        kept = dict(self._placeable(root))
        self.placed = tuple(kept.values())
        dirty = self._dirty_offset(root)
        is_said = self._kind is ChangeKind.ERASE and root.change == ChangeKind.ERASE
        if not kept and dirty == root.first_dirty_offset and (self._kind is not ChangeKind.ERASE or is_said):
            return None
        return Change(
            kind=self._kind,
            reason=self._reason,
            log_start=root.log_start,
            high_watermark=root.high_watermark,
            first_dirty_offset=dirty,
            added=tuple(self._spliced(root, kept)),
            replaced=self._bounds(),
        )

    def _placeable(self, root: Root) -> Iterator[tuple[int, Replacement]]:
        """Return by base offset the replacements whose old entries are exactly those of the root."""
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

    def _spliced(self, root: Root, kept: dict[int, Replacement]) -> Iterator[StoredSegment]:
        """Return all entries within the bounds after the replacement."""
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
