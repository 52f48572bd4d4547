"""Opener of an engine's logs: combines each log's folder with its settings, topic id and tier part.

The logs of a directory are loaded in parallel.

Source: apache/kafka LogManager.loadLogs, ``num.recovery.threads.per.data.dir``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.notifier import Notifier
from stratalog.engine.open.offline_tier import rejoin
from stratalog.env import Clock
from stratalog.env.progress import Progress, ProgressSum, no_progress
from stratalog.env.threads import all_results, outcomes
from stratalog.errors import (
    ConfigError,
    CorruptCheckpointError,
    LogDirError,
    PluginError,
    StorageError,
    StoreError,
    UnknownComponentError,
)
from stratalog.log.durability.subscribers import Background
from stratalog.log.folder.directory_state import read_topic_id, store_topic_id
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.load.tier_at_opening import read_tier
from stratalog.log.log import Log
from stratalog.log.open_log import LogEnvironment, OpenRequest
from stratalog.log.state.log_settings import LogSettings
from stratalog.model.events import LogRecovered
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import Durability, Watermark
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.topic_table import TopicTable
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.manifest.root import TopicNote
from stratalog.tier.store.store import is_of_store
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

_LOGGER: Final = logging.getLogger(__name__)
_WARM_UP: Final = 16
_SAMPLE: Final = 64
_MANY: Final = 512  # fewer logs load in less than a second, with and without threads


class LogOpener:
    """Factory of an engine's logs, opened for writing. Closes none of its arguments.

    Attributes:
        partitions: number of partitions of each topic, from the inventory; {} without an inventory.
        notify: queues an event for the listeners.
    """

    def __init__(
        self,
        host: ComponentHost,
        tier: Tier | None,
        topics: TopicTable,
        dirs: Sequence[LogDir],
        notifier: Notifier,
        progress: ProgressSum,
        background: Background,
    ) -> None:
        self._settings, self._host, self._tier = host.settings.engine, host, tier
        self._background = background
        self._topics, self._dirs, self.notify, self._progress = topics, dirs, notifier, progress
        self.partitions: Mapping[str, int] = {}

    def open_all(
        self, directory: LogDir, names: Sequence[TopicPartition]
    ) -> tuple[list[Log], dict[TopicPartition, StorageError]]:
        """Open logs of one directory, several in parallel. Return the opened logs, and the errors of other logs.

        The opened logs are added to ``directory.logs``, but not published in ``OpenLogs``.
        """
        loadings, opened_logs, failed = list[Loading](), list[Log](), dict[TopicPartition, StorageError]()
        for name in names:
            request = LoadRequest.of(directory.checkpoints.stored, name, writable=True)
            try:
                loadings.append(self._prepare_loading(directory, name, request))
            except StorageError as error:
                failed[name] = error
        self._read_tiers(loadings)
        threads, clock = self._settings.recovery_threads, self._host.env.clock
        with contextlib.closing(load_all(loadings, threads, self._progress, clock)) as results:
            for loading, result in results:
                try:
                    log = directory.logs[loading.name] = self._open_loaded(directory, loading, result)
                    opened_logs.append(log)
                except StorageError as error:
                    failed[loading.name] = error
        return opened_logs, failed

    def _read_tiers(self, loadings: Sequence[Loading]) -> None:
        """Read the newest manifest root of each log that has a tier, several in parallel.

        Each root needs two requests, one after the other. Errors are ignored: the open of the log raises them. After a
        failure of the store, no further root is read.
        """
        store_failed = threading.Event()

        def read(log: tuple[TierLog, LogFiles]) -> None:
            remote, files = log
            if not remote.is_here or store_failed.is_set():
                return
            try:
                read_tier(remote, files)
            except StorageError as error:
                if is_of_store(error):
                    store_failed.set()
                if isinstance(error, StoreError):
                    remote.may_open_without(error)  # if True, the open of the log sends no request

        logs = [(loading.remote, loading.files) for loading in loadings if loading.remote is not None]
        all_results(outcomes(logs, read, self._settings.reader_threads, "stratalog-tier-heads"))

    def open(self, directory: LogDir, name: TopicPartition, request: LoadRequest) -> Log:
        """Open one log without adding it to ``directory.logs``.

        Raises:
            StorageError: the log cannot be loaded, has the topic id of an earlier topic, or needs a missing plugin.
        """
        loading = self._prepare_loading(directory, name, request)
        return self._open_loaded(directory, loading, loading.run())

    def _prepare_loading(self, directory: LogDir, name: TopicPartition, request: LoadRequest) -> Loading:
        config = self._topics.config(name.topic)
        components, missing = self._host.available_components(config)
        refusal = None if missing is None else _refusal(name, missing)
        files = directory.files_of(name)
        topic_id = self._topic_id(name, files)
        load_request = replace(
            request,
            producer_expiration_ms=self._settings.producer_expiration_ms,
            is_replicated=self._settings.watermark == Watermark.EXTERNAL,
        )
        if refusal is not None:
            load_request = replace(load_request, writable=False)
        return Loading(
            name, files, components, config, topic_id, self.remote(name, topic_id, config), load_request, refusal
        )

    def _open_loaded(self, directory: LogDir, loading: Loading, loaded: LoadedLog | StorageError) -> Log:
        if isinstance(loaded, StorageError):
            raise loaded
        if loading.refusal is not None:
            if not loaded.segments:
                raise loading.refusal
            _LOGGER.warning("%s", loading.refusal)
        watermark, stored = Watermark(self._settings.watermark), directory.checkpoints.stored
        high_watermark = stored.high_watermarks.get(loading.name)
        if high_watermark is None:
            high_watermark = loading.request.high_watermark
        if high_watermark is None and watermark is Watermark.EXTERNAL:
            high_watermark = 0  # as in Kafka: without a checkpoint, the records may not be replicated
        log = Log(
            OpenRequest(loading.name, loading.topic_id, loading.files, loaded, high_watermark, loading.refusal),
            LogSettings(loading.config, loading.components, loading.remote),
            LogEnvironment(
                notify=self.notify,
                durability=Durability.of(self._settings.durability),
                watermark=watermark,
                on_offline=directory.take_offline,
                store_bounds=directory.checkpoints.write,
                background=self._background,
            ),
        )
        if loading.remote is not None and loading.remote.is_assumed:
            loading.remote.set_rejoin(partial(rejoin, log, loading.remote))
        log.maintenance.resume_cleaning(stored.dirty_starts.get(loading.name))
        directory.checkpoints.keep_tiered_start(log, loading.request.log_start)
        if loaded.recovered_segments:
            recovered = LogRecovered(
                log=loading.name, segments=loaded.recovered_segments, truncated_bytes=loaded.truncated_bytes
            )
            self.notify(recovered)
        return log

    def _topic_id(self, name: TopicPartition, files: LogFiles) -> TopicId:
        """Return the topic id in a partition's ``partition.metadata``; create the file if it is missing.

        Raises:
            ConfigError: the partition belongs to an earlier topic of the same name.
        """
        folder_id, stored_id = read_topic_id(files), self._topics.topic_id(name.topic)
        if folder_id is not None:
            if stored_id is not None and stored_id != folder_id:
                self._check_not_of_another(name, folder_id, stored_id)
            return folder_id
        # The topic is from a Kafka release without topic ids (KIP-516): all of its partitions get the same id.
        siblings = (sibling for sibling in self._ids_of(name.topic) if sibling is not None)
        topic_id = stored_id or next(siblings, None) or TopicId.random(self._host.env.chance)
        store_topic_id(files, topic_id)
        return topic_id

    def _check_not_of_another(self, name: TopicPartition, folder_id: TopicId, stored_id: TopicId) -> None:
        """Raise ConfigError if some partition of the topic has ``stored_id``, the id in the topics file.

        Then ``folder_id``, the id in the folder of partition ``name``, is the id of an earlier topic.

        Source: apache/kafka UnifiedLog, its InconsistentTopicIdException.
        """
        # If no partition has the id in the topics file, a broker has deleted the topic and created it again.
        if stored_id in self._ids_of(name.topic):
            raise ConfigError(
                f"{name} has topic id {folder_id.text}, but topic {name.topic} has {stored_id.text}: the folder is from "
                "an earlier topic of this name; move the folder to another place"
            )

    def _ids_of(self, topic: str) -> Iterator[TopicId | None]:
        """Iterate over the readable topic ids in the folders of a topic's partitions; None if a folder has no id."""
        for directory in self._dirs:
            for log, folder in list(directory.folders.items()):
                if log.topic == topic:
                    # The open of that partition reports the error.
                    with contextlib.suppress(CorruptCheckpointError, LogDirError):
                        yield read_topic_id(directory.store.open_log(folder))

    @property
    def has_tier(self) -> bool:
        """True if the engine has a tier."""
        return self._tier is not None

    def remote(self, name: TopicPartition, topic_id: TopicId, config: TopicConfig) -> TierLog | None:
        """Return the tier part of a log, or None if the engine or the topic has no tier."""
        if self._tier is None or not config.remote_storage_enable:
            return None
        return self._tier.log(name, topic_id)

    def note_of(self, topic: str) -> TopicNote:
        """Return the number of partitions and the settings of a topic, to be stored in the tier for its readers.

        Only settings that were set for the topic itself are included.
        """
        partitions = [
            log.partition for directory in self._dirs for log in list(directory.folders) if log.topic == topic
        ]
        count = max(max(partitions, default=0) + 1, self.partitions.get(topic, 0))
        return TopicNote(count, self._topics.own_settings(topic))

    def remote_of(self, log: Log) -> TierLog | None:
        """Return the tier part of an open log, or None if the engine or the topic has no tier."""
        assert log.topic_id is not None
        return self.remote(log.name, log.topic_id, log.config)

    def connect_remote(self, log: Log) -> TierLog | None:
        """Return the tier part of an open log, ready for changes, or None if the engine or the topic has no tier.

        If the store was unavailable when the log was opened, the call connects the log now. Raises the errors of
        ``rejoin``.
        """
        remote = self.remote_of(log)
        if remote is not None:
            rejoin(log, remote)
        return remote


