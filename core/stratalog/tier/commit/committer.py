"""Publishing a manifest root: four steps that end in a certain answer.

1. Find the head, version v, and build v + 1 from it.
2. Create v + 1 only if it is absent. After a lost reply, or if it exists, read it back: our commit id says that it is
   ours. Another's means that the race is lost: stop if that writer outranks us, else decide again on its root.
3. List what is above v + 1. Nothing: committed.
4. v + 2 names our hash as its parent: committed. If it names another, or only later versions are left and the head
   does not remember our commit id, then our version had been collected and was created again: nothing was committed.

Without steps 3 and 4 a writer that slept past the collector's grace time would take a stale root for its success.

The head that was there when the log was first looked at is taken as it is. From then on a root that another writer
made in the same leader epoch, or in a higher one, fences this one; one of a lower epoch is built on.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Final, TypeAlias

from stratalog.env import Env
from stratalog.errors import ConfigError, FencedEpochError, StoreThrottledError, StoreTimeoutError
from stratalog.model.names import manifest_key
from stratalog.spi.objects import Created
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.head import HeadFinder, Moment
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.pages import Pages
from stratalog.tier.manifest.root import RECENT_COMMITS, Change, ChangeKind, Head, Root
from stratalog.tier.manifest.root_codec import new_root, next_root
from stratalog.tier.store.store import TierStore

_LOGGER: Final = logging.getLogger(__name__)
_RACES: Final = 16
_CREATES: Final = 4  # of one version, while replies are lost
_OWN_IDS: Final = 1024

Decide: TypeAlias = Callable[[Root | None], Change | None]
"""What to commit on top of a head (None: no root yet); None if nothing is left to do. Asked again after a lost race."""


class Outcome(Enum):
    """What became of our root's version: it holds our bytes, or another's."""

    OURS = auto()
    LOST = auto()


class Committer:
    """Commits to one log's chain. Not thread-safe: the caller locks, the ``HeadFinder`` included.

    Args:
        store: where the roots are.
        finder: knows the head; shared with those who only read.
        pages: of the same log; those that a root needs are stored before it.
        env: clock and chance.
        limit_bytes: the largest root written.
        shared: whether the store creates atomically. Otherwise this process must be the only writer, and the
            version is looked at before it is created.

    Attributes:
        shared: the same; may be set between commits.
    """

    def __init__(
        self, store: TierStore, finder: HeadFinder, pages: Pages, env: Env, *, limit_bytes: int, shared: bool = True
    ) -> None:
        self._store, self._finder, self._pages, self._env = store, finder, pages, env
        self._limit_bytes, self.shared = limit_bytes, shared
        self._own: OrderedDict[str, None] = OrderedDict()  # commit ids we issued, oldest first
        self.tried_version = 0  # the highest that we asked the store to create, whatever came of it
        self._known_version = -1  # roots up to it were accepted: ours, or there when the log was first looked at

    def commit(self, leader_epoch: int, decide: Decide, shared_with: Collection[str] = ()) -> Root | None:
        """Publish what ``decide`` wants, on top of whatever the head is then.

        Args:
            leader_epoch: of the writer.
            decide: asked with the head, again after a lost race.
            shared_with: kinds of changes that others may make in the same leader epoch without fencing this writer,
                which takes all it knows from the head.

        Returns:
            The head: the root just committed, or the one on which ``decide`` had nothing to do.

        Raises:
            FencedEpochError: another writer owns the log, or our root turned out to be stale. Nothing was committed.
            StoreTimeoutError: replies are lost, or the store is down; whether it was committed shows when asked again.
            StoreThrottledError: other writers kept winning; ask again.
            CorruptManifestError: the chain is damaged.
            ConfigError: there is no key to authenticate the root with.
        """
        head = self._finder.head if self._finder.is_warm else self._finder.find()
        self._known_version = max(self._known_version, self._finder.first_version)
        for _ in range(_RACES):
            self._check_fenced(head, leader_epoch, shared_with)
            change = decide(head.root if head else None)
            if change is None:
                return head.root if head else None
            root = self._next(head, change, leader_epoch)
            committed = self._publish(root)
            if committed is not None:
                return committed.root
            head = self._finder.find(cold=True)
        raise StoreThrottledError("other writers won every race", manifest_key(self._finder.prefix, root.version))

    def _next(self, head: Head | None, change: Change, leader_epoch: int) -> Root:
        commit_id = uuid.UUID(int=self._env.chance.getrandbits(128), version=4).hex
        self._own[commit_id] = None
        if len(self._own) > _OWN_IDS:
            self._own.popitem(last=False)
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
        return self._finder.signed(root, before, walk(before, self._pages) if before is not None else ())

    def _check_fenced(self, head: Head | None, leader_epoch: int, shared_with: Collection[str]) -> None:
        """Accept the head as what we build on, or stop."""
        if head is None:
            return
        root = head.root
        if root.leader_epoch > leader_epoch:
            raise FencedEpochError(
                f"{root.log} is written in leader epoch {root.leader_epoch}, ours is {leader_epoch} "
                f"version={root.version}"
            )
        is_shared = root.change in shared_with or root.change == ChangeKind.CREATE  # which names no segment
        is_other = root.leader_epoch == leader_epoch and not is_shared and self._is_foreign(root)
        if is_other and not self._was_rewrapped_alone(root):
            raise FencedEpochError(
                f"{root.log} has another writer in our leader epoch {leader_epoch} version={root.version}"
            )
        self._known_version = root.version

    def _is_foreign(self, root: Root) -> bool:
        """Whether somebody else made this root since we began."""
        return root.version > self._known_version and root.commit_id not in self._own

    def _was_rewrapped_alone(self, head: Root) -> bool:
        """Whether all that others did since is to wrap keys anew, which hides no second writer in our epoch."""
        if head.change != ChangeKind.REWRAP:
            return False
        for version in range(self._known_version + 1, head.version):
            found = self._finder.read(version)
            if found is None or (self._is_foreign(found.root) and found.root.change != ChangeKind.REWRAP):
                return False
        return True

    # --- step 2 --------------------------------------------------------------------------------------------------

    def _publish(self, root: Root) -> Head | None:
        """Create and confirm a root; None if another has its version."""
        data = new_root(root)
        if len(data) > self._limit_bytes:
            raise ConfigError(
                f"the manifest of {root.log} would take {len(data)} bytes, above limits.manifest.bytes="
                f"{self._limit_bytes}: raise it, or keep fewer or larger segments"
            )
        head = Head(root, sha256_of(data))
        if self._create(head, data) is Outcome.LOST:
            return None
        self._store.check_kept("manifest root", manifest_key(root.prefix, root.version), data)
        return self._confirm(head)

    def _create(self, head: Head, data: bytes) -> Outcome:
        version = head.root.version
        key = manifest_key(self._finder.prefix, version)
        self.tried_version = max(self.tried_version, version)
        if not self.shared and self._finder.read(version) is not None:
            return Outcome.LOST
        for _ in range(_CREATES):
            created = self._store.create(key, data)
            if created is Created.CREATED and self.shared:
                return Outcome.OURS
            there = self._finder.read(version)
            if there is not None:
                return Outcome.OURS if there.root.commit_id == head.root.commit_id else Outcome.LOST
            if created is Created.EXISTS:
                return Outcome.LOST  # it was there, and was collected before we could read it: we are late
        raise StoreTimeoutError("the store does not say whether a manifest root was created", key)

    # --- steps 3 and 4 -------------------------------------------------------------------------------------------

    def _confirm(self, head: Head) -> Head:
        """Whether the version we hold is a link of the chain, and not a stale one created again."""
        root = head.root
        asked = Moment.of(self._env.clock)
        above = [version for version, _ in self._finder.roots_above(root.version)]
        if not above:
            self._finder.settle(head, asked)
            self._known_version = root.version
            return head
        self._finder.doubt()
        successor = self._finder.read(root.version + 1) if above[0] == root.version + 1 else None
        if successor is not None:
            if successor.root.parent_sha256 == head.sha256:
                return head
            raise self._stale(root, f"version {root.version + 1} follows another root")
        newest = self._finder.read(above[-1])
        if newest is None:
            raise StoreTimeoutError("roots move faster than they can be read", manifest_key(root.prefix, above[-1]))
        if root.commit_id in newest.root.recent_commits:
            return head
        if newest.root.version - root.version >= RECENT_COMMITS:
            raise FencedEpochError(
                f"{root.log} is far ahead of the root just created, whether it counts cannot be told "
                f"version={root.version} head={newest.root.version}"
            )
        raise self._stale(root, f"the head, version {newest.root.version}, does not know it")

    def _stale(self, root: Root, reason: str) -> FencedEpochError:
        """Take away the stale root, which nobody builds on, so that no reader meets it."""
        key = manifest_key(root.prefix, root.version)
        failed = self._store.delete([key])
        if failed:
            _LOGGER.warning("a stale manifest root is left for the collector: key=%s error=%s", key, failed[key])
        return FencedEpochError(f"{root.log} went on without us, our root was stale: {reason} version={root.version}")
