"""Encryption of the data keys of segments with a new active key: a change of manifest entries, but not of objects.

Each commit changes the entries of one manifest page. After an interruption, a repetition continues after the commits
that were made. The commits do not fence an engine that writes to the log at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import leaves
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import BULK, EMPTYING, Change, ChangeKind, Root
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import check_renewed


@dataclass(frozen=True, slots=True)
class RewrapReport:
    """Result for one log: the numbers of checked segments, and of segments whose data key was encrypted again."""

    segments: int = 0
    rewrapped: int = 0


def spans(root: Root, pages: Pages) -> Iterator[tuple[int, int]]:
    """Yield the offsets [start, end) of each page of entries above the log start, then of the root's own entries."""
    for ref in leaves(root.pages, pages, root.log_start):
        yield ref.base_offset, ref.end_offset
    if root.entries:
        yield root.entries[0].info.base_offset, root.end_offset


def mac_change(root: Root | None) -> Change | None:
    """Return a change that keeps all entries, and whose commit adds a MAC of the active key; None without a root."""
    return None if root is None else root.unchanged(_kind_after(root), "the root is authenticated by the active key")


def _kind_after(root: Root) -> ChangeKind:
    """Return the kind of a change on top of ``root``: REWRAP, or the root's own kind if the new root must keep it.

    The kind of the head shows that the topic was deleted or left the tier, that a rebuild is possibly incomplete, or
    that only bulk writers write to the log.
    """
    kept_kinds = EMPTYING | BULK | {ChangeKind.REBUILD}
    return ChangeKind(root.change) if root.change in kept_kinds else ChangeKind.REWRAP


class Rewrapping:
    """Encryption of the data keys of the segments in a range of offsets with the active key, by one commit.

    Args:
        store: the store; if ``tier.verify`` requires it, a segment is read back by its new entry before the commit.
        entries: called with a root; returns its entries in the range of offsets.

    Attributes:
        report: numbers of segments that the last call of ``decide`` checked and changed.
    """

    def __init__(
        self, layouts: LayoutTable, store: TierStore, entries: Callable[[Root | None], list[StoredSegment]]
    ) -> None:
        self._layouts, self._store, self._entries = layouts, store, entries
        self.report = RewrapReport()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``; None if no data key must be encrypted again.

        The result is also None if there is no root.

        Raises:
            CorruptObjectError: the encrypted data key of a segment is damaged.
            PluginError: a segment read by its new entry has other bytes than by its old entry.
        """
        old = self._entries(root)
        new = [self._rewrap(entry) for entry in old]
        changed = sum(renewed is not entry for renewed, entry in zip(new, old, strict=True))
        self.report = RewrapReport(len(old), changed)
        if root is None or not changed:
            return None
        return replace(
            root.unchanged(_kind_after(root), f"keys of {changed} segments encrypted with the active key"),
            added=tuple(new),
            replaced=(old[0].info.base_offset, old[-1].info.end_offset),
        )

    def _rewrap(self, entry: StoredSegment) -> StoredSegment:
        layout, verification = self._layouts.by_label(entry.layout), self._store.verification
        renewed, kind = layout.rewrapped(entry), f"rewrapped {entry.layout}"
        if renewed is not entry and verification.is_due(kind, is_bundled=layout.guard.is_bundled):
            check_renewed(entry, renewed, self._store, layout)
            verification.record_success(kind)
        return renewed
