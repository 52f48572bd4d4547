"""The engine: all logs of some log directories, and the duties over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from stratalog.cleaning.runner import RetentionResult, apply_retention
from stratalog.config.files import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.create import create_partition, new_topic_id
from stratalog.engine.logdir import LogDir
from stratalog.engine.notify import Notifier
from stratalog.engine.offload import OffloadResult, offload_log
from stratalog.errors import ClosedError, ConfigError, StorageError, TopicExistsError, UnknownTopicError
from stratalog.log.directory import format_topic_id, read_topic_id
from stratalog.log.load import LoadRequest, load
from stratalog.log.log import Log
from stratalog.model.events import LogOpened, LogRecovered
from stratalog.model.names import (
    PARTITION_METADATA_FILE,
    TopicId,
    TopicPartition,
    check_topic,
)
from stratalog.model.offsets import Durability
from stratalog.reading.parts import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topics import TopicEntry, TopicTable
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.tier.log import TierLog
from stratalog.tier.tier import Tier


class Engine:
    """Logs for reading and writing. A context manager; thread-safe.

    Logs that cannot be opened do not keep the others from serving: ``log`` raises what is wrong with them.

    Args:
        settings: all settings.
        host: opens components; taken over.
        tier: the opened tier, or None; taken over.
    """

    def __init__(self, settings: Settings, host: ComponentHost, tier: Tier | None) -> None:
        self._settings, self._host, self._tier = settings, host, tier
        self._notifier = Notifier(host.registry)
        self._dirs: list[LogDir] = []
        self._failed: dict[TopicPartition, StorageError] = {}
        self._closed = False
        try:
            for path in settings.engine.log_dirs:
                self._dirs.append(LogDir(host.segment_store(path, read_only=False)))
            self._topics = TopicTable(self._dirs[0].store, settings.topic_defaults, has_tier=tier is not None)
            for directory in self._dirs:
                self._open_logs(directory)
        except BaseException:
            self.close()
            raise

    # --- logs and topics ---------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All logs, sorted, those that could not be opened included."""
        return tuple(sorted({*self._logs(), *self._failed}))

    def topics(self) -> dict[str, TopicInfo]:
        """All topics, by name."""
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.partitions():
            grouped.setdefault(name.topic, []).append(name)
        logs = self._logs()
        return {
            topic: TopicInfo(
                topic,
                next((logs[name].topic_id for name in names if name in logs), None),
                tuple(name.partition for name in names),
                self._topics.config(topic),
            )
            for topic, names in grouped.items()
        }

    def log(self, topic: str, partition: int) -> Log:
        """One log.

        Raises:
            UnknownTopicError: it is not here.
            StorageError: what kept it from being opened.
        """
        self._check_open()
        name = TopicPartition(topic, partition)
        if name in self._failed:
            raise self._failed[name]
        found = self._logs().get(name)
        if found is None:
            raise UnknownTopicError(f"there is no {name} in {', '.join(self._settings.engine.log_dirs)}")
        return found

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic; each partition goes to the log directory with the fewest logs.

        Args:
            name: by Kafka's rules.
            partitions: how many, from 0 on.
            config: settings by Kafka's names; they go over the engine's defaults.

        Raises:
            InvalidTopicError, TopicExistsError, UnknownSettingError, ConfigError: nothing was created.
        """
        self._check_open()
        check_topic(name)
        if partitions < 1:
            raise ConfigError(f"a topic has at least 1 partition, not {partitions}")
        if any(found.topic == name for found in self.partitions()):
            raise TopicExistsError(f"topic {name} exists already")
        chosen = dict(config or {})
        checked = self._topics.checked(chosen, f"create_topic({name!r})")
        self._host.check_topic_config(checked)
        topic_id = new_topic_id(self._host.env)
        for partition in range(partitions):
            directory = min(self._dirs, key=lambda found: len(found.folders))
            create_partition(directory, TopicPartition(name, partition), topic_id)
        stored = checked.to_mapping()
        self._topics.put(name, TopicEntry(topic_id, {setting: stored[setting] for setting in chosen}))
        for directory in self._dirs:
            for found in [log for log in directory.folders if log.topic == name]:
                self._open_log(directory, found, LoadRequest(found, True, 0, None, None, True))
        return self.topics()[name]

    # --- duties ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything written durable, and store the checkpoints."""
        self._check_open()
        for log in self._logs().values():
            log.flush()
        self._write_checkpoints()

    def offload(self, logs: Iterable[TopicPartition] | None = None) -> tuple[OffloadResult, ...]:
        """Move every closed segment below the last stable offset to the tier, for topics with ``remote.storage.enable``.

        Can be repeated at any time: what the tier has is not sent again.

        Args:
            logs: only these; None is all.

        Returns:
            One result for each log with a tier.

        Raises:
            ConfigError: the engine has no tier.
            StoreError, FencedError: see there; segments sent before stay committed.
        """
        self._check_open()
        if self._tier is None:
            raise ConfigError("the engine has no tier: open it with tier=URI")
        results = []
        for log in self._chosen(logs):
            remote = self._tier_log(log)
            if remote is not None and not log.config.remote_log_copy_disable:
                results.append(offload_log(log, remote))
        return tuple(results)

    def apply_retention(
        self, logs: Iterable[TopicPartition] | None = None, *, dry_run: bool = False
    ) -> tuple[RetentionResult, ...]:
        """Delete and evict what each topic's cleanup policies say, over both tiers; ``dry_run`` only tells.

        Args:
            logs: only these; None is all.
            dry_run: change nothing.
        """
        self._check_open()
        now_ms = self._host.env.clock.now_ms()
        results = [
            apply_retention(log, self._policies(log.config), self._tier_log(log), now_ms=now_ms, dry_run=dry_run)
            for log in self._chosen(logs)
        ]
        if not dry_run:
            self._write_checkpoints()
        return tuple(results)

    @property
    def tier(self) -> Tier | None:
        """The opened tier."""
        return self._tier

    def close(self) -> None:
        """Close every log, leaving the directories as a clean stop of Kafka does. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._host.close)
            if self._tier is not None:
                stack.callback(self._tier.close)
            stack.callback(self._notifier.close)
            for directory in self._dirs:
                failed = any(name in directory.folders for name in self._failed)
                stack.callback(directory.close, failed=failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")

    def _logs(self) -> dict[TopicPartition, Log]:
        return {name: log for directory in self._dirs for name, log in directory.logs.items()}

    def _chosen(self, logs: Iterable[TopicPartition] | None) -> list[Log]:
        if logs is None:
            return [log for _, log in sorted(self._logs().items())]
        return [self.log(*name) for name in logs]

    def _open_logs(self, directory: LogDir) -> None:
        for name in directory.folders:
            if name in self._logs():
                other = "another log directory"
                self._failed[name] = ConfigError(f"{name} is in {directory.store.path()} and in {other}")
                continue
            try:
                self._open_log(directory, name, directory.request(name))
            except StorageError as error:
                self._failed[name] = error

    def _open_log(self, directory: LogDir, name: TopicPartition, request: LoadRequest) -> None:
        config = self._topics.config(name.topic)
        parts = self._host.parts(config)
        files = directory.store.open_log(directory.folders[name])
        loaded = load(files, parts, config, request)
        topic_id = self._topic_id(name, directory)
        remote = self._remote(name, topic_id, config)
        log = Log(
            name,
            topic_id,
            files,
            parts,
            config,
            loaded,
            remote=remote,
            notify=self._notifier,
            durability=Durability.of(self._settings.engine.durability),
        )
        directory.logs[name] = log
        if loaded.recovered_segments:
            self._notifier(
                LogRecovered(log=name, segments=loaded.recovered_segments, truncated_bytes=loaded.truncated_bytes)
            )
        offsets = log.offsets()
        self._notifier(LogOpened(log=name, log_start=offsets.log_start, log_end=offsets.log_end))

    def _topic_id(self, name: TopicPartition, directory: LogDir) -> TopicId:
        """Of ``partition.metadata``; the partitions of a topic older than topic ids get a new one, the same for all."""
        files = directory.store.open_log(directory.folders[name])
        found = read_topic_id(files)
        if found is not None:
            return found
        siblings = (
            read_topic_id(other.store.open_log(folder))
            for other in self._dirs
            for log, folder in other.folders.items()
            if log.topic == name.topic
        )
        topic_id = next((sibling for sibling in siblings if sibling is not None), None) or new_topic_id(self._host.env)
        files.replace_small(PARTITION_METADATA_FILE, format_topic_id(topic_id))
        return topic_id

    def _remote(self, name: TopicPartition, topic_id: TopicId, config: TopicConfig) -> TierLog | None:
        if self._tier is None or not config.remote_storage_enable:
            return None
        return self._tier.log(name, topic_id)

    def _tier_log(self, log: Log) -> TierLog | None:
        assert log.topic_id is not None
        return self._remote(log.name, log.topic_id, log.config)

    def _policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        return {name: self._host.policy(name) for name in config.cleanup_policy}

    def _write_checkpoints(self) -> None:
        for directory in self._dirs:
            directory.write_checkpoints()
