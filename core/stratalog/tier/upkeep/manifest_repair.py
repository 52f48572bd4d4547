"""Repair of damaged roots and pages of a manifest, from other roots and pages and from the footers of objects.

- A damaged page is written again only if its items are found elsewhere, and give exactly the bytes whose hash the
  reference to the page contains.
- If a page cannot be written again, but footers describe all segments on pages, a new root is created that names all
  segments. The root's own entries are kept.
- A damaged root that is older than a good one is deleted, with all roots before it, so the rest is a chain. This loses
  only history.
- A damaged head, which is the latest root, is replaced by a root of the next version. The new root is made from the
  newest good root, which becomes its parent, and from the footers of later segments. Without a good root, it is made
  from footers alone. Changes that only the damaged root had are lost: a change of the log start or of settings, or a
  replacement of segments. Therefore a compaction or an erasure must run again. The damaged root is deleted last.

No engine may write to the log during a repair. Damaged roots are first copied to other keys. After an interruption the
repair can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from stratalog.errors import (
    CorruptionError,
    CorruptManifestError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
    StoreTimeoutError,
)
from stratalog.model.names import random_uuid
from stratalog.model.offsets import MAX_EPOCH
from stratalog.segment.finding import Finding, FindingKind, Repair
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.objects import BytesSource, Created
from stratalog.tier.manifest.entry_tree import next_root
from stratalog.tier.manifest.head import read_chain
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.page_codec import read_page
from stratalog.tier.manifest.pages import Item, build_page
from stratalog.tier.manifest.root import RECENT_COMMITS, Change, ChangeKind, Head, PageRef, Root, stand_in_commit_id
from stratalog.tier.manifest.root_codec import new_root
from stratalog.tier.store.object_keys import manifest_key, pages_prefix, parse_page_key, quarantined_key
from stratalog.tier.tier_log_reader import TierLogReader
from stratalog.tier.upkeep.manifest_rebuild import REASON, Rebuilder

_EPOCH: Final = re.compile(rb'"leader_epoch":(\d{1,10})[,}]')
_CREATES: Final = 4  # attempts while replies are lost
_TRIES: Final = 256  # combinations of items to try for a page; several exist if uploads were repeated


class ManifestRepair:
    """Repairs the manifest of one log. Not thread-safe. No engine may write to the log during a repair."""

    def __init__(self, log: TierLogReader) -> None:
        self._store, self._layouts, self._env = log.objects, log.fetcher.layouts, log.components.env
        self._finder, self._pages, self._log = log.new_finder(), log.new_pages(), log.name
        self._heads: dict[int, Head] = {}  # the good roots, by version
        self._replaced: set[int] = set()  # versions of damaged roots that a good root leaves out

    def run(self) -> Iterator[Repair]:
        """Repair damaged roots and pages; yield a ``Repair`` for each finding; ``done`` is "" if it was not repaired.

        The repair proceeds only as the results are consumed.
        """
        findings = self._read_roots()
        newest = max(self._heads, default=0)
        for version in sorted(self._replaced):
            self._quarantine(version)
            self._delete(version)
            yield Repair(findings.pop(version), "an earlier repair created another root in its place")
        yield from self._drop_history({version: finding for version, finding in findings.items() if version <= newest})
        yield from self._make_head({version: finding for version, finding in findings.items() if version > newest})
        if not self._heads:
            return
        head = self._heads[max(self._heads)]
        page_repairs = list(self._walk(head.root.pages))
        new_head = "" if all(repair.done for repair in page_repairs) else self._replace_head(head)
        yield from (replace(repair, done=repair.done or new_head) for repair in page_repairs)

    # --- roots -------------------------------------------------------------------------------------------------------

    def _read_roots(self) -> dict[int, Finding]:
        """Read every root; return by version the findings about roots that are damaged or break the chain."""
        findings = dict[int, Finding]()
        for chained_root in read_chain(self._finder, [version for version, _ in self._finder.roots_above(0)]):
            if chained_root.head is not None:
                self._heads[chained_root.version] = chained_root.head
            if chained_root.continues is not None:
                self._replaced |= {version for version in findings if version > chained_root.continues}
            if chained_root.findings:
                findings[chained_root.version] = chained_root.findings[0]
        return findings

    def _drop_history(self, findings: Mapping[int, Finding]) -> Iterator[Repair]:
        """Delete roots until the rest is a chain of good roots that ends in the newest one."""
        if not findings:
            return
        # a good root stays; those before it are deleted
        first = max(version + (version not in self._heads) for version in findings)
        for version, finding in findings.items():
            if version not in self._heads:
                self._quarantine(version)
            yield Repair(finding, f"history now begins at version {first}")
        for version in sorted({*findings, *self._heads}):  # oldest first, as in the collector
            if version < first:
                self._delete(version)
                self._heads.pop(version, None)

    def _make_head(self, findings: Mapping[int, Finding]) -> Iterator[Repair]:
        if not findings:
            return
        before, version = self._heads.get(max(self._heads, default=0)), max(findings) + 1
        try:
            root = self._next(before, version, max(self._read_epoch(damaged_version) for damaged_version in findings))
        except StoreError:
            raise
        except StorageError as failure:
            for finding in findings.values():
                yield Repair(replace(finding, text=f"{finding.text}; it cannot be rebuilt: {failure}"), "")
            return
        for damaged_version in findings:
            self._quarantine(damaged_version)
        self._heads[version] = self._create(root)
        source = "from footers alone"
        if before is not None:  # an erasure after ``before`` is undone: the manifest has the old segments again
            good_version = before.root.version
            source = f"from version {good_version} and footers; erase keys again that were erased after version {good_version}"
        for damaged_version, finding in sorted(findings.items()):
            self._delete(damaged_version)
            yield Repair(finding, f"version {version} replaces it, made {source}")

    def _create(self, root: Root) -> Head:
        """Create a root, and return the stored root of its version, which an earlier repair may have created."""
        key = manifest_key(self._finder.prefix, root.version)
        for _ in range(_CREATES):
            self._store.create(key, new_root(root))
            head = self._finder.read(root.version)
            if head is not None:
                return head
        raise StoreTimeoutError(f"{self._store.guard} does not report if a manifest root was created", key)

    def _read_epoch(self, version: int) -> int:
        """Return the leader epoch in a damaged root, 0 if it is unreadable; the new root must not have a lower one."""
        match = _EPOCH.search(self._read(version))
        return min(int(match[1]), MAX_EPOCH) if match else 0

    def _next(self, before: Head | None, version: int, epoch: int) -> Root:
        """Return the root that replaces a damaged head: the newest good root with later segments; store its pages."""
        root = before.root if before is not None else None
        end = root.end_offset if root is not None else 0
        rebuilder = self._rebuilder(end)
        chain = rebuilder.chain()
        if root is not None and chain and chain[0].info.base_offset != end:
            raise StorageError(f"the segments after offset {end} begin at {chain[0].info.base_offset}")
        if root is None and not chain:
            raise StorageError("no object describes a segment")
        log_start = root.log_start if root is not None else chain[0].info.base_offset
        high = max(chain[-1].info.end_offset if chain else 0, root.high_watermark if root is not None else 0)
        epoch = max(epoch, rebuilder.seen_epoch, root.leader_epoch if root is not None else 0)
        replacement = self._root(before, chain, log_start, high, epoch)
        stand_ins = [
            stand_in_commit_id(self._finder.prefix, lost_version)
            for lost_version in range(max(replacement.version, version - RECENT_COMMITS), version)
        ]
        earlier_commits = root.recent_commits if root is not None else ()
        replacement = replace(
            replacement,
            version=version,
            parent_sha256=replacement.parent_sha256 or sha256_of(self._read(version - 1)),
            recent_commits=(*earlier_commits, *stand_ins, replacement.commit_id)[-RECENT_COMMITS:],
        )
        return self._finder.authenticity.add_mac(replacement, root, root.entries if root is not None else (), chain)

    def _root(self, before: Head | None, chain: Sequence[StoredSegment], log_start: int, high: int, epoch: int) -> Root:
        """Return the root that adds the segments of ``chain`` to the root of ``before``; its new pages are stored."""
        change = Change(
            kind=ChangeKind.REBUILD,
            reason=REASON,
            added=tuple(chain),
            log_start=log_start,
            high_watermark=high,
            first_dirty_offset=before.root.first_dirty_offset if before is not None else 0,
        )
        return next_root(
            before,
            change,
            pages=self._pages,
            log=self._finder.log,
            topic_id=self._finder.topic_id,
            commit_id=random_uuid(self._env.chance).hex,
            leader_epoch=epoch,
            created_ms=self._env.clock.now_ms(),
        )

    def _quarantine(self, version: int) -> None:
        key = manifest_key(self._finder.prefix, version)
        self._store.put(quarantined_key(self._finder.prefix, key), BytesSource(self._read(version)))

    def _read(self, version: int) -> bytes:
        """Return the bytes of a root, cut off at the largest allowed size of a root."""
        return self._store.read(manifest_key(self._finder.prefix, version), 0, self._finder.limit_bytes)

    def _delete(self, version: int) -> None:
        self._store.delete_or_raise([manifest_key(self._finder.prefix, version)])

    # --- pages -------------------------------------------------------------------------------------------------------

    def _walk(self, refs: Sequence[PageRef]) -> Iterator[Repair]:
        for ref in refs:
            try:
                items = self._pages.read(ref)
            except (CorruptManifestError, ObjectNotFoundError) as error:
                key = ref.key(self._finder.prefix)
                position = getattr(error, "position", 0)
                text = f"{error.reason}, of offsets [{ref.base_offset}, {ref.end_offset})"
                outcome = "rebuilt with the same bytes" if self._rewrite_page(ref) else ""
                yield Repair(Finding(FindingKind.PAGE, key, position, text, log=self._log), outcome)
                if not outcome:
                    continue
                items = self._pages.read(ref)
            yield from self._walk([item for item in items if isinstance(item, PageRef)])

    def _replace_head(self, head: Head) -> str:
        """Create a new head with new pages from footers; return text about it, "" if the footers lack a segment.

        The root's own entries are kept: footers also describe later uploads that were never committed.
        """
        root = head.root
        inline_start = root.entries[0].info.base_offset if root.entries else root.end_offset
        older = [entry for entry in self._rebuilder(0, inline_start).chain() if entry.info.end_offset > root.log_start]
        chain = [*older, *root.entries]
        if (
            not chain
            or chain[0].info.base_offset > root.log_start
            or (older and older[-1].info.end_offset != inline_start)
        ):
            return ""
        replacement = self._root(None, chain, root.log_start, root.high_watermark, root.leader_epoch)
        commits = (*root.recent_commits, replacement.commit_id)[-RECENT_COMMITS:]
        replacement = replace(
            replacement,
            version=root.version + 1,
            parent_sha256=head.sha256,
            recent_commits=commits,
            first_dirty_offset=root.first_dirty_offset,
            topic=root.topic,
            marks=root.marks,
            history_start=root.history_start,
        )
        replacement = self._finder.authenticity.add_mac(replacement, root, root.entries, chain)
        created = self._store.create(manifest_key(self._finder.prefix, replacement.version), new_root(replacement))
        return (
            f"version {replacement.version} names its segments, found by their footers"
            if created is Created.CREATED
            else ""
        )

    def _rewrite_page(self, ref: PageRef) -> bool:
        """Write a damaged page again if its items are found elsewhere; return True if the page was written."""
        log, topic_id = self._finder.log, self._finder.topic_id
        for items in islice(_cover_range(self._candidates(ref), ref.base_offset, ref.end_offset), _TRIES):
            new_ref, data = build_page(log, topic_id, items, ref.leader_epoch)
            if new_ref == ref:
                self._store.put(ref.key(self._finder.prefix), BytesSource(data))
                return True
        return False

    def _candidates(self, ref: PageRef) -> list[Item]:
        """Return possible items of a damaged page: entries of segments, or references to pages of the level below.

        The entries are found in the roots that can be read, and in the footers of segment objects.
        """
        if ref.level:
            return [page for page in self._read_pages(ref) if page.level == ref.level - 1]
        older = [entry for head in self._heads.values() for entry in head.root.entries]
        entries = [*older, *self._rebuilder(ref.base_offset, ref.end_offset).entries()]
        return [entry for entry in entries if ref.base_offset <= entry.info.base_offset < ref.end_offset]

    def _read_pages(self, ref: PageRef) -> Iterator[PageRef]:
        prefix = self._finder.prefix
        for info in self._store.list_all(pages_prefix(prefix)):
            parsed_key = parse_page_key(prefix, info.key)
            if parsed_key is None or not ref.base_offset <= parsed_key.base_offset < ref.end_offset:
                continue
            if info.size_bytes > self._finder.limit_bytes:
                continue
            try:
                log, topic_id, items = read_page(self._store.read(info.key), info.key)
                page, _ = build_page(log, topic_id, items, parsed_key.leader_epoch)
            except (CorruptionError, ObjectNotFoundError):
                continue  # this page is damaged, too: the walk repairs it later
            if page.key(prefix) == info.key:
                yield page

    def _rebuilder(self, start: int, end: int | None = None) -> Rebuilder:
        log, topic_id = self._finder.log, self._finder.topic_id
        authentic_only = any(head.root.mac is not None for head in self._heads.values())
        layouts = self._layouts.all()
        return Rebuilder(self._store, layouts, log, topic_id, start=start, end=end, authentic_only=authentic_only)


def _cover_range(items: Sequence[Item], start: int, end: int) -> Iterator[list[Item]]:
    """Yield the sequences of items that cover [start, end) exactly, without gap or overlap."""
    if start == end:
        yield []
        return
    tried_items = list[Item]()
    for item in items:
        place = item if isinstance(item, PageRef) else item.info
        if place.base_offset == start and place.end_offset <= end and item not in tried_items:
            tried_items.append(item)
            for tail in _cover_range(items, place.end_offset, end):
                yield [item, *tail]
