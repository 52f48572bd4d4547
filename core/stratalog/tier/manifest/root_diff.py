"""Search for the objects that a manifest root names and the next root no longer names."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import leaves, walk
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import PageRef, Root, object_keys


def removed_objects(before: Root, after: Root, heads: Iterable[Root], pages: Pages) -> set[str]:
    """Return the keys of objects and pages that ``before`` names, and neither ``after`` nor any of ``heads`` names.

    ``after`` is the root that follows ``before``. The call raises the errors of ``Pages.read``.
    """
    # Adjacent entries may name the same object: the entries next to removed entries are checked, too.
    later = (after, *heads)
    dead_pages = _page_keys(before, pages) - set[str]().union(*(_page_keys(root, pages) for root in later))
    changed = _changed(before, after, pages)
    if changed is None:
        return dead_pages
    start, end = changed
    named = object_keys(entry for entry in walk(before, pages, start) if entry.info.base_offset < end)
    for root in later:
        named -= object_keys(_around(root, pages, start, end))
    return named | dead_pages


def named_keys(root: Root, known_pages: set[str], pages: Pages) -> set[str]:
    """Return the keys of all objects and pages that a root names, also below its log start.

    The objects that a page in ``known_pages`` names are left out. The keys of the root's pages are added to
    ``known_pages``. The call raises the errors of ``Pages.read``.
    """
    own_pages = _page_keys(root, pages)
    named = own_pages | object_keys(root.entries)
    for ref in leaves(root.pages, pages):
        if ref.key(root.prefix) not in known_pages:
            named |= object_keys(pages.entries(ref))
    known_pages |= own_pages
    return named


def _page_keys(root: Root, pages: Pages) -> set[str]:
    """Return the keys of all pages of a root, of every level."""
    return {ref.key(root.prefix) for ref in _all_refs(root.pages, pages)}


def _all_refs(refs: Iterable[PageRef], pages: Pages) -> Iterable[PageRef]:
    for ref in refs:
        yield ref
        if ref.level:
            yield from _all_refs(pages.refs(ref), pages)


def _changed(before: Root, after: Root, pages: Pages) -> tuple[int, int] | None:
    """Return the offsets [start, end) in which ``before`` may name objects that ``after`` does not; None if none."""
    held = {ref.sha256 for ref in leaves(after.pages, pages)}
    kept = {entry.info.base_offset: entry for entry in after.entries}
    bounds = [
        (ref.base_offset, ref.end_offset)
        for ref in leaves(before.pages, pages, before.log_start)
        if ref.sha256 not in held
    ]
    bounds += [
        (entry.info.base_offset, entry.info.end_offset)
        for entry in before.entries
        if kept.get(entry.info.base_offset) != entry
    ]
    if after.start_offset > before.start_offset:
        bounds.append((before.start_offset, after.start_offset))
    return (min(start for start, _ in bounds), max(end for _, end in bounds)) if bounds else None


def _around(root: Root, pages: Pages, start: int, end: int) -> Iterable[StoredSegment]:
    """Return the entries of a root from the one before ``start`` to the one after ``end``."""
    for entry in walk(root, pages, start - 1):
        yield entry
        if entry.info.base_offset >= end:
            return
