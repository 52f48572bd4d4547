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
- If a rebuild created the head, orphans are kept until the next commit of a writer. The rebuild commits the segments of
  a log in several roots. If it was interrupted, the segments that it has not committed yet look like orphans.

Orphans are objects and pages that no root names, and uploads that were never completed. An orphan may be an upload in
progress. It is deleted only if it is older than the grace time, and no writer can commit it any more. That is certain
in two cases:

- An orphan has a lower leader epoch than the head. Then its writer is fenced.
- An orphan has the leader epoch of the head, this process leads the log in that epoch, and this process is not
  uploading or committing the object. Then another writer in that epoch is an earlier process, or a process that should
  not run. Therefore this process first commits a root. The root fences such writers, and takes the version of any root
  that they are about to create. While the orphans are deleted, this process commits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

from stratalog.env import Clock
from stratalog.errors import ConfigError, FencedEpochError, StoreError, StoreTimeoutError, UnknownTopicError
from stratalog.spi.objects import Created, ObjectInfo, UnfinishedUpload
from stratalog.tier.manifest.head import WARM_HEAD_MS, HeadFinder
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import ChangeKind, Head, Root
from stratalog.tier.manifest.root_diff import named_keys, removed_objects
from stratalog.tier.store.object_keys import (
    deleted_topic_key,
    manifest_key,
    pages_prefix,
    parse_page_key,
    parse_segment_key,
    segments_prefix,
)
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.uploads import Uploads

_LOGGER: Final = logging.getLogger(__name__)
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


@dataclass(frozen=True, slots=True)
class Owner:
    """The leader of a log, which may collect orphans of its own leader epoch.

    Attributes:
        leader_epoch: leader epoch of the log.
        uploads: the uploads of this process.
        fence: returns a context that commits a root in the given leader epoch, and blocks other commits of this
            process until the ``with`` block ends. The value of the context is that root, None if the log has no root.
    """

    leader_epoch: int
    uploads: Uploads
    fence: Callable[[int], AbstractContextManager[Root | None]]


@dataclass(frozen=True, slots=True)
class _Leftover:
    """An object or an uncompleted upload in the store. ``since_ms`` is the time of its last change or its start."""

    key: str
    since_ms: int
    upload: UnfinishedUpload | None = None


class Collector:
    """Deletes superseded manifest roots of one log, and objects that no root names (orphans).

    Not thread-safe: the caller holds a lock. Several processes may collect a log at the same time.

    Args:
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
        self._with_orphans, self._owner = with_orphans, owner
        self._grace_ms, self._history_ms = grace_ms, max(grace_ms, history_ms)

    def collect(self) -> CollectReport:
        """Delete superseded roots and unneeded objects that are old enough, and return the numbers of deleted items.

        If the topic was deleted, and all roots of the log are old enough, delete all its roots and objects.
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
        orphans, young = self.collect_orphans(kept_versions, head) if with_orphans else (0, 0)
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
        # Objects whose keys do not have the form of stratalog's keys are kept.
        leftovers = [leftover for leftover in self._list_leftovers() if self._epoch_of(leftover.key) is not None]
        self._delete(leftovers)
        if head.root.topic_id.as_uuid.version == _COMPUTED_UUID_VERSION:
            key = deleted_topic_key(head.root.log.topic, head.root.topic_id)
            if self._store.create(key, b"deleted") is Created.UNKNOWN:
                raise StoreTimeoutError("the reply is lost", key)
        self._store.delete_or_raise([manifest_key(self._finder.prefix, head.root.version)])
        return CollectReport(roots + 1, objects, len(leftovers))

    def collect_orphans(self, kept_versions: Sequence[int], head: Head) -> tuple[int, int]:
        """Delete orphans; return the number of deleted orphans, and the number of orphans that are too young.

        ``kept_versions`` are the versions of the superseded roots that still exist.
        """
        head_epoch = head.root.leader_epoch
        owner = self._owner if self._owner is not None and self._owner.leader_epoch == head_epoch else None
        newest = head_epoch if owner is not None else head_epoch - 1
        # Read before the store is listed: uploads that begin later are younger.
        own_keys: Collection[str] = owner.uploads.registered_keys() if owner is not None else ()
        fenced: list[_Leftover] = []
        own_epoch: list[_Leftover] = []
        young: list[_Leftover] = []
        for leftover in self._list_leftovers():
            epoch = self._epoch_of(leftover.key)
            if epoch is None or leftover.since_ms <= 0 or leftover.key in own_keys or epoch > newest:
                continue
            is_old = self._is_past(leftover.since_ms)
            group = young if not is_old else fenced if epoch < head_epoch else own_epoch
            group.append(leftover)
        if not (fenced or own_epoch or young):
            return 0, 0
        kept_keys = named_keys(chain((head.root,), self._finder.roots_unchecked(kept_versions)), self._pages)
        fenced, own_epoch, young = (_exclude(group, kept_keys) for group in (fenced, own_epoch, young))
        self._delete(fenced)
        if own_epoch and owner is not None:
            return len(fenced) + self._collect_own_epoch(own_epoch, owner), len(young)
        return len(fenced), len(young)

    def _collect_own_epoch(self, leftovers: Sequence[_Leftover], owner: Owner) -> int:
        try:
            with owner.fence(owner.leader_epoch) as root:
                if root is None:
                    return 0
                kept_keys = named_keys((root,), self._pages).union(owner.uploads.registered_keys())
                orphans = _exclude(leftovers, kept_keys)
                self._delete(orphans)
                return len(orphans)
        except (FencedEpochError, UnknownTopicError) as error:
            _LOGGER.info(
                "leftovers of the current leader epoch could not be deleted: log=%s error=%s", self._finder.log, error
            )
            return 0

    def _list_leftovers(self) -> Iterator[_Leftover]:
        prefix = self._finder.prefix
        for key_prefix in (segments_prefix(prefix), pages_prefix(prefix)):
            yield from (_Leftover(info.key, info.modified_ms) for info in self._store.list_all(key_prefix))
        for upload in list_unfinished(self._store, prefix):
            yield _Leftover(upload.key, upload.begun_ms, upload)

    def _epoch_of(self, key: str) -> int | None:
        """Return the leader epoch in the key of a segment's object or of a page; None for other keys."""
        prefix = self._finder.prefix
        parsed_key = parse_segment_key(prefix, key) or parse_page_key(prefix, key)
        return None if parsed_key is None else parsed_key.leader_epoch

    def _delete(self, orphans: Sequence[_Leftover]) -> None:
        for orphan in orphans:
            if orphan.upload is not None:
                self._store.abort(orphan.upload)
        self._store.delete_or_raise(sorted(orphan.key for orphan in orphans if orphan.upload is None))

    def _is_past(self, time_ms: int, age_ms: int | None = None) -> bool:
        return self._clock.now_ms() - time_ms >= (self._grace_ms if age_ms is None else age_ms)


def _exclude(leftovers: Sequence[_Leftover], kept_keys: Collection[str]) -> list[_Leftover]:
    return [leftover for leftover in leftovers if leftover.key not in kept_keys]


def list_unfinished(store: TierStore, prefix: str) -> Sequence[UnfinishedUpload]:
    """Return the uploads under ``prefix`` that were not completed; () with a warning if the store cannot list them.

    Raises:
        StoreError: the store failed with a retriable error.
    """
    try:
        return store.unfinished(prefix)
    except StoreError as error:
        if error.retriable:
            raise
        _LOGGER.warning(
            "the store does not list unfinished uploads: add a lifecycle rule to the bucket that aborts them prefix=%s "
            "error=%s",
            prefix,
            error,
        )
        return ()
