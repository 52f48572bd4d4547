"""The entries of a manifest root and its pages as one list: iteration over the list, and the next root after a change.

An entry describes one segment. Only pages that an iteration or a change needs are read or written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stratalog.errors import StorageError
from stratalog.log.read.tier_view import merged_epochs
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.manifest_checks import contradiction, regression
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import (
    EMPTYING,
    INLINE_PAGES,
    PAGE_ITEMS,
    RECENT_COMMITS,
    Change,
    ChangeKind,
    Head,
    PageRef,
    Root,
    add_mark,
)


def walk(root: Root, pages: Pages, offset: int = 0, *, since_ms: int | None = None) -> Iterator[StoredSegment]:
    """Yield the entries of a root whose exclusive end offset is above ``offset`` and above the log start, ascending.

    A page is read when its first entry is consumed. If ``since_ms`` is not None, the pages in which all segments are
    older than this timestamp are skipped. Older entries of other pages, and of the root itself, are not skipped.
    """
    start = max(offset, root.log_start)
    for ref in leaves(root.pages, pages, start, since_ms):
        yield from (entry for entry in pages.entries(ref) if entry.info.end_offset > start)
    yield from (entry for entry in root.entries if entry.info.end_offset > start)


def walk_back(root: Root, pages: Pages) -> Iterator[StoredSegment]:
    """Yield a root's entries with an end offset above the log start, newest first."""
    yield from reversed(root.entries)
    yield from _walk_refs_back(root.pages, pages, root.log_start)


def leaves(refs: Sequence[PageRef], pages: Pages, start: int = 0, since_ms: int | None = None) -> Iterator[PageRef]:
    """Yield the references to pages of entries (level 0) whose end offset (exclusive) is above ``start``, ascending.

    The pages of references (higher levels) are read. If ``since_ms`` is not None, pages in which all segments are older
    are skipped.
    """
    for ref in refs[bisect_right(refs, start, key=lambda page: page.end_offset) :]:
        if since_ms is not None and ref.newest_ms < since_ms:
            continue
        if ref.level:
            yield from leaves(pages.refs(ref), pages, start, since_ms)
        else:
            yield ref


def _walk_refs_back(refs: Sequence[PageRef], pages: Pages, start: int) -> Iterator[StoredSegment]:
    for ref in reversed(refs):
        if ref.end_offset <= start:
            return
        if ref.level:
            yield from _walk_refs_back(pages.refs(ref), pages, start)
        else:
            yield from (entry for entry in reversed(pages.entries(ref)) if entry.info.end_offset > start)


def next_root(
    head: Head | None,
    change: Change,
    *,
    pages: Pages,
    log: TopicPartition,
    topic_id: TopicId,
    commit_id: str,
    leader_epoch: int,
    created_ms: int,
) -> Root:
    """Return the root that follows ``head``, and store its new pages. If ``head`` is None, return the log's first root.

    Raises:
        StorageError: the change would break an invariant of roots, which is a bug of the caller: for example, the new
            entries leave a gap, or ``replaced`` or ``kept_end`` is inside an entry.
    """
    before = head.root if head else None
    version = before.version + 1 if before else 1
    refs, entries, epochs = _apply_change(before, change, pages, leader_epoch)
    start_offset, segments, size_bytes = _totals(before, change, refs, entries, pages)
    root = Root(
        log=log,
        topic_id=topic_id,
        version=version,
        commit_id=commit_id,
        parent_sha256=head.sha256 if head else "",
        leader_epoch=leader_epoch,
        change=change.kind,
        reason=change.reason,
        log_start=change.log_start,
        high_watermark=change.high_watermark,
        first_dirty_offset=change.first_dirty_offset,
        start_offset=start_offset,
        segments=segments,
        size_bytes=size_bytes,
        leader_epochs=_epochs_from(epochs, start_offset),
        pages=refs,
        entries=entries,
        recent_commits=((*before.recent_commits, commit_id) if before else (commit_id,))[-RECENT_COMMITS:],
        created_ms=created_ms,
        topic=change.topic or (before.topic if before else None),
        marks=add_mark(before.marks if before else (), change.mark),
        history_start=version if change.kind is ChangeKind.ERASE else before.history_start if before else 0,
    )
    violation = contradiction(root) or (regression(before, root) if before else "")
    if violation:
        raise StorageError(f"the manifest root of {log} is not valid: {violation}")
    return root


