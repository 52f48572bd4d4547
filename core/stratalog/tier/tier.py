"""A tier: one object store that holds the closed segments of any number of logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Self

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.byte_cache import CacheMetrics
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, ConfigError, CorruptManifestError, StoreError, UnknownComponentError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import (
    TopicId,
    TopicPartition,
    after_log_prefix,
    log_prefix,
    manifest_key,
    manifest_prefix,
    parse_log_prefix,
    parse_manifest_key,
    segments_prefix,
)
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.log_head import TierComponents
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.head import ClockReading
from stratalog.tier.manifest.pages import PageCache
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.read.disk_cache import CacheFolder
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.store.availability import TierAvailability
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.probe import ProbeResult, probe
from stratalog.tier.store.request_metrics import StoreMetrics
from stratalog.tier.store.store import LIST_LIMIT, TierStore
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.manifest_rebuild import Rebuilder, RebuildProgress, RebuildReport

_LOGGER: Final = logging.getLogger(__name__)


class TierLogName(NamedTuple):
    """A log in a tier. A topic that was deleted and created again has the same name and another id."""

    log: TopicPartition
    topic_id: TopicId


NOTHING_KNOWN: Final[Mapping[TierLogName, int]] = {}


@dataclass(frozen=True, slots=True)
class TierListing:
    """The newest version of the manifest of each log, according to a listing that began at ``began``."""

    versions: Mapping[TierLogName, int]
    began: ClockReading


@dataclass(frozen=True, slots=True)
class TierMetrics:
    """Metrics of a tier: the requests to its store, and the content of its caches."""

    store: StoreMetrics
    chunks: CacheMetrics
    indexes: CacheMetrics


class Tier(CheckedArguments, Closeable):
    """One object store, probed and ready, for a whole engine or reader. Thread-safe; a context manager.

    ``Tier.open`` makes it.

    Attributes:
        availability: knows if the store can be used, and if by several writers.
        read_only: True if changes raise ReadOnlyError.
    """

    def __init__(
        self,
        store: TierStore,
        fetcher: Fetcher,
        *,
        env: Env,
        limits: Limits,
        availability: TierAvailability,
        read_only: bool,
    ) -> None:
        self.availability, self.read_only = availability, read_only
        self._store, self._fetcher = store, fetcher
        self._components = TierComponents(
            store, fetcher, PageCache(), env, limits, availability, read_only, Authenticity(fetcher.layouts)
        )
        self._logs: dict[TierLogName, TierLog] = {}  # under _lock
        self._lock = threading.Lock()
        self._closed = False
        ends_with_fork(self)

    @classmethod
    def open(
        cls,
        store: TierStore,
        layouts: LayoutTable,
        *,
        env: Env,
        limits: Limits,
        config: EngineConfig,
        read_only: bool = False,
        allow_offline: bool = False,
    ) -> Self:
        """Probe the store and take ownership of it; if that fails, the store is closed.

        To write, a probe object is created twice and deleted. If the store does not refuse the second creation, or does
        not promise to refuse it, the tier uses single-writer mode and logs a warning. To read, one key is listed.

        Args:
            store: closed by ``close``.
            layouts: the layouts that may be needed.
            env: clock and chance.
            limits: bounds of caches and of what is read.
            config: deadline and retries of requests, number of reader threads, the cache on disk.
            read_only: never write; changes raise ReadOnlyError.
            allow_offline: open the tier even if the store does not answer. Then ``availability.away`` has the error, logs are
                opened with what local disk knows of them, and nothing changes until ``availability.reach`` succeeds.

        Raises:
            BucketNotFoundError: the store's bucket or folder is missing.
            StorePermissionError: the credentials do not suffice.
            StoreError: the store failed.
        """
        tried = partial(_listed, store) if read_only else partial(probe, store, env)
        probed, away = None, None
        try:
            probed = tried()
        except BaseException as error:
            if not (allow_offline and isinstance(error, StoreError) and error.retriable):
                store.close()
                raise
            away = error
        if probed is not None and not probed.shared:
            _LOGGER.warning("single-writer mode: uri=%s must have one writer at a time, %s", store.uri, probed.reason)
        folder = CacheFolder.open(config.tier_cache_dir, config.tier_cache_bytes, config.index_cache_file_bytes, env)
        fetcher = Fetcher(store, layouts, limits, threads=config.reader_threads, folder=folder)
        availability = TierAvailability(store.uri, env.clock, tried, probed, away, allow_offline=allow_offline)
        return cls(store, fetcher, env=env, limits=limits, availability=availability, read_only=read_only)

    @property
    def shared(self) -> bool:
        """True if several writers may use the store."""
        return self.availability.shared

    @property
    def reason(self) -> str:
        """The reason if several writers may not use the store; "" if they may, or if the tier is only read."""
        return self.availability.reason

    @property
    def uri(self) -> str:
        """The store's location, without secrets."""
        return self._store.uri

    def log(self, log: TopicPartition, topic_id: TopicId) -> TierLog:
        """Return the tiered part of a log, the same object at each call until ``release``; sends no request yet."""
        name = TierLogName(log, topic_id)
        with self._lock:
            if self._closed:
                raise ClosedError(f"the tier is closed uri={self.uri}")
            if name not in self._logs:
                self._logs[name] = TierLog(log, topic_id, self._components)
            return self._logs[name]

    def release(self, log: TopicPartition, topic_id: TopicId) -> None:
        """Drop the object of a log, which holds the entries of its root; for readers."""
        with self._lock:
            self._logs.pop(TierLogName(log, topic_id), None)

    def logs(self) -> tuple[TierLogName, ...]:
        """Return all logs with a committed root, by key; one listing request for up to 1,000 keys, or a large log."""
        return tuple(name for name, version in self._listed() if version is not None)

    def listing(
        self, topics: Collection[str] | None = None, known: Mapping[TierLogName, int] = NOTHING_KNOWN
    ) -> TierListing:
        """Return the logs as ``logs``, with the newest version of each; the listing shows which logs have changed.

        Args:
            topics: list only the objects of topics with these names; None lists all.
            known: versions that were seen before; if a log has many roots, those up to this version are skipped.
        """
        began, found = ClockReading.of(self._components.env.clock), dict[TierLogName, int]()
        for start in [""] if topics is None else sorted(f"{topic}-" for topic in topics):
            for name, version in self._listed(start, known):
                if version is not None and (topics is None or name.log.topic in topics):
                    found[name] = version
        return TierListing(found, began)

    def lost(self) -> tuple[TierLogName, ...]:
        """Return the logs that need ``rebuild``: those with objects only, and those with an unfinished rebuild.

        A log whose first offload is in progress also has objects and no manifest. The heads of all other logs are read.
        """
        return tuple(name for name, version in self._listed() if version is None or self._is_half_rebuilt(name))

    def rebuild(
        self, name: TierLogName, *, dry_run: bool = False, progress: RebuildProgress | None = None
    ) -> RebuildReport:
        """Rebuild the manifest of a log from the footers of its objects; deletes nothing and can be repeated.

        The log must have no writer meanwhile. An engine that wrote to it before stops at its next commit, unless it
        committed within the last minute: then it still considers its own root the latest. Stop the engine first.

        Raises:
            ConfigError: the log has a manifest.
            StorageError: no object describes a segment.
            StoreError: the store failed or refused; call again.
        """
        remote = self.log(*name)
        remote.refresh()
        root = remote.root
        if root is not None and root.change != ChangeKind.REBUILD:
            raise ConfigError(
                f"{name.log} {name.topic_id} has a manifest, version {root.version}, so there is nothing to rebuild"
            )
        rebuilder = Rebuilder(self._store, self._fetcher.layouts.all(), *name, progress)
        report = rebuilder.run()
        if not dry_run:
            for entries in rebuilder.batches():
                remote.add_rebuilt(entries, report.start_offset, leader_epoch=report.leader_epoch)
        return report

    def foreign(self, layout: str) -> dict[TierLogName, list[StoredSegment]]:
        """Return the segments that other software wrote in this layout, without manifests.

        The call lists all objects and reads each segment. The result is empty if stratalog's own objects come first, or
        if the layout is not installed.

        Raises:
            CorruptObjectError: a segment cannot be understood.
        """
        first = self._store.list("", limit=1)
        if not first or parse_log_prefix(first[0].key) is not None:
            return {}
        try:
            reading = self._fetcher.layouts.by_name(layout)
        except UnknownComponentError:
            return {}
        found = dict[TierLogName, list[StoredSegment]]()
        for stored in reading.discover(list(self._store.list_all("")), self._store.read_exactly):
            found.setdefault(TierLogName(stored.info.log, stored.info.topic_id), []).append(stored)
        return found

    @property
    def fetcher(self) -> Fetcher:
        """The reader of the bytes of segments."""
        return self._fetcher

    def _is_half_rebuilt(self, name: TierLogName) -> bool:
        """Return True if the head is a rebuilt one and there are objects behind its end offset."""
        remote = self.log(*name)
        try:
            remote.refresh()
        except (CorruptManifestError, UnknownComponentError):
            return False
        root = remote.root
        if root is None or root.change != ChangeKind.REBUILD:
            return False
        prefix = segments_prefix(root.prefix)
        return bool(self._store.list(prefix, after=f"{prefix}{root.end_offset:020d}", limit=1))

    def _listed(
        self, start: str = "", known: Mapping[TierLogName, int] | None = None
    ) -> Iterator[tuple[TierLogName, int | None]]:
        """Yield the logs whose keys begin with ``start``, with a version of their roots; None if a log has none.

        If a page of the listing ends between two keys of a log, the next page begins after the last key of that log. With
        ``known``, the version is the newest one: the next page begins within the log if the log may have more roots.
        """
        seen = after = ""
        name: TierLogName | None = None
        newest: int | None = None
        while True:
            page = self._store.list(start, after=after)
            for info in page:
                if not seen or not info.key.startswith(seen):
                    if name is not None:
                        yield name, newest
                    seen = _prefix_of(info.key)
                    named = parse_log_prefix(info.key) if seen else None
                    name, newest = TierLogName(*named) if named is not None else None, None
                version = parse_manifest_key(seen, info.key) if name is not None else None
                newest = newest if version is None else version  # keys ascend, and so do versions
            if len(page) < LIST_LIMIT:
                break
            after = page[-1].key
            if name is not None and (known is None or not after.startswith(manifest_prefix(seen))):
                after = after_log_prefix(seen)
            elif name is not None and known is not None:
                after = max(after, manifest_key(seen, max(known.get(name, 0) - 1, 0)))
        if name is not None:
            yield name, newest

    def opened(self) -> tuple[TierLog, ...]:
        """Return the logs that ``log`` was called for so far."""
        with self._lock:
            return tuple(self._logs.values())

    def metrics(self) -> TierMetrics:
        """Return the counts of requests and the state of caches since the tier was opened."""
        return TierMetrics(self._store.metrics(), self._fetcher.chunk_metrics, self._fetcher.index_metrics)

    def close(self) -> None:
        """Stop prefetching, wait for the requests in progress, and close the store. A second call does nothing."""
        with self._lock:
            self._closed = True
        self._fetcher.close()
        self._store.close()


def _listed(store: TierStore) -> ProbeResult:
    """Probe a store that is only read."""
    store.list("", limit=1)
    return ProbeResult(shared=True)


def _prefix_of(key: str) -> str:
    """Return the prefix of the log that ``key`` belongs to; "" if it belongs to no log or is spelled in another way."""
    named = parse_log_prefix(key)
    prefix = log_prefix(*named) if named else ""
    return prefix if key.startswith(prefix) else ""
