"""Collection of orphans: objects and pages that no root names, and uploads that were never completed.

An orphan may be an upload in progress. It is deleted only if it is older than the grace time, and no writer can commit
it any more. That is certain in two cases:

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
from dataclasses import dataclass
from itertools import chain
from typing import Final

from stratalog.env import Clock
from stratalog.errors import FencedEpochError, StoreError, UnknownTopicError
from stratalog.spi.objects import UnfinishedUpload
from stratalog.tier.manifest.head import HeadFinder
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import Head, Root
from stratalog.tier.manifest.root_diff import named_keys
from stratalog.tier.store.object_keys import pages_prefix, parse_page_key, parse_segment_key, segments_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.uploads import Uploads

_LOGGER: Final = logging.getLogger(__name__)


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


class OrphanCollector:
    """Deletes the orphans of one log: objects and pages that no root names, and uncompleted uploads. Used once.

    Args:
        store: contains the objects.
        finder: reads the log's roots.
        pages: pages of the log's manifest.
        clock: clock for ages.
        grace_ms: the minimal age of an orphan to delete.
        owner: the leader of the log; None if the caller does not lead it.
    """

    def __init__(
        self, store: TierStore, finder: HeadFinder, pages: Pages, clock: Clock, *, grace_ms: int, owner: Owner | None
    ) -> None:
        self._store, self._finder, self._pages, self._clock = store, finder, pages, clock
        self._grace_ms, self._owner = grace_ms, owner

    def collect(self, kept_versions: Sequence[int], head: Head) -> tuple[int, int]:
        """Delete orphans; return the number of deleted orphans, and the number of orphans that are too young.

        Args:
            kept_versions: versions of the superseded roots that still exist.
            head: the latest root.

        Raises:
            StoreError: the store failed or refused; a later call deletes the rest.
            CorruptManifestError: a root or a page is damaged.
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
            is_old = self._clock.now_ms() - leftover.since_ms >= self._grace_ms
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

    def collect_everything(self) -> int:
        """Delete all objects, pages and uploads of a deleted topic's log, except manifest roots; return their number.

        Objects whose keys do not have the form of stratalog's keys are kept. The call may raise StoreError.
        """
        leftovers = [leftover for leftover in self._list_leftovers() if self._epoch_of(leftover.key) is not None]
        self._delete(leftovers)
        return len(leftovers)

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