def _apply_change(
    before: Root | None, change: Change, pages: Pages, leader_epoch: int
) -> tuple[tuple[PageRef, ...], tuple[StoredSegment, ...], tuple[EpochEntry, ...]]:
    """Return the page references, entries and leader epochs after a change of ``before``; store the new pages."""
    if before is None or change.kind in EMPTYING:
        refs, entries, epochs = tuple[PageRef, ...](), tuple[StoredSegment, ...](), tuple[EpochEntry, ...]()
    else:
        refs, entries, epochs = before.pages, before.entries, before.leader_epochs
    if change.kept_end is not None:
        refs, entries = _cut(refs, entries, change.kept_end, pages)
        epochs = tuple(entry for entry in epochs if entry.start_offset < change.kept_end)
    if change.replaced is None:
        entries = (*entries, *change.added)
        epochs = merged_epochs((epochs, *(entry.info.leader_epochs for entry in change.added)))
    else:
        refs, entries = _replace(refs, entries, change.replaced, change.added, pages, leader_epoch)
    refs = tuple(ref for ref in refs if ref.end_offset > change.log_start)
    if not refs:
        entries = tuple(entry for entry in entries if entry.info.end_offset > change.log_start)
    while len(entries) > PAGE_ITEMS:
        refs = (*refs, pages.write(entries[:PAGE_ITEMS], leader_epoch))
        entries = entries[PAGE_ITEMS:]
    return _gather_refs(refs, pages, leader_epoch), entries, epochs


def _totals(
    before: Root | None, change: Change, refs: Sequence[PageRef], entries: Sequence[StoredSegment], pages: Pages
) -> tuple[int, int, int]:
    """Return the start offset of the entries above the log start, their number, and their ``.log`` bytes."""
    if (
        before is not None
        and before.segments
        and change.kind not in EMPTYING
        and (change.log_start, change.replaced, change.kept_end) == (before.log_start, None, None)
    ):
        added_bytes = sum(entry.info.size_bytes for entry in change.added)
        return before.start_offset, before.segments + len(change.added), before.size_bytes + added_bytes
    start, segments, size_bytes = _sum_refs(refs, change.log_start, pages)
    if start is None:
        start = entries[0].info.base_offset if entries else change.log_start
    return start, segments + len(entries), size_bytes + sum(entry.info.size_bytes for entry in entries)


def _sum_refs(refs: Sequence[PageRef], log_start: int, pages: Pages) -> tuple[int | None, int, int]:
    if not refs:
        return None, 0, 0
    first_ref, later_refs = refs[0], refs[1:]
    segments, size_bytes = sum(ref.segments for ref in later_refs), sum(ref.size_bytes for ref in later_refs)
    if log_start <= first_ref.base_offset:
        return first_ref.base_offset, segments + first_ref.segments, size_bytes + first_ref.size_bytes
    if first_ref.level:
        child_refs = [ref for ref in pages.refs(first_ref) if ref.end_offset > log_start]
        start, child_segments, child_bytes = _sum_refs(child_refs, log_start, pages)
        return start, segments + child_segments, size_bytes + child_bytes
    entries = [entry for entry in pages.entries(first_ref) if entry.info.end_offset > log_start]
    return (
        entries[0].info.base_offset,
        segments + len(entries),
        size_bytes + sum(entry.info.size_bytes for entry in entries),
    )


