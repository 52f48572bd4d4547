"""Finding the newest manifest root of a log: by listing, or by asking for the next version.

Asking for the next version is cheap and sound only while the root it starts from is known to have been the head a
short time ago. A collector deletes old roots; a version it deleted can be created again by a writer that slept, and
such a stale root would be taken for the head by whoever starts from its parent. So a head that was not verified
within ``WARM_HEAD_MS`` is listed anew, and collectors keep a superseded root for at least twice that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stratalog.env import Clock
from stratalog.errors import CorruptManifestError, ObjectNotFoundError
from stratalog.model.names import TopicId, TopicPartition, log_prefix, manifest_key, manifest_prefix, parse_manifest_key
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.objects import ObjectInfo
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.root import RECENT_COMMITS, Head, Root
from stratalog.tier.manifest.root_codec import parse_root
from stratalog.tier.store.store import TierStore

WARM_HEAD_MS: Final = 60_000
WARM_HITS: Final = 4  # after so many newer roots one listing is cheaper than going on
_LIST_TRIES: Final = 4  # a root listed may be superseded and collected before it is read


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on both clocks: the monotonic one stands still while a machine sleeps, the other may be set."""

    monotonic_ns: int
    now_ms: int

    @classmethod
    def of(cls, clock: Clock) -> Moment:
        """Now."""
        return cls(clock.monotonic_ns(), clock.now_ms())

    def is_within(self, earlier: Moment, duration_ms: int) -> bool:
        """Whether ``earlier`` is at most ``duration_ms`` ago, as far as both clocks can tell."""
        monotonic_ms = (self.monotonic_ns - earlier.monotonic_ns) // 1_000_000
        return monotonic_ms <= duration_ms and 0 <= self.now_ms - earlier.now_ms <= duration_ms


class HeadFinder:
    """The head of one log's chain, and when it was last seen to be the head. Not thread-safe: the caller locks.

    Args:
        store: where the roots are.
        log: whose.
        topic_id: of its topic.
        clock: tells how old the last look is.
        limit_bytes: the largest root read.
        authenticity: checks and makes the MACs of roots; None reads any root.
    """

    def __init__(
        self,
        store: TierStore,
        log: TopicPartition,
        topic_id: TopicId,
        clock: Clock,
        *,
        limit_bytes: int,
        authenticity: Authenticity | None = None,
    ) -> None:
        self.authenticity = authenticity
        self.log, self.topic_id, self.prefix = log, topic_id, log_prefix(log, topic_id)
        self._store, self._clock, self.limit_bytes = store, clock, limit_bytes
        self._head: Head | None = None
        self._verified: Moment | None = None  # when _head was the head, at the latest known
        self._first_version: int | None = None

    @property
    def head(self) -> Head | None:
        """The head as last seen; None if there is no root, or nobody looked yet."""
        return self._head

    @property
    def first_version(self) -> int:
        """The version of the head at the first look; 0 if there was no root."""
        return self._first_version or 0

    @property
    def is_warm(self) -> bool:
        """Whether ``head`` was verified so lately that no collector can have taken its successor."""
        return self._verified is not None and Moment.of(self._clock).is_within(self._verified, WARM_HEAD_MS)

    def find(self, *, cold: bool = False) -> Head | None:
        """The head now; None if the log has no root. ``cold`` lists in any case.

        Raises:
            CorruptManifestError: a root is damaged, or does not continue what was seen before.
            StoreError: the store failed or refused.
        """
        if self._head is not None and self.is_warm and not cold:
            for _ in range(WARM_HITS):
                began = Moment.of(self._clock)
                newer = self.read(self._head.root.version + 1)
                if newer is None:
                    self._verified = began
                    return self._head
                self._advance(newer, began)
        return self._find_by_listing()

    def settle(self, head: Head, verified: Moment) -> None:
        """Take ``head`` for the head: a root just committed, with nothing above it at ``verified``."""
        self._head, self._verified = head, verified

    def doubt(self) -> None:
        """Let the next ``find`` list."""
        self._verified = None

    def read(self, version: int) -> Head | None:
        """The root of this version, or None; one request.

        Raises:
            CorruptManifestError: it is damaged.
            TamperedManifestError: its MAC is wrong or missing.
            ConfigError: the key of its MAC is missing.
        """
        found = self.read_unchecked(version)
        if found is not None and self.authenticity is not None:
            self.authenticity.check(found)
        return found

    def read_unchecked(self, version: int) -> Head | None:
        """The same whatever its MAC: for a superseded root, of which nothing is served."""
        try:
            data = self._store.read(manifest_key(self.prefix, version), 0, self.limit_bytes + 1)
        except ObjectNotFoundError:
            return None
        return parse_root(data, self.log, self.topic_id, version, limit_bytes=self.limit_bytes)

    def signed(self, root: Root, before: Root | None, entries: Iterable[StoredSegment]) -> Root:
        """Return a new root with its MAC, if the log's layout authenticates roots; as ``Authenticity.signed``."""
        return root if self.authenticity is None else self.authenticity.signed(root, before, entries)

    def roots_above(self, version: int) -> Iterator[tuple[int, ObjectInfo]]:
        """Versions above ``version`` that are there, ascending; 0 lists all."""
        after = manifest_key(self.prefix, version) if version else ""
        for info in self._store.list_all(manifest_prefix(self.prefix), after=after):
            found = parse_manifest_key(self.prefix, info.key)
            if found is not None:
                yield found, info

    def _find_by_listing(self) -> Head | None:
        above = self._head.root.version - 1 if self._head else 0
        for _ in range(_LIST_TRIES):
            began = Moment.of(self._clock)
            newest = max((version for version, _ in self.roots_above(above)), default=0)
            head = self.read(newest) if newest else None
            if head is not None:
                self._advance(head, began)
                return head
            if not newest:
                break
        else:
            raise CorruptManifestError("listed, and not there", manifest_key(self.prefix, newest))
        if self._head is not None:
            raise CorruptManifestError("roots seen before are gone", manifest_key(self.prefix, self._head.root.version))
        self._take(None, began)
        return None

    def _advance(self, head: Head, began: Moment) -> None:
        if self._head is not None:
            _check_continues(self._head, head)
        self._take(head, began)

    def _take(self, head: Head | None, began: Moment) -> None:
        self._head, self._verified = head, began
        if self._first_version is None:
            self._first_version = head.root.version if head else 0


def _check_continues(old: Head, new: Head) -> None:
    if not may_continue(old, new):
        raise CorruptManifestError(
            f"the manifest does not continue version {old.root.version} seen before",
            manifest_key(new.root.prefix, new.root.version),
        )


def may_continue(old: Head, new: Head) -> bool:
    """Whether ``new`` can be what became of ``old``, as far as the two roots tell."""
    distance = new.root.version - old.root.version
    if old.root.mac is not None and new.root.mac is None:
        return False
    if distance == 0:
        return new.sha256 == old.sha256
    if distance == 1:
        return new.root.parent_sha256 == old.sha256
    return distance > 0 and (distance >= RECENT_COMMITS or old.root.commit_id in new.root.recent_commits)
