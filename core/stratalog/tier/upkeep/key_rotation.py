"""New encryption of the keys of segments after another key became active: entries change, objects do not.

Each commit changes the entries of one manifest page. After an interruption the commits made so far stay, and a
repetition continues. An engine that writes to the log meanwhile builds on these commits, because they change nothing
that it knows.
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
    """Result for one log: ``segments`` were checked; ``rewrapped`` of them have a new envelope."""

    segments: int = 0
    rewrapped: int = 0


def spans(root: Root, pages: Pages) -> Iterator[tuple[int, int]]:
    """Return the offsets [start, end) of the entries of each page, and of those in the root itself."""
    for ref in leaves(root.pages, pages, root.log_start):
        yield ref.base_offset, ref.end_offset
    if root.entries:
        yield root.entries[0].info.base_offset, root.end_offset


def authenticated(root: Root | None) -> Change | None:
    """Return a change that changes no field; the root that it makes has a MAC of the active key."""
    return None if root is None else root.unchanged(ChangeKind.REWRAP, "the root is authenticated by the active key")


class Rewrapping:
    """One commit, which renews the envelopes of the entries of a span.

    Args:
        layouts: have the keys.
        store: ``tier.verify`` reads from it before a new entry may be committed.
        entries: returns the entries of a root that overlap the span.
    """

    def __init__(
        self, layouts: LayoutTable, store: TierStore, entries: Callable[[Root | None], list[StoredSegment]]
    ) -> None:
        self._layouts, self._store, self._entries = layouts, store, entries
        self.report = RewrapReport()

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit, as ``Decide``; None if all keys are encrypted with the active key.

        Raises:
            ConfigError: a key is missing.
            CorruptObjectError: an envelope is damaged.
            PluginError: a new entry does not give the same bytes as the old one.
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