def _epochs_from(epochs: Sequence[EpochEntry], start: int) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of the offsets from ``start`` on; the first one begins at ``start``."""
    index = bisect_right(epochs, start, key=lambda entry: entry.start_offset) - 1
    if index < 0:
        return tuple(epochs)
    return (EpochEntry(epochs[index].epoch, start), *epochs[index + 1 :])


def _gather_refs(refs: tuple[PageRef, ...], pages: Pages, leader_epoch: int) -> tuple[PageRef, ...]:
    """Return the references; if a level has too many, its oldest references move to a new page of the next level."""
    level = 0
    while any(ref.level >= level for ref in refs):
        first = next((index for index, ref in enumerate(refs) if ref.level == level), len(refs))
        count = sum(ref.level == level for ref in refs)
        if count > INLINE_PAGES:
            page = pages.write(refs[first : first + PAGE_ITEMS], leader_epoch)
            refs = (*refs[:first], page, *refs[first + PAGE_ITEMS :])
        else:
            level += 1
    return refs


# --- cutting off -------------------------------------------------------------------------------------------------


def _cut(
    refs: tuple[PageRef, ...], entries: tuple[StoredSegment, ...], end: int, pages: Pages
) -> tuple[tuple[PageRef, ...], tuple[StoredSegment, ...]]:
    """Return the references and entries below ``end``; if all these entries are in pages, unpack the last page."""
    if entries and entries[0].info.base_offset < end:
        kept_entries = tuple(entry for entry in entries if entry.info.end_offset <= end)
        kept_refs = refs
    else:
        first = bisect_right(refs, end - 1, key=lambda ref: ref.end_offset)
        leaf_refs = list(leaves(refs[first : first + 1], pages))
        last = bisect_right(leaf_refs, end - 1, key=lambda ref: ref.end_offset)
        kept_entries = tuple(
            entry for ref in leaf_refs[last : last + 1] for entry in pages.entries(ref) if entry.info.end_offset <= end
        )
        kept_refs = (*refs[:first], *leaf_refs[:last])
    start = refs[0].base_offset if refs else entries[0].info.base_offset if entries else end
    if (kept_entries[-1].info.end_offset if kept_entries else start) != end:
        raise StorageError(f"no segment in the tier ends at {end}, so the log cannot be truncated there")
    return kept_refs, kept_entries


# --- replacing ---------------------------------------------------------------------------------------------------


def _replace(
    refs: tuple[PageRef, ...],
    entries: tuple[StoredSegment, ...],
    replaced: tuple[int, int],
    new_entries: tuple[StoredSegment, ...],
    pages: Pages,
    leader_epoch: int,
) -> tuple[tuple[PageRef, ...], tuple[StoredSegment, ...]]:
    """Return references and entries after ``new_entries`` have replaced the entries with the offsets ``replaced``."""
    start, end = replaced
    bounds = (
        [*(entry.info.base_offset for entry in new_entries), new_entries[-1].info.end_offset] if new_entries else []
    )
    is_gapless = all(
        entry.info.end_offset == next_entry.info.base_offset for entry, next_entry in pairwise(new_entries)
    )
    if not is_gapless or (bounds[:1], bounds[-1:]) != ([start], [end]):
        raise StorageError(f"the replacement of [{start}, {end}) must cover exactly these offsets, without a gap")
    inline_start = entries[0].info.base_offset if entries else end
    if start >= inline_start:
        return refs, _splice_entries(entries, start, end, new_entries)
    first = bisect_right(refs, start, key=lambda ref: ref.end_offset)
    last = next((index for index, ref in enumerate(refs) if ref.base_offset >= end), len(refs))
    touched_refs, later_refs = refs[first:last], refs[last:]
    leaf_refs = list(leaves(touched_refs, pages))
    replaced_refs = [ref for ref in leaf_refs if ref.end_offset > start and ref.base_offset < end]
    page_entries = tuple(entry for ref in replaced_refs for entry in pages.entries(ref))
    if end > inline_start:  # the range ends in the root's own entries: the new entries are stored in the root
        spliced = _splice_entries((*page_entries, *entries), start, end, new_entries)
        paged_entries = tuple(entry for entry in spliced if entry.info.end_offset <= start)
        inline_entries = spliced[len(paged_entries) :]
    else:
        paged_entries, inline_entries = _splice_entries(page_entries, start, end, new_entries), entries
    new_refs = [
        pages.write(paged_entries[index : index + PAGE_ITEMS], leader_epoch)
        for index in range(0, len(paged_entries), PAGE_ITEMS)
    ]
    index = leaf_refs.index(replaced_refs[0])
    leaf_refs[index : index + len(replaced_refs)] = new_refs
    level = touched_refs[0].level
    return (*refs[:first], *_write_levels(leaf_refs, level, pages, leader_epoch), *later_refs), inline_entries


def _splice_entries(
    entries: tuple[StoredSegment, ...], start: int, end: int, new_entries: tuple[StoredSegment, ...]
) -> tuple[StoredSegment, ...]:
    earlier = tuple(entry for entry in entries if entry.info.end_offset <= start)
    later = tuple(entry for entry in entries if entry.info.base_offset >= end)
    removed = entries[len(earlier) : len(entries) - len(later)]
    if not removed or (removed[0].info.base_offset, removed[-1].info.end_offset) != (start, end):
        raise StorageError(f"[{start}, {end}) are not the borders of segments in the tier")
    return (*earlier, *new_entries, *later)


def _write_levels(refs: Sequence[PageRef], level: int, pages: Pages, leader_epoch: int) -> Sequence[PageRef]:
    """Store pages of references above ``refs``, which have level 0; return the references of ``level``."""
    for _ in range(level if refs else 0):
        refs = [
            pages.write(refs[index : index + PAGE_ITEMS], leader_epoch) for index in range(0, len(refs), PAGE_ITEMS)
        ]
    return refs


def object_end(entry: StoredSegment, key: str) -> int:
    """Return the minimal size of the object ``key``: the end of the last slice of ``entry`` in it; 0 without one."""
    end = 0
    for place in entry.slices.values():  # a loop, because each read calls this function, and a generator costs more
        if place.key == key:
            end = max(end, place.position + place.size_bytes)
    return end
