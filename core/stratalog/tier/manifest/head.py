"""Search for the head of a log, which is its latest manifest root, and the chain of all its roots.

The head is searched by listing, or by reading the next version.

Reading version N + 1 is cheap, but safe only if version N was the head a short time ago. Collectors delete old roots,
and a writer that was paused can create a deleted version again: a stale root. A reader whose last known root is N would
use a stale N + 1 as the head. Therefore, if the head was not verified within ``WARM_HEAD_MS``, a reader searches it by
listing. Collectors keep a superseded root for at least twice that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from stratalog.env import Clock
from stratalog.errors import CorruptManifestError, ObjectNotFoundError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.finding import Finding, FindingKind
from stratalog.spi.objects import ObjectInfo
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.root import RECENT_COMMITS, Head, Root
from stratalog.tier.manifest.root_codec import parse_root
from stratalog.tier.store.object_keys import log_prefix, manifest_key, manifest_prefix, parse_manifest_key
from stratalog.tier.store.store import TierStore

WARM_HEAD_MS: Final = 60_000
WARM_HITS: Final = 4  # after this many newer roots, one listing is cheaper than more reads
_LIST_TRIES: Final = 4  # a listed root may be superseded and collected before it is read


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A time on two clocks: the monotonic clock stops while a machine sleeps, and the wall clock may be changed."""

    monotonic_ns: int
    now_ms: int

    @classmethod
    def of(cls, clock: Clock) -> ClockReading:
        """Return the current time on both clocks of ``clock``."""
        return cls(clock.monotonic_ns(), clock.now_ms())

    def is_within(self, earlier: ClockReading, duration_ms: int) -> bool:
        """Return True if this time is at most ``duration_ms`` after ``earlier`` on both clocks (inclusive).

        If the wall clock was set back below ``earlier``, the result is False.
        """
        monotonic_ms = (self.monotonic_ns - earlier.monotonic_ns) // 1_000_000
        return monotonic_ms <= duration_ms and 0 <= self.now_ms - earlier.now_ms <= duration_ms


class HeadFinder:
    """Finds the head of one log, which is its latest manifest root. Not thread-safe: the caller holds a lock.

    The finder keeps the head and the time of its last verification. A verification is a request whose reply shows that
    the head is the latest root; its time is the time when the request began.

    Args:
        limit_bytes: size of the largest root to read.
    """

    def __init__(
        self,
        store: TierStore,
        log: TopicPartition,
        topic_id: TopicId,
        clock: Clock,
        *,
        limit_bytes: int,
        authenticity: Authenticity,
    ) -> None:
        self.authenticity = authenticity
        self.log, self.topic_id, self.prefix = log, topic_id, log_prefix(log, topic_id)
        self._store, self._clock, self.limit_bytes = store, clock, limit_bytes
        self._head: Head | None = None
        self._verified: ClockReading | None = None  # the latest time at which _head was known to be the head
        self._first_version: int | None = None

    @property
    def head(self) -> Head | None:
        """The last head that was read; None if the log has no root, or if nothing was read yet."""
        return self._head

    @property
    def first_version(self) -> int:
        """The version of the head when it was first read; 0 if the log had no root, or if nothing was read yet."""
        return self._first_version or 0

    @property
    def is_warm(self) -> bool:
        """True if ``head`` was verified within the last minute, so no collector can have deleted the next root."""
        return self._verified is not None and ClockReading.of(self._clock).is_within(self._verified, WARM_HEAD_MS)

    def find(self, *, cold: bool = False) -> Head | None:
        """Return the latest root; None if the log has no root. With ``cold``, always list the roots to find it.

        Raises:
            CorruptManifestError: a root is damaged or missing, or does not continue the root that was read before. It
                is a TamperedManifestError if a MAC is wrong or missing.
        """
        if self._head is not None and self.is_warm and not cold:
            for _ in range(WARM_HITS):
                began = ClockReading.of(self._clock)
                newer = self.read(self._head.root.version + 1)
                if newer is None:
                    self._verified = began
                    return self._head
                self._advance(newer, began)
        return self._find_by_listing()

    def find_listed(self, version: int, began: ClockReading) -> Head | None:
        """Return the latest root after a listing of the tier.

        If all roots of the log were deleted meanwhile, return None, or raise CorruptManifestError if this finder has
        read a root before.

        The call sends no request if the last known root has this version, or if it has a higher version and was
        verified recently.

        Args:
            version: version of the log's newest root in the listing.
            began: time when the listing began.
        """
        if self._head is not None and version == self._head.root.version:
            self._verified = began
            return self._head
        is_older = self._head is not None and version < self._head.root.version
        if is_older and self.is_warm:
            return self._head
        head = None if is_older else self.read(version)
        if head is None:  # roots are missing, or the root was superseded and collected meanwhile
            return self._find_by_listing()
        self._advance(head, began)
        return head

    def set_head(self, head: Head, verified: ClockReading) -> None:
        """Set the head to a root that this process committed, and that was the latest one at the time ``verified``."""
        self._head, self._verified = head, verified

    def doubt(self) -> None:
        """Forget the time of the last verification: the next ``find`` lists the roots to find the head."""
        self._verified = None

    def read(self, version: int) -> Head | None:
        """Return the root of this version, None if there is none; send one request."""
        head = self.read_unchecked(version)
        if head is not None:
            with self._store.guard.naming_suspect():
                self.authenticity.check(head)
        return head

    def read_unchecked(self, version: int) -> Head | None:
        """Return the root of this version like ``read``, but do not check its MAC.

        Call this only to find the objects that existing roots name. A reader of records must call ``read``, also for an
        earlier state (``as_of``).
        """
        try:
            data = self._store.read(manifest_key(self.prefix, version), 0, self.limit_bytes + 1)
        except ObjectNotFoundError:
            return None
        with self._store.guard.naming_suspect():
            return parse_root(data, self.log, self.topic_id, version, limit_bytes=self.limit_bytes)

    def roots_unchecked(self, versions: Iterable[int]) -> Iterator[Root]:
        """Call ``read_unchecked`` for each version, and yield the roots that exist."""
        heads = (self.read_unchecked(version) for version in versions)
        return (head.root for head in heads if head is not None)

    def roots_above(self, version: int) -> Iterator[tuple[int, ObjectInfo]]:
        """Yield the versions of the roots above ``version`` that exist, ascending, each with its object."""
        after = manifest_key(self.prefix, version) if version else ""
        for info in self._store.list_all(manifest_prefix(self.prefix), after=after):
            later_version = parse_manifest_key(self.prefix, info.key)
            if later_version is not None:
                yield later_version, info

    def _find_by_listing(self) -> Head | None:
        known_version = self._head.root.version - 1 if self._head else 0
        for _ in range(_LIST_TRIES):
            began = ClockReading.of(self._clock)
            newest = max((version for version, _ in self.roots_above(known_version)), default=0)
            head = self.read(newest) if newest else None
            if head is not None:
                self._advance(head, began)
                return head
            if not newest:
                break
        else:
            raise CorruptManifestError("the object is listed but does not exist", manifest_key(self.prefix, newest))
        if self._head is not None:
            raise CorruptManifestError(
                "roots that were read before are missing", manifest_key(self.prefix, self._head.root.version)
            )
        self._take(None, began)
        return None

    def _advance(self, head: Head, began: ClockReading) -> None:
        old = self._head
        if old is not None and not may_continue(old, head):
            raise CorruptManifestError(
                f"the manifest does not continue version {old.root.version}, which was read before",
                manifest_key(self.prefix, head.root.version),
            )
        self._take(head, began)

    def _take(self, head: Head | None, began: ClockReading) -> None:
        self._head, self._verified = head, began
        if self._first_version is None:
            self._first_version = head.root.version if head else 0


