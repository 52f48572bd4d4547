"""Collection: deletion of superseded roots, of objects that only they name, and of orphans.

The rules, and the losses that they prevent:

- The head, which is the latest root, is not deleted. Superseded roots are deleted oldest first, so the remaining roots
  are always a chain that ends in the head. The only exception is the head of a deleted topic, which is deleted last,
  after the grace time.
- A root is kept for the grace time after the next root superseded it. A reader may still use the root. A slow writer
  may create the previous version again, and must then find this root, which shows that the writer's root is stale. The
  root is kept longer if history is kept, unless a key was erased in the meantime.
- Objects and pages are deleted with the last root that names them, directly before that root. After a crash between the
  two deletions, a repetition is harmless. Once a root stops naming an object, no later root names it again.
- A root is stale if the next root does not name it as parent: a writer created it again after its deletion. Only the
  stale root is deleted, not the objects that it names.
- An object that no root names may be an upload in progress. The module ``orphans`` has the rules for such objects.
- If a rebuild created the head, orphans are kept until the next commit of a writer. The rebuild commits the segments of
  a log in several roots. If it was interrupted, the segments that it has not committed yet look like orphans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from stratalog.env import Clock
from stratalog.errors import ConfigError, StoreTimeoutError
from stratalog.spi.objects import Created, ObjectInfo
from stratalog.tier.manifest.head import WARM_HEAD_MS, HeadFinder
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import ChangeKind, Head
from stratalog.tier.manifest.root_diff import removed_objects
from stratalog.tier.store.object_keys import deleted_topic_key, manifest_key
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep.orphans import OrphanCollector, Owner

GRACE_MS: Final = 3_600_000
LEAST_GRACE_MS: Final = 2 * WARM_HEAD_MS
_COMPUTED_UUID_VERSION: Final = 5  # of a UUID that is computed from a name


@dataclass(frozen=True, slots=True)
class CollectReport:
    """Result of a collection: the numbers of deleted items.

    Attributes:
        roots: number of deleted manifest roots.
        objects: number of deleted objects and manifest pages that only these roots named.
        orphans: number of deleted objects that no root named, and of aborted uploads.
        left: number of roots and orphans that are not old enough yet. If it is 0, a later collection has nothing to do
            until the next commit.
    """

    roots: int = 0
    objects: int = 0
    orphans: int = 0
    left: int = field(default=0, compare=False)


class Collector:
    """Deletes superseded manifest roots of one log, and objects that no root names (orphans).

    Not thread-safe: the caller holds a lock. Several processes may collect a log at the same time.

    Args:
        store: contains roots and objects.
        finder: finds the head.
        pages: pages of the log's manifest.
        clock: clock for ages. Its difference from the clocks of writers and of the store must be far smaller than
            ``grace_ms``.
        grace_ms: superseded roots and orphans are kept for at least this time.
        history_ms: superseded roots, and the objects that they name, are kept for at least this time.
        with_orphans: True to search for orphans; the search lists all objects. There is no search if a rebuild created
            the head.
        owner: the leader of the log, which may also delete orphans of its own leader epoch; None if the caller does not
            lead the log.

    Raises:
        ConfigError: the grace time is below ``LEAST_GRACE_MS``.
    """

    def __init__(
        self,
        store: TierStore,
        finder: HeadFinder,
        pages: Pages,
        clock: Clock,
        *,
        grace_ms: int = GRACE_MS,
        history_ms: int = 0,
        with_orphans: bool = True,
        owner: Owner | None = None,
    ) -> None:
        if grace_ms < LEAST_GRACE_MS:
            raise ConfigError(f"the grace time of {grace_ms} ms is below the minimum of {LEAST_GRACE_MS} ms")
        self._store, self._finder, self._pages, self._clock = store, finder, pages, clock
        self._with_orphans = with_orphans
        self._grace_ms, self._history_ms = grace_ms, max(grace_ms, history_ms)
        self._orphans = OrphanCollector(store, finder, pages, clock, grace_ms=grace_ms, owner=owner)

    def collect(self) -> CollectReport:
        """Delete superseded roots and unneeded objects that are old enough, and return the numbers of deleted items.

        If the topic was deleted, and all roots of the log are old enough, delete all its roots and objects.

        Raises:
            StoreError: the store failed or refused; a later call deletes the rest.
            CorruptManifestError: a root or page is damaged.
            The other errors of ``HeadFinder.find``.
        """
        head = self._finder.find(cold=True)
        if head is None:
            return CollectReport()
        listing = [item for item in self._finder.roots_above(0) if item[0] <= head.root.version]
        if not listing or listing[-1][0] != head.root.version:
            return CollectReport()  # another collector has deleted this head meanwhile
        roots, objects = self._collect_roots(listing, head)
        if (
            head.root.change == ChangeKind.DELETE
            and roots == len(listing) - 1
            and self._is_past(listing[-1][1].modified_ms)
        ):
            return self._collect_log(roots, objects, head)
        kept_versions = [version for version, _ in listing[roots:-1]]
        with_orphans = self._with_orphans and head.root.change != ChangeKind.REBUILD
        orphans, young = self._orphans.collect(kept_versions, head) if with_orphans else (0, 0)
        awaits_its_end = head.root.change == ChangeKind.DELETE
        return CollectReport(roots, objects, orphans, left=len(kept_versions) + young + awaits_its_end)

    def _collect_roots(self, listing: Sequence[tuple[int, ObjectInfo]], head: Head) -> tuple[int, int]:
        """Delete superseded roots, oldest first; return the numbers of deleted roots and of deleted objects."""
        roots = objects = 0
        current = self._finder.read_unchecked(listing[0][0])
        for (version, _), (following, info) in pairwise(listing):
            age_ms = self._grace_ms if version < head.root.history_start else self._history_ms
            if not self._is_past(info.modified_ms, age_ms):
                break
            successor = self._finder.read_unchecked(following)
            if current is None or successor is None or not self._is_past(successor.root.created_ms, age_ms):
                break
            if successor.root.parent_sha256 == current.sha256:
                dead_keys = removed_objects(current.root, successor.root, (head.root,), self._pages)
                self._store.delete_or_raise(sorted(dead_keys))
                objects += len(dead_keys)
            self._store.delete_or_raise([manifest_key(self._finder.prefix, version)])
            roots += 1
            current = successor
        return roots, objects

    def _collect_log(self, roots: int, objects: int, head: Head) -> CollectReport:
        """Delete all objects of a deleted topic's log, of every leader epoch, and then its latest root.

        For a topic with a computed id, a note is stored first: without the note, a new topic with this name would get
        the same id.
        """
        orphans = self._orphans.collect_everything()
        if head.root.topic_id.as_uuid.version == _COMPUTED_UUID_VERSION:
            key = deleted_topic_key(head.root.log.topic, head.root.topic_id)
            if self._store.create(key, b"deleted") is Created.UNKNOWN:
                raise StoreTimeoutError("the reply is lost", key)
        self._store.delete_or_raise([manifest_key(self._finder.prefix, head.root.version)])
        return CollectReport(roots + 1, objects, orphans)

    def _is_past(self, time_ms: int, age_ms: int | None = None) -> bool:
        return self._clock.now_ms() - time_ms >= (self._grace_ms if age_ms is None else age_ms)
