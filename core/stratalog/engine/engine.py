"""The engine: all logs of some log directories, their producers and consumers, and their duties."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, Unpack, overload

from stratalog.client.clients import Clients, ProducerKeywords
from stratalog.client.consumer import Consumer
from stratalog.client.coordinator import TransactionCoordinator
from stratalog.client.group_offsets import CommittedOffset, GroupOffsets
from stratalog.client.producer import Producer
from stratalog.client.sequences import new_producer_id
from stratalog.client.serializers import DeserializedRecord, Deserializer
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties.cleaner import Cleaner
from stratalog.engine.duties.duties import Duties
from stratalog.engine.duties.service_runner import Services
from stratalog.engine.engine_duties import EngineDuties
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.tiering.attach_tier import Attach
from stratalog.env.deadlines import OverdueError
from stratalog.env.forks import ends_with_fork
from stratalog.env.progress import ProgressSum
from stratalog.errors import ConfigError, PluginError
from stratalog.group_states import GroupStates
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topic_table import TopicSetting
from stratalog.spi.service_contract import Service
from stratalog.tier.tier import Tier

_LEAST_STOP_S: Final = 0.1  # each call into a plugin gets at least this long while the engine closes


class Engine(EngineDuties):
    """All logs of some log directories, for reading and writing. A context manager; thread-safe.

    If a log cannot be opened, the other logs are served, and ``log`` raises its error. Created by ``open_engine``.
    The engine delegates to its owners: ``EngineLogs`` for directories, topics and logs, ``Clients`` for producers,
    consumers and groups, ``Duties`` for the work on logs, and ``Services`` for plugins that run beside it.

    Args:
        settings: all settings.
        host: opens components; the engine closes it.
        tier: the opened tier, or None; the engine closes it.
        progress: receives the progress of recoveries.
        attach: topics to take over from the tier into empty directories; None for no attach.

    Attributes:
        attached: logs that were taken over when the engine was opened.
    """

    def __init__(
        self, host: ComponentHost, tier: Tier | None, progress: ProgressSum, *, attach: Attach | None = None
    ) -> None:
        ends_with_fork(self)
        self._tier, self._calls, settings = tier, host.registry.calls, host.settings.engine
        self._stop_s = settings.service_stop_ms / 1000
        with contextlib.ExitStack() as owned:  # closed by close(), or here after an error
            owned.callback(host.close)
            if tier is not None:
                owned.callback(tier.close)
            self._clients = Clients(self, host.available_components(TopicConfig())[0], self._compact, settings)
            self._services = Services(host)
            owned.callback(self._services.close)
            forget_offsets = self._clients.offsets.forget_topic
            logs = self._logs = EngineLogs(host, tier, progress, forget_offsets, attach)
            owned.callback(logs.close)
            self.attached = logs.attached
            clock, written = host.env.clock, logs.open_logs.write_cleaner_checkpoint
            self._duties = Duties(
                settings,
                host.env,
                logs.open_logs,
                logs.opener,
                logs.policies,
                Cleaner(settings, clock, logs.policies, logs.opener.remote_of, written),
                logs.tiering,
                self._clients.coordinator.abort_expired,
            )
            owned.callback(self._duties.close)
            self._owned = owned.pop_all()

    def __repr__(self) -> str:
        return f"Engine({self._logs.open_logs.places()!r}, logs={len(self.partitions())})"

    # --- logs and topics ---------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted, including logs that could not be opened."""
        return self._logs.open_logs.names()

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""
        return self._logs.topics()

    def log_directories(self) -> dict[str, tuple[TopicPartition, ...]]:
        """Return the open logs of each log directory that is in service, sorted, by the path of the directory."""
        self._logs.check_open()
        return self._logs.directories()

    @property
    def topic_changes(self) -> int:
        """Number of changes of topics since the engine was opened.

        It rises after each creation, change of settings, move and deletion, also a failed one. A program that keeps the
        results of ``topics`` or ``log`` reads them again if the number differs from the one before.
        """
        return self._logs.changes

    def topic_settings(self, name: str) -> dict[str, TopicSetting]:
        """Return the settings of a topic by Kafka's names, with their defaults, sources and descriptions.

        Raises:
            UnknownTopicError: the topic does not exist here.
        """
        return self._logs.settings(name)

    def log(self, topic: str, partition: int | None = None) -> Log:
        """Return one log. ``partition`` may be left out if the topic has one partition.

        Raises:
            UnknownTopicError: the log does not exist here.
            ConfigError: ``partition`` is left out, and the topic has several.
            SystemLimitError: the process has too many open files; a later call opens the log.
            StorageError: the error with which the log could not be opened.
        """
        return self._logs.log(topic, partition)

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic; each partition is created in the log directory with the fewest logs.

        The topic becomes visible when all its partitions exist. Its settings are stored before the first partition: a
        crash can leave fewer partitions, but never other settings.

        Args:
            name: name of the topic, according to Kafka's rules.
            partitions: number of partitions.
            config: settings by Kafka's names; they override the engine's defaults.

        Raises:
            InvalidTopicError, TopicExistsError, UnknownSettingError, ConfigError: nothing was created.
            LogDirOfflineError: a log directory is unavailable and may hold a topic of this name; nothing was created.
            DiskFullError, LogDirError, StoreError: the creation failed; partitions created before were removed again.
        """
        return self._logs.create(name, partitions, config or {})

    def create_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic, all of them or none; records that are stored keep their partitions.

        A key of new records may belong to another partition than before. Producers that are open use the new partitions
        only for records that name one.

        Args:
            name: name of the topic.
            partitions: number of partitions that the topic has afterwards.

        Raises:
            UnknownTopicError: the topic does not exist here.
            ConfigError: the topic has as many partitions, or more; or ``limits.topic.partitions`` is lower.
            LogDirOfflineError: a log directory is unavailable and may hold partitions of the topic.
            StorageError: partition 0 could not be opened.
            DiskFullError, LogDirError, StoreError: the creation failed; partitions created before were removed again.
        """
        return self._logs.create_partitions(name, partitions)

    def alter_topic(self, name: str, config: Mapping[str, object]) -> TopicInfo:
        """Change settings of a topic and of its open logs; durable on return.

        Args:
            name: name of the topic.
            config: settings by Kafka's names; None resets a setting to the engine's default.

        Raises:
            UnknownTopicError, UnknownSettingError, ConfigError: nothing was changed.
            StorageError: the settings cannot be stored, and nothing was changed; or with ``record.version``, which begins
                a segment in each log: they are stored, and apply to the logs before the one that failed.
        """
        found = self._logs.alter(name, config)
        if "record.version" in config:
            self._duties.write_checkpoints()  # recovery begins after the batches of the earlier format
        return found

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, including those in the tier, and its committed offsets.

        Its folders are renamed to ``-delete`` at once. They are removed after ``file.delete.delay.ms``, or at a clean
        stop. A failed call can be repeated.

        Raises:
            UnknownTopicError: the topic does not exist here.
            StoreError: the tier refused; nothing on local disk was changed.
            StorageError: a folder cannot be renamed; the partitions before it are deleted.
        """
        self._logs.delete(name)
        self._duties.write_checkpoints()

    def move_partition(self, topic: str, partition: int, log_dir: str | os.PathLike[str]) -> Log:
        """Move a partition to another of the engine's log directories, and return the log that is open there.

        The log is closed while it is copied. Log objects that were obtained before raise ClosedError from then on.

        Raises:
            UnknownTopicError: the partition does not exist here.
            ConfigError: the engine has no such directory.
            StorageError: the partition was not moved.
        """
        return self._logs.move(TopicPartition(topic, partition), os.fspath(log_dir))

    def left_folders(self) -> tuple[str, ...]:
        """Return the paths of folders that a broker set aside (``-stray``, ``-future``) and the engine does not use."""
        return self._logs.left_folders()

    @property
    def tier(self) -> Tier | None:
        """The opened tier, or None."""
        return self._tier

    # --- clients -----------------------------------------------------------------------------------------------------

    def producer(self, *, transactional_id: str | None = None, **options: Unpack[ProducerKeywords]) -> Producer:
        """Create a producer; arguments and errors are those of ``Clients.producer``, options of ``ProducerOptions``."""
        self._logs.check_open()
        return self._clients.producer(transactional_id=transactional_id, **options)

    def new_producer_id(self) -> int:
        """Return a new id for an idempotent producer that encodes its batches itself; its first epoch is 0.

        No other producer has the id: ids are random numbers from 2^62 to 2^63 - 1, and Kafka assigns ids from 0 upwards.
        """
        self._logs.check_open()
        return new_producer_id(self._logs.env.chance).producer_id

    @property
    def transactions(self) -> TransactionCoordinator:
        """Coordinator of all transactional producers, for producers outside the process, and for their states."""
        self._logs.check_open()
        return self._clients.coordinator

    @overload
    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = ...,
        group: str | None = ...,
        isolation: str = ...,
        auto_offset_reset: str = ...,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = ...,
        group: str | None = ...,
        isolation: str = ...,
        auto_offset_reset: str = ...,
        key_deserializer: Deserializer | None = ...,
        value_deserializer: Deserializer | None = ...,
    ) -> Consumer[DeserializedRecord]: ...

    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = (),
        group: str | None = None,
        isolation: str = "read_uncommitted",
        auto_offset_reset: str = "latest",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> Consumer[Any]:
        """Create a consumer of all partitions of ``topics``; arguments and errors are those of ``Consumer``.

        With a deserializer, the records of the consumer are of the type ``DeserializedRecord``.
        """
        self._logs.check_open()
        return self._clients.consumer(
            topics=topics,
            group=group,
            isolation=isolation,
            auto_offset_reset=auto_offset_reset,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have committed offsets, sorted."""
        return self._group_offsets().groups()

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by partition; none for an unknown group."""
        return self._group_offsets().committed(group)

    def pending_group_offsets(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets an open transaction commits for a group."""
        return self._group_offsets().pending(group)

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset | None],
        durability: str | None = None,
        *,
        must_exist: bool = True,
    ) -> None:
        """Commit offsets for a group that no consumer uses now; None deletes the offset of a partition.

        Args:
            group: name of the group.
            offsets: offset of the next record to read, by partition.
            durability: ``written`` or ``durable``; None is the engine's setting.
            must_exist: False for partitions that another engine has, whose records this group reads elsewhere.

        Raises:
            ConfigError: an offset is negative, or ``group`` is empty.
            UnknownTopicError: a partition does not exist here, and ``must_exist`` is set; nothing was stored.
        """
        if not group:
            raise ConfigError("group must not be empty")
        self._group_offsets().commit(group, offsets, durability, must_exist=must_exist)

    def delete_group(self, group: str, durability: str | None = None) -> bool:
        """Delete all committed offsets and the stored state of a group. Return False if it has neither."""
        return self._group_offsets().delete(group, durability)

    def group_states(self) -> GroupStates:
        """Return the stored states of groups, for a coordinator of groups: their members, generations and assignments."""
        return self._group_offsets()

    def _group_offsets(self) -> GroupOffsets:
        self._logs.check_open()
        self._clients.coordinator.recover()  # ends the transactions that may commit offsets
        return self._clients.offsets

    def _compact(self, name: TopicPartition) -> None:
        """Compact a log now, including the records of its active segment, if its policies require it."""
        log = self.log(*name)
        log.roll()
        self._duties.cleaner.run([log])

    # --- start and close ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads of the background duties and the services; they run until the engine is closed. Idempotent.

        Duties sync, roll by time, apply retention, compact, offload, delete files that were set aside, store
        checkpoints, and abort transactions that exceed their timeout.

        Raises:
            PluginError: a service did not start; the duties run.
        """
        self._logs.check_open()
        self._duties.start()
        self._services.start(lambda service: service.start(self))
        return self

    def service(self, name: str) -> Service:
        """Return one of the services that the settings name, for what its class offers, such as an address.

        Raises:
            ConfigError: the settings do not name the service.
        """
        return self._services.named(name)

    def close(self) -> None:
        """Stop the services, and close producers and logs as a clean stop of Kafka does. Idempotent.

        Raises:
            PluginError: a call into a plugin has not returned within ``service.stop.ms``; the text names it. The log
                directories stay locked until the call returns. Then the engine closes; a further ``close`` waits for
                that.
            StorageError: a log could not be closed cleanly.
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
        self._owned.close()