def may_continue(old: Head, new: Head) -> bool:
    """Return False if the roots show that ``new`` is neither ``old`` nor a later root in the chain of ``old``.

    If ``new`` is 64 or more versions later, only the presence of a MAC is compared.
    """
    distance = new.root.version - old.root.version
    if old.root.mac is not None and new.root.mac is None:
        return False
    if distance == 0:
        return new.sha256 == old.sha256
    if distance == 1:
        return new.root.parent_sha256 == old.sha256
    return distance > 0 and (distance >= RECENT_COMMITS or old.root.commit_id in new.root.recent_commits)


@dataclass(frozen=True, slots=True)
class ChainedRoot:
    """A stored root of a log, and its place in the chain of roots.

    Attributes:
        head: the root; None if it is damaged, or was deleted after it was listed.
        findings: findings about the root: it is damaged, roots before it are missing, or it does not follow them.
        has_loss: True if it is damaged, or roots before it are missing.
        continues: if a repair created this root in place of damaged roots, the version of the good root before them,
            which it continues; None for other roots.
    """

    version: int
    head: Head | None
    findings: tuple[Finding, ...]
    has_loss: bool
    continues: int | None


def read_chain(finder: HeadFinder, versions: Iterable[int]) -> Iterator[ChainedRoot]:
    """Read all existing roots, whose ``versions`` must ascend; yield each root with findings about the chain of roots.

    A damaged root causes a finding, and no error.
    """
    last_good: Head | None = None  # the last good root
    before: Head | None = None  # the root before, None if it is damaged
    for previous_version, version in pairwise((0, *versions)):
        key, head, flaws, has_loss = manifest_key(finder.prefix, version), None, list[tuple[str, int]](), False
        try:
            head = finder.read(version)
        except CorruptManifestError as error:
            flaws.append((error.reason, error.position))
            has_loss = True
        leaves_out = head is not None and last_good is not None and _leaves_out(last_good, head)
        if previous_version and version != previous_version + 1 and not leaves_out:
            flaws.append((f"versions {previous_version + 1} to {version - 1} are missing", 0))
            has_loss = True
        if head is not None and before is not None and not may_continue(before, head):
            flaws.append((f"it does not follow the stored version {before.root.version}", 0))
        findings = tuple(Finding(FindingKind.ROOT, key, position, text, log=finder.log) for text, position in flaws)
        yield ChainedRoot(
            version, head, findings, has_loss, last_good.root.version if last_good and leaves_out else None
        )
        before, last_good = head, head or last_good


def _leaves_out(before: Head, after: Head) -> bool:
    """Return True if ``after`` names ``before`` as its parent although there are versions between them.

    A repair creates such a root in place of the damaged roots between.
    """
    return after.root.version > before.root.version + 1 and after.root.parent_sha256 == before.sha256
