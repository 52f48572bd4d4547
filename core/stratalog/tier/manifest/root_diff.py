"""Search for the objects that manifest roots name, or that only a superseded root names."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import leaves, walk
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import PageRef, Root, object_keys


def removed_objects(before: Root, after: Root, heads: Iterable[Root], pages: Pages) -> set[str]:
    """Return the keys of objects and pages that ``before`` names, and neither ``after`` nor any of ``heads`` names.

    ``after`` is the root that follows ``before``.
    """
    # Adjacent entries may name the same object: the entries next to removed entries are checked, too.
    later = (after, *heads)
    dead_pages = _page_keys(before, pages) - set[str]().union(*(_page_keys(root, pages) for root in later))
    changed = _changed_span(before, after, pages)
    if changed is None:
        return dead_pages
    start, end = changed
    keys = object_keys(entry for entry in walk(before, pages, start) if entry.info.base_offset < end)
    for root in later:
        keys -= object_keys(_around(root, pages, start, end))
    return keys | dead_pages


def named_keys(roots: Iterable[Root], pages: Pages) -> set[str]:
    """Return the keys of all objects and pages that at least one of the roots names, even below its log start.

    A page that several roots share is read once.
    """
    keys = set[str]()
    for root in roots:
        keys |= object_keys(root.entries)
        for ref in _all_refs(root.pages, pages):
            key = ref.key(root.prefix)
            if key not in keys:
                keys.add(key)
                if not ref.level:
                    keys |= object_keys(pages.entries(ref))
    return keys


def _page_keys(root: Root, pages: Pages) -> set[str]:
    """Return the keys of all pages of a root, of every level."""
    return {ref.key(root.prefix) for ref in _all_refs(root.pages, pages)}


def _all_refs(refs: Iterable[PageRef], pages: Pages) -> Iterable[PageRef]:
    for ref in refs:
        yield ref
        if ref.level:
            yield from _all_refs(pages.refs(ref), pages)


def _changed_span(before: Root, after: Root, pages: Pages) -> tuple[int, int] | None:
    """Return the offsets [start, end) in which ``before`` may name objects that ``after`` does not; None if none."""
    hashes_after = {ref.sha256 for ref in leaves(after.pages, pages)}
    entries_after = {entry.info.base_offset: entry for entry in after.entries}
    bounds = [
        (ref.base_offset, ref.end_offset)
        for ref in leaves(before.pages, pages, before.log_start)
        if ref.sha256 not in hashes_after
    ]
    bounds += [
        (entry.info.base_offset, entry.info.end_offset)
        for entry in before.entries
        if entries_after.get(entry.info.base_offset) != entry
    ]
    if after.start_offset > before.start_offset:
        bounds.append((before.start_offset, after.start_offset))
    return (min(start for start, _ in bounds), max(end for _, end in bounds)) if bounds else None


def _around(root: Root, pages: Pages, start: int, end: int) -> Iterable[StoredSegment]:
    """Return the entries of a root from the entry before offset ``start`` to the entry after offset ``end``."""
    for entry in walk(root, pages, start - 1):
        yield entry
        if entry.info.base_offset >= end:
            return
