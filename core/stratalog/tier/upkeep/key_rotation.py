"""Encryption of the data keys of segments with a new active key. It changes manifest entries, but no objects.

Each commit changes the entries of one manifest page. After an interruption, a repetition continues after the commits
that were made. These commits do not fence an engine that writes to the log at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import leaves
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import Change, ChangeKind, Root
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import check_renewed


@dataclass(frozen=True, slots=True)
class RewrapReport:
    """Result for one log: the number of checked segments, and of those whose data key was encrypted again."""

    segments: int = 0
    rewrapped: int = 0


def spans(root: Root, pages: Pages) -> Iterator[tuple[int, int]]:
    """Yield the offsets [start, end) of the entries of each page, and then of the entries in the root itself."""
    for ref in leaves(root.pages, pages, root.log_start):
        yield ref.base_offset, ref.end_offset
    if root.entries:
        yield root.entries[0].info.base_offset, root.end_offset


def authenticated(root: Root | None) -> Change | None:
    """Return a change that changes nothing, but whose root gets a MAC of the active key; None if there is no root."""
    return None if root is None else root.unchanged(ChangeKind.REWRAP, "the root is authenticated by the active key")


class Rewrapping:
    """Decides the change of one commit: the entries of a range of offsets, with data keys encrypted by the active key.

    Args:
        layouts: the installed layouts, which have the keys.
        store: the store; if ``tier.verify`` requires it, a segment is read back by its new entry before the commit.
        entries: returns the entries of a root in the range of offsets.

    Attributes:
        report: numbers of segments in the change that ``decide`` last returned.
    """

    def __init__(
        self, layouts: LayoutTable, store: TierStore, entries: Callable[[Root | None], list[StoredSegment]]
    ) -> None:
        self._layouts, self._store, self._entries = layouts, store, entries
        self.report = RewrapReport()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``; None if all keys are encrypted with the active key.

        Raises:
            ConfigError: a key is missing.
            CorruptObjectError: the encrypted data key of a segment is damaged.
            PluginError: a segment read by its new entry has other bytes than by its old entry.
        """
        old = self._entries(root)
        new = [self._rewrapped(entry) for entry in old]
        changed = sum(renewed is not entry for renewed, entry in zip(new, old, strict=True))
        self.report = RewrapReport(len(old), changed)
        if root is None or not changed:
            return None
        return replace(
            root.unchanged(ChangeKind.REWRAP, f"keys of {changed} segments encrypted with the active key"),
            added=tuple(new),
            replaced=(old[0].info.base_offset, old[-1].info.end_offset),
        )

    def _rewrapped(self, entry: StoredSegment) -> StoredSegment:
        layout, verification = self._layouts.by_label(entry.layout), self._store.verification
        renewed, kind = layout.rewrapped(entry), f"rewrapped {entry.layout}"
        if renewed is not entry and verification.is_due(kind, is_bundled=layout.guard.is_bundled):
            check_renewed(entry, renewed, self._store, layout)
            verification.passed(kind)
        return renewed
