"""The engine: all logs of some log directories, their producers and consumers, and their duties."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Final, Self

from stratalog.client.clients import Clients
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties.duties import Duties
from stratalog.engine.duties.service_runner import Services
from stratalog.engine.engine_clients import EngineClients
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.tiering.attach_tier import Attach
from stratalog.env.deadlines import OverdueError
from stratalog.env.forks import ends_with_fork
from stratalog.env.progress import ProgressSum
from stratalog.errors import OutOfResourcesError, PluginError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topic_table import TopicSetting
from stratalog.spi.service_contract import Service
from stratalog.tier.tier import Tier

_LEAST_STOP_S: Final = 0.1  # each call into a plugin gets at least this long while the engine closes


class Engine(EngineClients):
    """All logs of some log directories, for reading and writing. A context manager; thread-safe.

    If a log cannot be opened, the other logs are served, and ``log`` raises its error. ``open_engine`` creates the
    engine. After ``close``, ``log``, ``producer``, ``consumer`` and all other methods that need open logs raise
    ClosedError.

    Args:
        host: opens components, and has all settings; the engine closes it.
        tier: the opened tier, or None; the engine closes it.
        progress: receives the progress of recoveries.
        attach: topics to take over from the tier into empty directories; None for no attach.

    Attributes:
        attached: descriptions of the logs that were taken over when the engine was opened; () without ``attach``.
    """

    def __init__(
        self, host: ComponentHost, tier: Tier | None, progress: ProgressSum, *, attach: Attach | None = None
    ) -> None:
        ends_with_fork(self)
        self._tier, self._calls, settings = tier, host.registry.calls, host.settings.engine
        self._stop_s = settings.service_stop_ms / 1000
        with contextlib.ExitStack() as stack:  # closed by close(), or here after an error
            stack.callback(host.close)
            if tier is not None:
                stack.callback(tier.close)
            self._clients = Clients(self, host.available_components(TopicConfig())[0], self._compact, settings)
            self._services = Services(host)
            stack.callback(self._services.close)
            forget_offsets = self._clients.offsets.forget_topic
            logs = self._logs = EngineLogs(host, tier, progress, forget_offsets, attach)
            stack.callback(logs.close)
            self.attached = logs.attached
            abort_expired = self._clients.coordinator.abort_expired
            self._duties = Duties(host, logs.opener, logs.open_logs, logs.tiering, abort_expired)
            stack.callback(self._duties.close)
            self._resources = stack.pop_all()

    def __repr__(self) -> str:
        return f"Engine({self._logs.open_logs.places()!r}, logs={len(self.partitions())})"

    # --- logs and topics ---------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted, including logs that could not be opened."""
        return self._logs.open_logs.names()

    def topics(self) -> dict[str, TopicInfo]:
        """Return the descriptions of all topics, by name, including topics whose logs could not be opened."""
        return self._logs.topics()

    def log_directories(self) -> dict[str, tuple[TopicPartition, ...]]:
        """Return the names of the open logs in each log directory in service, by the path of the directory.

        Raises:
            StorageError: no log directory is in service.
        """
        self._logs.check_open()
        return {directory.store.path(): tuple(sorted(directory.logs)) for directory in self._logs.open_logs.online()}

    def offline_log_directories(self) -> tuple[str, ...]:
        """Return the paths of the log directories that are out of service."""
        self._logs.check_open()
        open_logs = self._logs.open_logs
        failed = (directory.store.path() for directory in open_logs.dirs if directory.failure is not None)
        return (*failed, *open_logs.unreached)

    @property
    def cluster_id(self) -> str | None:
        """The cluster id that a broker stored in ``meta.properties`` of a log directory; None if there is none."""
        identities = (directory.identity for directory in self._logs.open_logs.dirs)
        return next((identity["cluster.id"] for identity in identities if "cluster.id" in identity), None)

    @property
    def topic_changes(self) -> int:
        """Number of changes of topics since the engine was opened.

        The number increases after each creation, change of settings, move or deletion, even after a failed one. A
        program that keeps results of ``topics`` or ``log`` must call these methods again when the number has changed.
        """
        return self._logs.changes

    def topic_settings(self, name: str) -> dict[str, TopicSetting]:
        """Return all settings of a topic by name, each with its value, default, source and description.

        Raises:
            UnknownTopicError: the topic does not exist here.
        """
        return self._logs.settings(name)

    def log(self, topic: str, partition: int | None = None) -> Log:
        """Return one log. ``partition`` may be omitted if the topic has one partition.

        Raises:
            UnknownTopicError: the log does not exist here.
            LogDirOfflineError: no available log directory has the log, but an unavailable directory may have it.
            ConfigError: ``partition`` is omitted, and the topic has several partitions.
            SystemLimitError: the process has too many open files; a later call opens the log.
            StorageError: the error with which the log could not be opened.
        """
        return self._logs.log(topic, partition)

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic; each partition is created in the log directory with the fewest logs.

        The topic becomes visible when all its partitions exist. A crash can leave a topic with fewer partitions.

        Args:
            name: name of the topic, according to Kafka's rules.
            partitions: number of partitions.
            config: settings by Kafka's names; they override the engine's defaults.

        Raises:
            InvalidTopicError, TopicExistsError, UnknownSettingError, ConfigError: nothing was created.
            PluginError: a setting names a component that is not installed or cannot be opened; nothing was created.
            LogDirOfflineError: a log directory is unavailable and may contain the topic; nothing was created.
            StorageError: there are two cases. Either the committed offsets of a deleted topic with this name cannot be
                deleted, and nothing was created. Or the creation failed, for example with DiskFullError, and all new
                partitions were removed. If the disk does not allow the removal, ``partitions`` lists the remaining
                partitions, and ``log`` raises an error until the engine is opened again or the topic is deleted.
        """
        return self._logs.change(name, lambda changes: changes.create(name, partitions, config or {}))

    def create_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic: all of the new partitions, or none. Stored records stay in their partitions.

        After the call, the partition of a key may change: a new record may be in another partition than an older record
        with the same key. Open producers use the new partitions for their next records.

        Args:
            name: name of the topic.
            partitions: number of partitions that the topic has afterwards.

        Raises:
            UnknownTopicError: the topic does not exist here.
            ConfigError: ``partitions`` is not above the topic's present number of partitions, or is above
                ``limits.topic.partitions``.
            LogDirOfflineError: a log directory is unavailable and may contain partitions of the topic.
            StorageError: the first partition could not be opened, or the creation failed, for example with
                DiskFullError. The new partitions were removed; see ``create_topic``.
        """
        return self._logs.change(name, lambda changes: changes.create_partitions(name, partitions))

    def alter_topic(self, name: str, config: Mapping[str, object], *, only_check: bool = False) -> TopicInfo:
        """Change settings of a topic and of its open logs. The change is durable when the method returns.

        Args:
            name: name of an existing topic.
            config: settings by Kafka's names; None resets a setting to the engine's default.
            only_check: True to change nothing, and only raise the error with which the settings are refused. The check
                does not detect errors of the tier or of the disk.

        Raises:
            UnknownTopicError, UnknownSettingError, ConfigError: nothing was changed.
            PluginError: a setting names a component that is not installed or cannot be opened; nothing was changed.
            LogDirOfflineError: a log directory is unavailable; nothing was changed.
            StorageError: the tier cannot be read, the tier cannot be changed for a new policy in ``cleanup.policy``, or
                the settings cannot be stored; nothing was changed. In three more cases, a part of the change was made,
                and the call must be repeated. (1) The tier failed while ``remote.storage.enable`` was being disabled:
                some logs may have no segments in the tier any more. (2) A log cannot begin a new segment, which a
                change of ``record.version`` requires: the settings are stored, but that log and the logs after it still
                use the earlier settings. (3) The checkpoints cannot be stored after a change of ``record.version``: the
                settings apply.
        """
        info = self._logs.change(
            name, lambda changes: changes.alter(name, config, only_check=only_check), only_check=only_check
        )
        if not only_check and "record.version" in config:  # recovery begins after the batches of the earlier format
            self._duties.write_checkpoints()
        elif not only_check and "cleanup.policy" in config:  # a new policy compacts the log from its start
            self._write_checkpoints_later_if_full()
        return info

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, including the records in the tier, and its committed offsets.

        The folders of the partitions are renamed to ``-delete`` at once. The folders are removed after
        ``file.delete.delay.ms``, or when the engine is closed. A failed call can be repeated. In the tier, only logs
        that are open here are deleted; a warning is logged for each other log.

        Raises:
            UnknownTopicError: the topic does not exist here.
            LogDirOfflineError: a log directory is unavailable and may contain partitions of the topic.
            StoreError, FencedEpochError: the tier cannot be changed; nothing on local disk was changed.
            StorageError: a folder cannot be renamed, and partitions with lower numbers are deleted already; or the
                partitions are deleted, but the committed offsets of the topic could not be deleted.
        """
        self._logs.change(name, lambda changes: changes.delete(name))
        self._write_checkpoints_later_if_full()

    def _write_checkpoints_later_if_full(self) -> None:
        """Store the checkpoints after a completed change of a topic. If the disk is full, a duty stores them later."""
        with contextlib.suppress(OutOfResourcesError):
            self._duties.write_checkpoints()

    def move_partition(self, topic: str, partition: int, log_dir: str | os.PathLike[str]) -> Log:
        """Move a partition to another of the engine's log directories, and return the log that is open there.

        The log is closed while it is copied. From then on, ``Log`` objects that were returned before raise ClosedError.
        If the partition is in ``log_dir`` already, nothing changes.

        Raises:
            UnknownTopicError: the partition does not exist here.
            ConfigError: the engine has no such directory.
            NotAFileError: ``log_dir`` has a folder of the partition already.
            StorageError: the move failed. The partition is still in its old directory, or, if its copy was complete
                already, in the new directory. In the second case, ``log`` may raise the error until the engine is
                opened again.
        """
        name = TopicPartition(topic, partition)
        return self._logs.change(topic, lambda changes: changes.move(name, os.fspath(log_dir)))

    def left_folders(self) -> tuple[str, ...]:
        """Return the paths of folders with the suffix ``-stray`` or ``-future``, which the engine does not use."""
        dirs = self._logs.open_logs.dirs
        return tuple(directory.store.path(name) for directory in dirs for name in sorted(directory.left_folders))

    @property
    def tier(self) -> Tier | None:
        """The opened tier; None if the engine has no tier."""
        return self._tier

    def _compact(self, name: TopicPartition) -> None:
        """Roll a log, and then compact it if its policies require a compaction."""
        log = self.log(*name)
        log.roll()
        self._duties.cleaner.run([log])

    # --- start and close ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the background duties and the services, and return the engine. A second call has no effect.

        The duties sync logs, roll logs by time, apply retention, compact, offload, delete unused objects of the tier,
        build extra indexes, remove renamed files, store checkpoints, discard the state of inactive producers, and abort
        transactions that exceed their timeout.

        Raises:
            PluginError: a service did not start. The duties and the services before it are running. To start the
                other services, open the engine again.
        """
        self._logs.check_open()
        self._duties.start()
        self._services.start(lambda service: service.start(self))
        return self

    def service(self, name: str) -> Service:
        """Return the service with this name, for example to read its address.

        Raises:
            ConfigError: the setting ``services`` does not contain the name.
        """
        return self._services.get(name)

    def close(self) -> None:
        """Stop the services, and close producers and logs. A further call does nothing, even if the first one failed.

        A directory whose logs were all opened and closed without an error gets a clean-shutdown marker, as after a
        clean stop of Kafka. The next start of an engine or a broker then needs no recovery there.

        Raises:
            PluginError: a call into a plugin has not returned within twice ``service.stop.ms``; the text names the
                call. The log directories stay locked until the call returns, and then the engine closes. A further
                ``close`` waits for the call.
            StorageError: a log could not be closed cleanly, or a producer could not end its transaction.
        """
        try:
            self._calls.run_unless_stuck(self._close_all, max(2 * self._stop_s, _LEAST_STOP_S))
        except OverdueError as error:
            raise PluginError(f"{error}: the engine is closed when the call returns, or the process ends") from error

    def _close_all(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(self._clients.close)
            stack.callback(self._calls.hurry, self._stop_s)
            stack.callback(self._services.close)

    def _close(self) -> None:
        self._logs.end()
        self._resources.close()
