"""Wrapping the keys of encrypted segments anew, after a key was added and made active: entries change, no object does.

Each commit takes the entries of one manifest page. Whatever ends it, what was committed stands, and doing it again goes on.
An engine that writes to the log meanwhile builds on these commits: they change nothing of what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.layouts import LayoutTable
from stratalog.tier.pages import Pages
from stratalog.tier.root import Change, ChangeKind, Root
from stratalog.tier.tree import leaves


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


class Rewrapping:
    """One commit: what a span holds when it is carried out.

    Args:
        layouts: they know the keys.
        entries: of a root that hold offsets of the span.
    """

    def __init__(self, layouts: LayoutTable, entries: Callable[[Root | None], list[StoredSegment]]) -> None:
        self._layouts, self._entries = layouts, entries
        self.report = RewrapReport()

    def decide(self, root: Root | None) -> Change | None:
        """A ``Decide``; None if all is wrapped by the active key.

        Raises:
            ConfigError: a key is missing.
            CorruptObjectError: an envelope is damaged.
        """
        old = self._entries(root)
        new = [self._layouts.by_label(entry.layout).rewrapped(entry) for entry in old]
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
