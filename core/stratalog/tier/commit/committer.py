"""Publication of a manifest root in four steps, after which it is certain if the root is committed.

1. Find the head, which is the latest root, version v. Build v + 1 from it.
2. Create v + 1 only if it is absent. If the reply is lost, or the version exists, read v + 1. If it has this writer's
   commit id, this writer created it. Otherwise another writer created it first: stop if that writer fences this one,
   or begin again with its root as the head.
3. List the versions above v + 1. If there are none, v + 1 is committed.
4. Read v + 2. If its parent hash is the hash of v + 1, v + 1 is committed. If its parent hash is another one, v + 1 is
   not committed. If v + 2 was collected, v + 1 is committed only if the head lists this writer's commit id. Otherwise
   another root of version v + 1 had been collected before this writer created its own.

Steps 3 and 4 are for a writer that pauses for longer than the collector's grace time: it must not report a stale root
as committed.

A head with a higher leader epoch fences this writer. A head of another writer with the same leader epoch also fences
this writer, unless it is the first head that the committer reads. A head with a lower leader epoch does not fence this
writer: the next commit builds on that head. Some kinds of changes never fence a writer of the same epoch
(``_check_fenced``).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from stratalog.env import Env
from stratalog.errors import ConfigError, FencedEpochError, ObjectNotFoundError, StoreThrottledError, StoreTimeoutError
from stratalog.model.names import random_uuid
from stratalog.spi.objects import Created
from stratalog.tier.manifest.entry_tree import next_root, walk
from stratalog.tier.manifest.head import ClockReading, HeadFinder
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import RECENT_COMMITS, Change, ChangeKind, Head, Root
from stratalog.tier.manifest.root_codec import new_root
from stratalog.tier.store.object_keys import manifest_key
from stratalog.tier.store.store import TierStore

_LOGGER: Final = logging.getLogger(__name__)
_RACES: Final = 16
_CREATES: Final = 4  # attempts to create one version while replies are lost
_OWN_IDS: Final = 1024

Decide: TypeAlias = Callable[[Root | None], Change | None]
"""Function that receives the root of the head, or None if the log has no root, and returns the change to commit on top.

