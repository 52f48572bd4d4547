"""Reads of one log in a tier, based on the latest manifest root of the log (the head) that this process has read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from stratalog.config.engine_settings import Limits
from stratalog.env import Env
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ReadOnlyError, StorageError, StoreError, TamperedManifestError
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.head import ClockReading, HeadFinder
from stratalog.tier.manifest.history import AsOf, History
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.manifest.root import RECENT_COMMITS, ChangeKind, Root, stand_in_commit_id
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.read.remote_segment import PagedSegments
from stratalog.tier.store.availability import TierAvailability
from stratalog.tier.store.object_keys import log_prefix, manifest_key, segments_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import check_stored


@dataclass(frozen=True, slots=True)
class TierComponents:
    """Objects that the logs of one tier share. The ``Tier`` closes them."""

    store: TierStore
    fetcher: Fetcher
    page_cache: PageCache
    env: Env
    limits: Limits
    availability: TierAvailability
    read_only: bool
    authenticity: Authenticity


class TierLogReader(CheckedArguments):
    """The methods of ``TierLog`` that only read the tier. Thread-safe.

    The head is the latest manifest root of the log. ``view`` returns the state of the log in the head that was read
    last.

    If the store was unavailable when the log was opened, the log is in the assumed state until ``rejoin``. Then
    ``view`` returns the last known state from local disk, and ``refresh`` and ``root`` raise TierUnavailableError.

    Attributes:
        prefix: prefix of all keys of the log.
        components: objects that all logs of the tier share.
        availability: state of the tier's store.
    """

    def __init__(self, name: TopicPartition, topic_id: TopicId, components: TierComponents) -> None:
        self.name, self.topic_id, self.prefix = name, topic_id, log_prefix(name, topic_id)
        self.components, self.objects = components, components.store
        self.fetcher, self.availability = components.fetcher, components.availability
        self._lock = threading.RLock()  # guards the finder, the committer, and every change of _adopted and _assumed
        self._finder = self.new_finder()
        self.pages = self.new_pages(components.page_cache)
        self._adopted: tuple[Root | None, RemoteView] | None = None  # never changed in place: reads need no lock
        self._assumed: RemoteView | None = None
        self._rejoin: Callable[[], None] | None = None
        self._expected: tuple[int, str] | None = None  # version and identity that the head must continue
        ends_with_fork(self)

    def view(self) -> RemoteView:
        """Return the state of the log in the tier when the head was last read; in the assumed state, from local disk.

        If no head was read before, the call reads the head.
        """
        return self._assumed or self._state()[1]

    def refresh(self) -> RemoteView:
        """Read the latest manifest root from the store, and return the state of the log in the tier.

        Raises:
            TierUnavailableError: the store was unavailable, and the log has not rejoined its tier yet.
            StoreUntrustedError: the store declares that it creates objects atomically, but does not.
            CorruptManifestError: the head is damaged, or it does not continue the roots seen before.
            TamperedManifestError: the MAC of the head is wrong or missing, or the head does not continue the root that
                was set by ``expect``.
        """
        self._check_available()
        with self._lock:
            head = self._finder.find()
            return self._adopt(head.root if head else None)[1]

    def refresh_listed(self, version: int, began: ClockReading) -> RemoteView:
        """Read the latest root like ``refresh``, but with fewer requests, after a listing of the tier.

        The listing began at ``began``, and ``version`` is the version of the log's newest root in the listing. The call
        usually sends no request if that root was read before; otherwise it usually sends one.
        """
        self._check_available()
        with self._lock:
            head = self._finder.find_listed(version, began)
            return self._adopt(head.root if head else None)[1]

    def view_as_of(self, version_or_time: AsOf) -> RemoteView:
        """Return the log's state in the tier at an earlier version or time."""
        head = History(self.new_finder()).as_of(version_or_time)
        return self._view_of(head.root if head else None)

    def history(self) -> Iterator[Root]:
        """Yield the manifest roots that still exist, newest first."""
        return (head.root for head in History(self.new_finder()).newest_first())

    def new_finder(self) -> HeadFinder:
        """Return a finder of the log's latest root that has not read any root yet."""
        return HeadFinder(
            self.objects,
            self.name,
            self.topic_id,
            self.components.env.clock,
            limit_bytes=self.components.limits.manifest_bytes,
            authenticity=self.components.authenticity,
        )

    def new_pages(self, cache: PageCache | None = None) -> Pages:
        """Return a reader of the log's manifest pages; without ``cache``, it has its own, empty cache."""
        limit_bytes = self.components.limits.manifest_bytes
        return Pages(
            self.objects, self.name, self.topic_id, PageCache() if cache is None else cache, limit_bytes=limit_bytes
        )

    def check_writable(self) -> None:
        """Raise unless the tier can be used and was opened for writing.

        Raises:
            ReadOnlyError: the tier was opened for reading.
            TierUnavailableError, StoreUntrustedError: the tier cannot be used, for the same reasons as in ``refresh``.
        """
        if self.components.read_only:
            raise ReadOnlyError(f"the tier of {self.name} was opened for reading", self.objects.uri)
        self._check_available()

    @property
    def root(self) -> Root | None:
        """The manifest root that was read last; None if the log has none.

        If none was read before, the property reads the latest root.
        """
        return self._state()[0]

    def known_bytes(self) -> int:
        """Return the ``.log`` bytes of the segments in ``root``; 0 if there is no root, or if it cannot be read."""
        try:
            root = self.root
        except StorageError:  # the operation whose progress is shown reports the error
            return 0
        return 0 if root is None else root.size_bytes

    def entries(self, start: int, end: int, root: Root | None) -> list[StoredSegment]:
        """Return the segments of ``root`` above its log start that overlap the offsets [start, end).

        Return [] if ``root`` is None.
        """
        if root is None:
            return []
        return list(takewhile(lambda entry: entry.info.base_offset < end, walk(root, self.pages, start)))

    def stored_keys(self) -> set[str]:
        """Return the keys of all objects of the log's segments in the store, committed or not."""
        return {info.key for info in self.objects.list_all(segments_prefix(self.prefix))}

    def check_stored(self, entries: Iterable[StoredSegment]) -> None:
        """Raise ObjectNotFoundError if an object of the segments is missing or too short."""
        check_stored(self.objects, segments_prefix(self.prefix), entries)

    def expect(self, version: int, identity: str) -> None:
        """Set the root that the head must be or continue, by the version and the ``Root.identity`` on local disk.

        If the head is another root that does not continue this root, this call raises TamperedManifestError if the head
        was read before, otherwise the next read of the head. Nothing is compared if ``identity`` is "".
        """
        with self._lock:
            if identity and self._adopted is not None:
                self._check_expected(self._adopted[0], version, identity)
            else:
                self._expected = (version, identity) if identity else None

    # --- while the store is unavailable ------------------------------------------------------------------------------

    def may_open_without(self, error: StoreError) -> bool:
        """Return True if the log may be opened without the tier (``assume``) after ``view`` raised ``error``."""
        return self.availability.may_open_without(error)

    def assume(self, view: RemoteView) -> None:
        """Begin the assumed state: until ``rejoin``, ``self.view`` returns ``view``, which is from local disk."""
        with self._lock:
            self._assumed = view

    @property
    def is_assumed(self) -> bool:
        """True in the assumed state: ``view`` returns the last known state from local disk, not from the store."""
        return self._assumed is not None

    @property
    def is_here(self) -> bool:
        """True if the store is available and the log is not in the assumed state."""
        return self._assumed is None and self.availability.error is None

    def set_rejoin(self, rejoin: Callable[[], None]) -> None:
        """Set the function that ``unavailable_error`` calls to make the log rejoin its tier."""
        self._rejoin = rejoin

    def unavailable_error(self) -> StoreError:
        """Try to rejoin the tier by the function of ``set_rejoin``; return the error that a read must raise.

        The error is also returned if the log has rejoined the tier, because the read must be repeated. The function is
        not called while another thread tests the store.
        """
        if self._rejoin is not None and not self.availability.is_testing:
            with contextlib.suppress(StorageError):  # if the log was fenced, it has stopped and logged the error
                self._rejoin()
        return self.availability.unavailable()

    def rejoin(self) -> Root | None:
        """Read the latest root and end the assumed state (``is_assumed``); return the root, or None if there is none.

        Call ``availability.reach`` before. The caller must check if another writer has taken over the log meanwhile.

        Raises:
            TierUnavailableError, StoreUntrustedError: the last ``availability.reach`` failed.
        """
        self.availability.check()
        with self._lock:
            if self._assumed is not None:
                head = self._finder.find()
                self._adopt(head.root if head else None)
                self._assumed = None
            return self._state()[0]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _state(self) -> tuple[Root | None, RemoteView]:
        if self._adopted is None or self._assumed is not None:
            self.refresh()
        assert self._adopted is not None
        return self._adopted

    def _adopt(self, root: Root | None) -> tuple[Root | None, RemoteView]:
        """Store this root, which was read or committed, for ``view`` and ``root``. The caller holds _lock."""
        if self._expected is not None:
            self._check_expected(root, *self._expected)
            self._expected = None
        if self._adopted is None or root is not self._adopted[0]:
            self._adopted = root, self._view_of(root)
        return self._adopted

    def _check_expected(self, root: Root | None, version: int, identity: str) -> None:
        """Raise TamperedManifestError unless ``root`` is or continues the root that was set by ``expect``."""
        defect = ""
        # A repair may have replaced the expected root; then later roots have its stand-in id.
        known_ids = {identity.partition(" ")[0], stand_in_commit_id(self.prefix, version)}
        if root is None:
            defect = "the manifest is gone"
        elif root.mac is None:
            defect = "the newest root has no MAC, but an earlier root had one"
        elif root.version < version:
            defect = f"the newest root is version {root.version}"
        elif root.version == version and root.identity != identity:
            defect = f"version {version} is another root"
        elif root.version < version + RECENT_COMMITS and known_ids.isdisjoint(root.recent_commits):
            defect = f"version {root.version} does not continue it"
        if defect:
            key = manifest_key(self.prefix, root.version if root is not None else version)
            raise TamperedManifestError(
                f"{defect}: the note on local disk is about version {version} of {self.name}", key
            )

    def _view_of(self, root: Root | None) -> RemoteView:
        if root is None:
            return RemoteView()
        return RemoteView(
            root.version,
            root.log_start,
            root.high_watermark,
            PagedSegments(root, self.pages, self.fetcher, self.components.authenticity.entry_check(root)),
            root.leader_epochs,
            root.first_dirty_offset,
            root.identity,
            root.change == ChangeKind.DELETE,
        )

    def _check_available(self) -> None:
        """Raise the error of ``availability.unavailable`` if the tier is offline, or in the log's assumed state."""
        self.availability.check()
        if self._assumed is not None:
            raise self.availability.unavailable()
