"""Wrapping the keys of encrypted segments anew, after a key was added and made active: entries change, no object does.

Each commit takes the entries of one manifest page. Whatever ends it, what was committed stands, and doing it again goes on.
An engine that writes to the log meanwhile builds on these commits: they change nothing of what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import leaves
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import Change, ChangeKind, Root
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import check_renewed


@dataclass(frozen=True, slots=True)
class RewrapReport:
    """What was done to one log: ``segments`` were looked at, ``rewrapped`` of them have another envelope now."""

    segments: int = 0
    rewrapped: int = 0


def spans(root: Root, pages: Pages) -> Iterator[tuple[int, int]]:
    """Where the entries of each page lie, and those of the root itself: offsets [start, end)."""
    for ref in leaves(root.pages, pages, root.log_start):
        yield ref.base_offset, ref.end_offset
    if root.entries:
        yield root.entries[0].info.base_offset, root.end_offset


def authenticated(root: Root | None) -> Change | None:
    """Return a change of nothing: the root that carries it out has a MAC of the active key."""
    if root is None:
        return None
    return Change(
        kind=ChangeKind.REWRAP,
        reason="the root is authenticated by the active key",
        log_start=root.log_start,
        high_watermark=root.high_watermark,
        first_dirty_offset=root.first_dirty_offset,
    )


class Rewrapping:
    """One commit: what a span holds when it is carried out.

    Args:
        layouts: they know the keys.
        store: read from by ``tier.verify``, before a new entry may be committed.
        entries: of a root that hold offsets of the span.
    """

    def __init__(
        self, layouts: LayoutTable, store: TierStore, entries: Callable[[Root | None], list[StoredSegment]]
    ) -> None:
        self._layouts, self._store, self._entries = layouts, store, entries
        self.report = RewrapReport()

    def decide(self, root: Root | None) -> Change | None:
        """A ``Decide``; None if all is wrapped by the active key.

        Raises:
            ConfigError: a key is missing.
            CorruptObjectError: an envelope is damaged.
            PluginError: a new entry does not give what the old one gave.
        """
        old = self._entries(root)
        new = [self._rewrapped(entry) for entry in old]
        changed = sum(renewed is not entry for renewed, entry in zip(new, old, strict=True))
        self.report = RewrapReport(len(old), changed)
        if root is None or not changed:
            return None
        return Change(
            kind=ChangeKind.REWRAP,
            reason=f"keys of {changed} segments wrapped anew",
            added=tuple(new),
            replaced=(old[0].info.base_offset, old[-1].info.end_offset),
            log_start=root.log_start,
            high_watermark=root.high_watermark,
            first_dirty_offset=root.first_dirty_offset,
        )

    def _rewrapped(self, entry: StoredSegment) -> StoredSegment:
        layout, verification = self._layouts.by_label(entry.layout), self._store.verification
        renewed, kind = layout.rewrapped(entry), f"rewrapped {entry.layout}"
        if renewed is not entry and verification.is_due(kind, is_bundled=layout.guard.is_bundled):
            check_renewed(entry, renewed, self._store, layout)
            verification.passed(kind)
        return renewed