The function returns None if there is nothing to commit. It is called again if another writer has committed first.
"""


class Committer:
    """Commits manifest roots of one log. Not thread-safe: the caller holds a lock, also for the ``HeadFinder``.

    Args:
        finder: finds the head; shared with readers.
        pages: pages of the log's manifest; the new pages of a root are stored before the root.
        limit_bytes: size of the largest root to write.
        shared: True if the store creates atomically. If False, this process must be the only writer, and checks that a
            version does not exist before it creates the version.

    Attributes:
        shared: same as the argument; may be changed between commits.
    """

    def __init__(
        self, store: TierStore, finder: HeadFinder, pages: Pages, env: Env, *, limit_bytes: int, shared: bool = True
    ) -> None:
        self._store, self._finder, self._pages, self._env = store, finder, pages, env
        self._limit_bytes, self.shared = limit_bytes, shared
        self._own_ids: OrderedDict[str, None] = OrderedDict()  # the last commit ids of this committer, oldest first
        self.tried_version = 0  # the highest version for which a create request was sent
        self._accepted_version = -1  # version of the last root that this committer accepted

    def commit(self, leader_epoch: int, decide: Decide, shared_with: Collection[str] = ()) -> Root | None:
        """Commit the change that ``decide`` returns, on top of the latest root.

        Args:
            leader_epoch: leader epoch of the writer.
            decide: returns the change for the latest root; called again if another writer commits first.
            shared_with: kinds of changes that other writers may commit in the same leader epoch without fencing this
                writer. Used by writers that have no local log.

        Returns:
            The latest root: the new root, or the root for which ``decide`` returned None. None if there is no root.

        Raises:
            FencedEpochError: another writer owns the log, or the root of this writer is stale. Nothing was committed,
                unless the text says that this is unknown.
            StoreTimeoutError: replies are lost, or the store is down; call again to find out if the root was committed.
            StoreThrottledError: other writers committed first in all 16 attempts; call again.
            StoreError: the store failed or refused.
            CorruptManifestError: a root or page is damaged, or a root does not continue the previous one.
            ConfigError: there is no key to authenticate the root with, or the root would be too large.
            PluginError: the store or an authenticator broke the plugin interface.
            The errors of ``decide``.
        """
        head = self._finder.head if self._finder.is_warm else self._finder.find()
        self._accepted_version = max(self._accepted_version, self._finder.first_version)
        for _ in range(_RACES):
            self._check_fenced(head, leader_epoch, shared_with)
            change = decide(head.root if head else None)
            if change is None:
                return head.root if head else None
            root = self._next(head, change, leader_epoch)
            committed = self._create_and_confirm(root)
            if committed is not None:
                return committed.root
            head = self._finder.find(cold=True)
            if head is not None and root.commit_id in head.root.recent_commits:
                return head.root  # the root was created, and collected before it could be read
        raise StoreThrottledError(
            "other writers committed first in every attempt", manifest_key(self._finder.prefix, root.version)
        )

    def _next(self, head: Head | None, change: Change, leader_epoch: int) -> Root:
        commit_id = random_uuid(self._env.chance).hex
        self._own_ids[commit_id] = None
        if len(self._own_ids) > _OWN_IDS:
            self._own_ids.popitem(last=False)
        root = next_root(
            head,
            change,
            pages=self._pages,
            log=self._finder.log,
            topic_id=self._finder.topic_id,
            commit_id=commit_id,
            leader_epoch=leader_epoch,
            created_ms=self._env.clock.now_ms(),
        )
        before = head.root if head is not None else None
        entries = walk(before, self._pages) if before is not None else ()
        return self._finder.authenticity.add_mac(root, before, entries, change.added)

    def _check_fenced(self, head: Head | None, leader_epoch: int, shared_with: Collection[str]) -> None:
        """Raise FencedEpochError if the head shows that another writer owns the log."""
        if head is None:
            return
        root = head.root
        if root.leader_epoch > leader_epoch:
            raise FencedEpochError(
                f"{root.log} is written in leader epoch {root.leader_epoch}, this writer has {leader_epoch} "
                f"(version={root.version})"
            )
        is_shared = root.change in shared_with or root.change == ChangeKind.CREATE  # a CREATE adds no segment
        is_other = root.leader_epoch == leader_epoch and not is_shared and self._is_by_another_writer(root)
        if is_other and not self._was_rewrapped_alone(root):
            raise FencedEpochError(
                f"{root.log} has another writer in the same leader epoch {leader_epoch} (version={root.version})"
            )
        self._accepted_version = root.version

    def _is_by_another_writer(self, root: Root) -> bool:
        """Return True if another writer created this root after the last root that this committer accepted."""
        return root.version > self._accepted_version and root.commit_id not in self._own_ids

    def _was_rewrapped_alone(self, head: Root) -> bool:
        """Return True if all later roots of other writers only rewrap keys. Such roots do not fence this writer.

        Later roots are those after the last root that this committer accepted.

        A root that rewraps keys has the change REWRAP. If the log has left the tier, such a root has the change CLEAR,
        like the root before it.
        """
        if head.change not in {ChangeKind.REWRAP, ChangeKind.CLEAR}:
            return False
        previous_change = None
        for version in range(max(self._accepted_version, 0), head.version + 1):
            if version == head.version:
                root: Root | None = head
            else:
                other_head = self._finder.read(version)
                root = None if other_head is None else other_head.root
            if root is None:  # it was collected
                if version > self._accepted_version:
                    return False
                continue
            only_rewraps = root.change == ChangeKind.REWRAP or root.change == previous_change == ChangeKind.CLEAR
            if self._is_by_another_writer(root) and not only_rewraps:
                return False
            previous_change = root.change
        return True

    # --- step 2 --------------------------------------------------------------------------------------------------

    def _create_and_confirm(self, root: Root) -> Head | None:
        """Create and confirm a root, and return it as a head; None if another writer created its version first."""
        data = new_root(root)
        if len(data) > self._limit_bytes:
            raise ConfigError(
                f"the manifest of {root.log} would take {len(data)} bytes, above limits.manifest.bytes="
                f"{self._limit_bytes}: raise it, or keep fewer or larger segments"
            )
        head = Head(root, sha256_of(data))
        if not self._create(head, data):
            return None
        key = manifest_key(root.prefix, root.version)
        try:
            self._store.check_kept("create", "manifest root", key, data)
        except ObjectNotFoundError:
            if not any(True for _ in self._finder.roots_above(root.version)):  # otherwise a later writer collected it
                self._store.refuse_lost("create", key)
        return self._confirm(head)

    def _create(self, head: Head, data: bytes) -> bool:
        """Create a root; return True if this writer created its version, False if another writer created it before."""
        version = head.root.version
        key = manifest_key(self._finder.prefix, version)
        self.tried_version = max(self.tried_version, version)
        if not self.shared and self._finder.read(version) is not None:
            return False
        for _ in range(_CREATES):
            created = self._store.create(key, data)
            if created is Created.CREATED and self.shared:
                return True
            existing = self._finder.read(version)
            if existing is not None:
                return existing.root.commit_id == head.root.commit_id
            if created is Created.EXISTS:
                return False  # the version existed, and was collected before it could be read
        raise StoreTimeoutError(f"{self._store.guard} does not report if a manifest root was created", key)

    # --- steps 3 and 4 -------------------------------------------------------------------------------------------

    def _confirm(self, head: Head) -> Head:
        """Return ``head`` if its root is certainly committed (steps 3 and 4), otherwise raise FencedEpochError."""
        root = head.root
        began = ClockReading.of(self._env.clock)
        later_versions = [version for version, _ in self._finder.roots_above(root.version)]
        if not later_versions:
            self._finder.set_head(head, began)
            self._accepted_version = root.version
            return head
        self._finder.doubt()
        successor = self._finder.read(root.version + 1) if later_versions[0] == root.version + 1 else None
        if successor is not None:
            if successor.root.parent_sha256 == head.sha256:
                return head
            raise self._stale(root, f"version {root.version + 1} follows another root")
        newest = self._finder.read(later_versions[-1])
        if newest is None:
            raise StoreTimeoutError(
                "other writers commit roots faster than this one can read them",
                manifest_key(root.prefix, later_versions[-1]),
            )
        if root.commit_id in newest.root.recent_commits:
            return head
        if newest.root.version - root.version >= RECENT_COMMITS:
            raise FencedEpochError(
                f"another writer has created many roots of {root.log}; it is unknown if the root of this writer counts "
                f"(version={root.version} head={newest.root.version})"
            )
        raise self._stale(root, f"the newest root, version {newest.root.version}, does not continue this root")

    def _stale(self, root: Root, reason: str) -> FencedEpochError:
        """Delete a stale root, which no other root continues; return the error to raise."""
        key = manifest_key(root.prefix, root.version)
        failed = self._store.delete([key])
        if failed:
            _LOGGER.warning(
                "a stale manifest root could not be deleted; the collector will delete it: key=%s error=%s",
                key,
                failed[key],
            )
        return FencedEpochError(
            f"another writer continued {root.log}, and the root of this writer is stale: {reason} "
            f"version={root.version}"
        )