def _refusal(name: TopicPartition, missing: PluginError) -> UnknownComponentError:
    refusal = UnknownComponentError(
        f"{name} is read-only and slow to read, because an index format of its topic cannot be used: {missing}; or "
        "change index.formats of the topic; then open the engine again"
    )
    refusal.__cause__ = missing
    return refusal


@dataclass(frozen=True, slots=True)
class Loading:
    """A log to load. ``refusal`` is the reason why the log is read-only; None if the log is writable."""

    name: TopicPartition
    files: LogFiles
    components: Components
    config: TopicConfig
    topic_id: TopicId
    remote: TierLog | None
    request: LoadRequest
    refusal: StorageError | None = None

    def run(self, progress: Progress = no_progress) -> LoadedLog:
        """Load the log. Raises the errors of the function ``load`` of ``stratalog.log``."""
        return load(self.files, self.components, self.config, self.request, progress)


def load_all(
    loadings: Sequence[Loading], threads: int, progress: ProgressSum, clock: Clock
) -> Generator[tuple[Loading, LoadedLog | StorageError], None, None]:
    """Load logs in parallel, and then yield each log with its result or its error, in the given order.

    If the iteration ends early, the remaining loaded logs are closed.

    Raises:
        Exception: the first error that is not a StorageError. All loaded logs were closed.
    """
    results = _load_measured(loadings, threads, progress, clock)
    unexpected = [
        result for result in results if isinstance(result, BaseException) and not isinstance(result, StorageError)
    ]
    yielded_count = 0
    try:
        if unexpected:
            raise unexpected[0]
        for loading, result in zip(loadings, results, strict=True):
            yielded_count += 1
            if isinstance(result, LoadedLog | StorageError):
                yield loading, result
    finally:
        for result in results[yielded_count:]:
            if isinstance(result, LoadedLog):
                for segment in result.segments:
                    segment.close()


def _load_measured(
    loadings: Sequence[Loading], threads: int, progress: ProgressSum, clock: Clock
) -> list[LoadedLog | Exception]:
    """Return the result or the error of each log. If there are many clean logs, first measure if threads are faster."""

    def load(part: Sequence[Loading], at_a_time: int) -> list[LoadedLog | Exception]:
        return outcomes(part, lambda loading: loading.run(progress.part()), at_a_time, "stratalog-recovery")

    if threads == 1 or len(loadings) < _MANY or not all(loading.request.clean for loading in loadings):
        return load(loadings, threads)
    # For clean logs in the page cache, threads compete for the interpreter lock, which doubles the time. If the files
    # are not cached, threads wait for the disk in parallel.
    results, durations_ns = load(loadings[:_WARM_UP], threads), dict[int, int]()  # the first logs include one-time work
    for thread_count in (threads, 1):
        began_ns = clock.monotonic_ns()
        results += load(loadings[len(results) : len(results) + _SAMPLE], thread_count)
        durations_ns[thread_count] = clock.monotonic_ns() - began_ns
    return results + load(loadings[len(results) :], 1 if durations_ns[1] < durations_ns[threads] else threads)
