"""A tier: one object store that holds the closed segments of any number of logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.cache import CacheMetrics
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, ConfigError, CorruptManifestError, StoreError, UnknownComponentError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.head import ClockReading
from stratalog.tier.manifest.pages import PageCache
from stratalog.tier.manifest.root import ChangeKind, Root
from stratalog.tier.read.disk_cache import CacheFolder
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.store.availability import TierAvailability
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.log_listing import TierLogName, list_logs
from stratalog.tier.store.object_keys import deleted_topic_key, is_own_key, log_prefix, segments_prefix
from stratalog.tier.store.probe import ProbeResult, probe
from stratalog.tier.store.requests import StoreMetrics
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_log_reader import TierComponents
from stratalog.tier.upkeep.manifest_rebuild import Rebuilder, RebuildReport

_LOGGER: Final = logging.getLogger(__name__)


NOTHING_KNOWN: Final[Mapping[TierLogName, int]] = {}


@dataclass(frozen=True, slots=True)
class TierListing:
    """The result of a listing of a tier: the newest manifest version of each log, and the time when listing began."""

    versions: Mapping[TierLogName, int]
    began: ClockReading


@dataclass(frozen=True, slots=True)
class TierMetrics:
    """Metrics of a tier: the requests to its store, and the metrics of its caches of chunks and indexes in memory."""

    store: StoreMetrics
    chunks: CacheMetrics
    indexes: CacheMetrics


class Tier(CheckedArguments, Closeable):
    """One object store with the closed segments of many logs, for one engine or reader. Thread-safe; a context manager.

    Create a tier with ``Tier.open``.

    Attributes:
        availability: state of the store: if it can be used, and if several writers may use it.
        read_only: True if changes raise ReadOnlyError.
        fetcher: reads the bytes of segments in the tier.
    """

    def __init__(self, components: TierComponents) -> None:
        self.availability, self.read_only = components.availability, components.read_only
        self._store, self.fetcher, self._components = components.store, components.fetcher, components
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
        """Test the store with a few requests, and return a tier that owns the store; after an error, close the store.

        The test creates a small object twice, and deletes it. If the store does not refuse the second creation, or does
        not declare CREATE, the tier uses single-writer mode and logs a warning. With ``read_only``, the test only lists
        one key.

        Args:
            store: the object store; ``close`` of the tier closes it.
            layouts: the installed layouts.
            env: clock, files and random numbers.
            limits: sizes of caches, and the largest sizes of objects that are read.
            config: deadline and retries of requests, number of reader threads, the cache on disk.
            read_only: never write; changes raise ReadOnlyError.
            allow_offline: open the tier even if the test fails with a retriable error. Then ``availability.error`` is
                the error, and the tier is not used until ``availability.reach`` succeeds.

        Raises:
            BucketNotFoundError: the store's bucket or folder is missing.
            StorePermissionError: the credentials do not suffice.
        """
        test = partial(_probe_by_listing, store) if read_only else partial(probe, store, env)
        probed, failure = None, None
        try:
            probed = test()
        except BaseException as error:
            if not (allow_offline and isinstance(error, StoreError) and error.retriable):
                store.close()
                raise
            failure = error
        if probed is not None and not probed.shared:
            _LOGGER.warning("single-writer mode: uri=%s must have one writer at a time, %s", store.uri, probed.reason)
        folder = CacheFolder.open(config.tier_cache_dir, config.tier_cache_bytes, config.index_cache_file_bytes, env)
        fetcher = Fetcher(store, layouts, limits, threads=config.reader_threads, folder=folder)
        availability = TierAvailability(store.uri, env.clock, test, probed, failure, allow_offline=allow_offline)
        authenticity = Authenticity(layouts)
        return cls(TierComponents(store, fetcher, PageCache(), env, limits, availability, read_only, authenticity))

    @property
    def uri(self) -> str:
        """The store's location, without secrets."""
        return self._store.uri

    def log(self, log: TopicPartition, topic_id: TopicId) -> TierLog:
        """Return one log of the tier; until ``release``, each call returns the same object. Send no request.

        Raises:
            ClosedError: the tier is closed.
        """
        name = TierLogName(log, topic_id)
        with self._lock:
            if self._closed:
                raise ClosedError(f"the tier is closed uri={self.uri}")
            if name not in self._logs:
                self._logs[name] = TierLog(log, topic_id, self._components)
            return self._logs[name]

    def release(self, log: TopicPartition, topic_id: TopicId) -> None:
        """Drop the object that ``log`` returned, and free its memory.

        Readers call this method. An engine calls it only for the log of a deleted topic, after the log was collected.
        """
        with self._lock:
            self._logs.pop(TierLogName(log, topic_id), None)

    def logs(self) -> tuple[TierLogName, ...]:
        """Return all logs that have a manifest root, in the order of their keys.

        The log of a deleted topic has a root until ``TierLog.collect`` deletes it. One log costs at most one request,
        even if it has many objects.
        """
        return tuple(name for name, version in list_logs(self._store) if version is not None)

    def listing(
        self, topics: Collection[str] | None = None, known_versions: Mapping[TierLogName, int] = NOTHING_KNOWN
    ) -> TierListing:
        """Return all logs that have a manifest root, each with the version of its newest root.

        A reader compares the versions with those of an earlier listing to find the logs that have changed.

        Args:
            topics: names of the topics to list; None lists all.
            known_versions: ``versions`` of an earlier listing; with them, the call sends fewer requests.
        """
        began, versions = ClockReading.of(self._components.env.clock), dict[TierLogName, int]()
        for start in [""] if topics is None else sorted(f"{topic}-" for topic in topics):
            for name, version in list_logs(self._store, start, known_versions):
                if version is not None and (topics is None or name.log.topic in topics):
                    versions[name] = version
        return TierListing(versions, began)

    def was_collected(self, topic: str, topic_id: TopicId) -> bool:
        """Return True if a topic with this computed id was deleted, and its objects were collected."""
        key = deleted_topic_key(topic, topic_id)
        return any(info.key == key for info in self._store.list(key, limit=1))

    def lost(self) -> tuple[TierLogName, ...]:
        """Return the logs that need ``rebuild``: logs with segments but no manifest, or with an unfinished rebuild.

        The result also contains a log whose first offload is in progress.
        """
        return tuple(
            name
            for name, version in list_logs(self._store)
            if (self._has_segments(log_prefix(*name)) if version is None else self._lacks_segments(name))
        )

    def is_half_rebuilt(self, root: Root) -> bool:
        """Return True if a rebuild of the manifest was interrupted before ``root``, the latest root, had all segments.

        The call sends at most one request.
        """
        # The high watermark of a repaired manifest may be above its end offset, too, but this manifest lacks no segment.
        return root.is_half_rebuilt and self._has_segments(root.prefix, root.end_offset)

    def rebuild(self, name: TierLogName, *, dry_run: bool = False) -> RebuildReport:
        """Rebuild the manifest of a log from the footers of its objects; delete nothing. The call can be repeated.

        Stop the engine that writes to the log first: an engine that committed within the last minute would not notice
        the rebuilt manifest, and would continue its own.

        Args:
            name: the partition and the topic id. A tier can have several topics with the same name.
            dry_run: return the report without writing a root.

        Raises:
            ConfigError: the log has a manifest that was not made by a rebuild.
            StorageError: no object of the log describes a segment.
        """
        remote = self.log(*name)
        remote.refresh()
        root = remote.root
        if root is not None and root.change != ChangeKind.REBUILD:
            raise ConfigError(
                f"{name.log} {name.topic_id} has a manifest, version {root.version}, so there is nothing to rebuild"
            )
        rebuilder = Rebuilder(self._store, self.fetcher.layouts.all(), *name)
        report = rebuilder.run()
        if not dry_run:
            for entries in rebuilder.batches():
                remote.add_rebuilt(entries, report.start_offset, report.end_offset, leader_epoch=report.leader_epoch)
        return report

    def foreign(self, layout: str) -> dict[TierLogName, list[StoredSegment]]:
        """Return by log the segments that other software, such as a Kafka broker, wrote in this layout.

        Such segments have no manifest: the call lists all objects and reads each segment. The result is empty if the
        tier is empty, if stratalog wrote its first object, or if the layout is not installed.

        Raises:
            CorruptObjectError: a segment cannot be parsed.
        """
        first = self._store.list("", limit=1)
        if not first or is_own_key(first[0].key):
            return {}
        try:
            foreign_layout = self.fetcher.layouts.by_name(layout)
        except UnknownComponentError:
            return {}
        segments_by_log = dict[TierLogName, list[StoredSegment]]()
        for entry in foreign_layout.discover(list(self._store.list_all("")), self._store.read_exactly):
            segments_by_log.setdefault(TierLogName(entry.info.log, entry.info.topic_id), []).append(entry)
        return segments_by_log

    def _has_segments(self, prefix: str, start: int = 0) -> bool:
        """Return True if the log with this prefix has objects of segments at or above an offset; send one request.

        Notes of repairs, which can remain after the deletion of a log, do not count.
        """
        segments = segments_prefix(prefix)
        return bool(self._store.list(segments, after=f"{segments}{start:020d}", limit=1))

    def _lacks_segments(self, name: TierLogName) -> bool:
        """Return True if a rebuild made the root that was read last, and there are segments at or above its end.

        Then the rebuild was interrupted, or objects were missing, for example in an incomplete copy of a bucket. Return
        False if the root cannot be parsed.
        """
        try:
            root = self.log(*name).root
        except (CorruptManifestError, UnknownComponentError):
            return False
        if root is None or root.change != ChangeKind.REBUILD:
            return False
        return self._has_segments(root.prefix, root.end_offset)

    def open_logs(self) -> tuple[TierLog, ...]:
        """Return the objects that ``log`` has returned, except those that were released."""
        with self._lock:
            return tuple(self._logs.values())

    def metrics(self) -> TierMetrics:
        """Return the counts of requests since the tier was opened, and the current state of its caches in memory."""
        return TierMetrics(self._store.metrics(), self.fetcher.chunk_metrics, self.fetcher.index_metrics)

    def close(self) -> None:
        """Stop prefetching, wait for the prefetches in progress, and close the store. A second call does nothing."""
        with self._lock:
            self._closed = True
        self.fetcher.close()
        self._store.close()


def _probe_by_listing(store: TierStore) -> ProbeResult:
    """List one key, for a tier that is only read; return its ProbeResult."""
    store.list("", limit=1)
    return ProbeResult(shared=True)
