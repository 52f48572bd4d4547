"""The directories, logs and topics of an engine: open, close, and changes of topics."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Final

from stratalog.client.clients import Clients
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties.cleaner import Cleaner
from stratalog.engine.duties.duties import Duties
from stratalog.engine.duties.service_runner import Services
from stratalog.engine.open.directory_id import check_identities
from stratalog.engine.open.inventory import Inventory, keep_inventory, read_inventory
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.log_loading import LogProgress
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.notifier import Notifier
from stratalog.engine.open.offline_tier import check_known
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.engine.tiering.attach_tier import Attach, Attacher, check_not_interrupted
from stratalog.engine.tiering.tier_duties import Tiering
from stratalog.engine.topics.move_log import settle_moves
from stratalog.engine.topics.topic_changes import TopicChanges
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.env.lock_order import LockRank
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    LogDirError,
    LogDirLockedError,
    SystemLimitError,
)
from stratalog.log.durability.subscribers import Background
from stratalog.log.log import Log
from stratalog.model.arguments import CheckedArguments
from stratalog.model.events import LogDirOffline
from stratalog.model.names import TopicPartition, only_partition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topic_table import TopicTable
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.tier.takeover.take_over import AttachedLog
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

_LOGGER: Final = logging.getLogger(__name__)


class EngineLogs(CheckedArguments, Closeable):
    """The directories, logs, topics and parts of an engine. A context manager; thread-safe.

    Base class of ``Engine``, which ``open_engine`` creates, and which adds the clients and duties.

    Args:
        settings: all settings.
        host: opens components; the engine closes it.
        tier: the opened tier, or None; the engine closes it.
        recovery_progress: called with the progress of each recovery.
        attach: topics to take over from the tier into empty directories; None for no attach.

    Attributes:
        attached: logs that were taken over when the engine was opened.
    """

    def __init__(
        self,
        settings: Settings,
        host: ComponentHost,
        tier: Tier | None,
        recovery_progress: LogProgress | None = None,
        *,
        attach: Attach | None = None,
    ) -> None:
        self._settings, self._host, self._tier = settings, host, tier
        self._changing = (
            LockRank.TOPICS.lock()
        )  # held while topics are created, altered, moved or deleted; over _closed
        self._closed = False
        self._lacks_first = False  # True if the directory with the topics file is unavailable
        self.attached: tuple[AttachedLog, ...] = ()
        ends_with_fork(self)
        with contextlib.ExitStack() as owned:  # closed by close(), or here after an error
            owned.callback(host.close)
            if tier is not None:
                owned.callback(tier.close)
            self._notifier = Notifier(host.registry, settings.engine.service_stop_ms)
            owned.callback(self._notifier.close)
            self._open_logs = OpenLogs(self._notifier)
            self._dirs = self._open_logs.dirs
            self._open_dirs(owned)
            background = Background()
            owned.callback(background.close)
            inventory = self._inventory()
            self._topics = TopicTable(
                self._dirs[0].store,
                settings.topic_defaults,
                has_tier=tier is not None,
                sections=host.registry.topic_sections(),
                entries=None if inventory is None or not self._lacks_first else inventory.entries,
            )
            self._opener = LogOpener(
                settings.engine, host, tier, self._topics, self._dirs, self._notifier, recovery_progress, background
            )
            self._clients = Clients(self, host.available_parts(TopicConfig())[0], self._compact)
            self._changes = TopicChanges(
                self._open_logs, self._topics, self._opener, host, self._clients.offsets.forget_topic
            )
            clock = host.env.clock
            self._tiering = None if tier is None else Tiering(tier, self._opener, settings.engine, clock)
            self._cleaner = Cleaner(
                settings.engine, clock, self._policies, self._tier_of, self._open_logs.write_cleaner_checkpoint
            )
            self._duties = Duties(
                settings.engine,
                host.env,
                self._open_logs,
                self._opener,
                self._policies,
                self._cleaner,
                self._tiering,
                self._clients.coordinator.abort_expired,
            )
            owned.callback(self._duties.close)
            self._services = Services(host)
            owned.callback(self._services.close)
            if attach is None:
                check_not_interrupted(*self._dirs)
                if inventory is not None:
                    self._opener.partitions = inventory.partitions
                for directory in self._dirs:
                    self._open_logs_of(directory, inventory)
                if inventory is not None:
                    self._note_unreached(inventory)
            elif tier is not None:
                self._open_logs.check_all_reached("attach needs all log directories to be available")
                self.attached = self._take_over(tier, attach)
            self._keep_inventory()
            self._create_in_tier()
            self._owned = owned.pop_all()

    # --- logs and topics ---------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted, including logs that could not be opened."""
        return self._open_logs.names()

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.partitions():
            grouped.setdefault(name.topic, []).append(name)
        return {topic: self._changes.info(topic, names) for topic, names in grouped.items()}

    def log(self, topic: str, partition: int | None = None) -> Log:
        """Return one log. ``partition`` may be left out if the topic has one partition.

        Raises:
            UnknownTopicError: the log does not exist here.
            ConfigError: ``partition`` is left out, and the topic has several.
            SystemLimitError: the process has too many open files; a later call opens the log.
            StorageError: the error with which the log could not be opened.
        """
        self._check_open()
        places = self._open_logs.places()
        name = TopicPartition(
            topic, only_partition(self.partitions(), topic, places) if partition is None else partition
        )
        if isinstance(self._open_logs.failed.get(name), SystemLimitError):
            self._open_again(name)
        return self._open_logs.log(name)

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic; each partition goes to the log directory with the fewest logs.

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
        with self._changing:
            self._check_open()
            made = self._changes.create(name, partitions, config or {})
            self._keep_inventory()
            self._create_in_tier(name)
            return made

    def alter_topic(self, name: str, config: Mapping[str, object]) -> TopicInfo:
        """Change settings of a topic and of its open logs; durable on return.

        Args:
            name: name of the topic.
            config: settings by Kafka's names; None resets a setting to the engine's default.

        Raises:
            UnknownTopicError, UnknownSettingError, ConfigError: nothing was changed.
            StorageError: the settings cannot be stored; nothing was changed.
        """
        with self._changing:
            self._check_open()
            altered = self._changes.alter(name, config)
            self._keep_inventory()
            self._create_in_tier(name)
            return altered

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, including those in the tier, and its committed offsets.

        Its folders are renamed to ``-delete`` at once. They are removed after ``file.delete.delay.ms``, or at a clean
        stop. A failed call can be repeated.

        Raises:
            UnknownTopicError: the topic does not exist here.
            StoreError: the tier refused; nothing on local disk was changed.
            StorageError: a folder cannot be renamed; the partitions before it are deleted.
        """
        with self._changing:
            self._check_open()
            self._changes.delete(name)
            self._keep_inventory()
        self._duties.write_checkpoints()

    def move_partition(self, topic: str, partition: int, log_dir: str | os.PathLike[str]) -> Log:
        """Move a partition to another of the engine's log directories, and return the log that is open there.

        The log is closed while it is copied. Log objects that were obtained before raise ClosedError from then on.

        Raises:
            UnknownTopicError: the partition does not exist here.
            ConfigError: the engine has no such directory.
            StorageError: the partition was not moved.
        """
        with self._changing:
            self._check_open()
            return self._changes.move(self._open_logs.log(TopicPartition(topic, partition)), os.fspath(log_dir))

    def left_folders(self) -> tuple[str, ...]:
        """Return the paths of folders that a broker set aside (``-stray``, ``-future``) and the engine does not use."""
        return tuple(directory.store.path(name) for directory in self._dirs for name in sorted(directory.left))

    @property
    def tier(self) -> Tier | None:
        """The opened tier, or None."""
        return self._tier

    def close(self) -> None:
        """Stop the services, and close producers and logs as a clean stop of Kafka does. Idempotent."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(self._clients.close)
            stack.callback(self._host.registry.calls.hurry, self._settings.engine.service_stop_ms / 1000)
            stack.callback(self._services.close)

    def _close(self) -> None:
        with self._changing:  # released before the close, because listeners that it waits for may call the engine
            if self._closed:
                return
            self._closed = True
        self._owned.close()

    def _close_dir(self, directory: LogDir) -> None:
        directory.close(failed=any(name in directory.folders for name in self._open_logs.failed))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")

    def _open_dirs(self, owned: contextlib.ExitStack) -> None:
        """Lock the available log directories, and check that they belong together and to the tier."""
        for number, path in enumerate(self._settings.engine.log_dirs):
            store = self._host.segment_store(path, read_only=False)
            try:
                directory = LogDir(store, self._host.env, self._notifier)
            except (CorruptCheckpointError, LogDirError) as error:
                if isinstance(error, LogDirLockedError | SystemLimitError):
                    raise
                self._open_logs.unreached[store.path()] = error
                self._lacks_first = self._lacks_first or number == 0
                continue
            self._dirs.append(directory)
            owned.callback(self._close_dir, directory)
        for path, problem in self._open_logs.unreached.items():
            if not self._dirs:
                raise problem
            _LOGGER.error("a log directory is unavailable, the others are in use: path=%s error=%s", path, problem)
            self._notifier(LogDirOffline(path=path, reason=str(problem)))
        if self._tier is not None:
            check_known(self._tier, [directory.store for directory in self._dirs])
            self._tier.availability.listen(self._notifier)
        check_identities([(directory.store.path(), directory.identity) for directory in self._dirs])
        settle_moves(self._dirs)

    def _inventory(self) -> Inventory | None:
        """Return the stored inventory of all directories, or None if all directories are available.

        Raises:
            StorageError: the first directory cannot be opened, and no other directory has the topics' settings.
        """
        if not self._open_logs.unreached:
            return None
        found = read_inventory(directory.store for directory in self._dirs)
        if found is None and self._lacks_first:
            raise next(iter(self._open_logs.unreached.values()))
        return found

    def _note_unreached(self, inventory: Inventory) -> None:
        """Record partitions that are in no available directory as failed."""
        known = {*self._open_logs.logs, *self._open_logs.failed}
        self._open_logs.failed.update(
            (name, self._open_logs.unreached_error(f"the log directory of {name} is unavailable"))
            for name in inventory.names()
            if name not in known
        )

    def _keep_inventory(self) -> None:
        if len(self._dirs) > 1 and not self._open_logs.unreached:
            keep_inventory(
                [found.store for found in self._open_logs.online()], self._topics.entries, self._open_logs.names()
            )

    def _take_over(self, tier: Tier, attach: Attach) -> tuple[AttachedLog, ...]:
        """Take over the logs of a tier into empty directories; raises the errors of ``Attacher.run``."""
        settings = self._settings.engine
        attached = Attacher(tier, settings, self._host, self._open_logs, self._topics, self._opener, attach).run()
        if settings.tier_outage_open == "serve":
            tier.availability.serve_without()
        return attached

    def _open_logs_of(self, directory: LogDir, inventory: Inventory | None) -> None:
        # Under other settings records could be deleted, or sent to a tier.
        if inventory is not None and self._lacks_first:
            for name in directory.folders:
                if name.topic not in inventory.partitions:
                    reason = f"the settings of {name} are in a log directory that is unavailable"
                    self._open_logs.failed[name] = self._open_logs.unreached_error(reason)
        duplicates = [name for name in directory.folders if name in self._open_logs.logs]
        for name in duplicates:
            self._open_logs.failed[name] = ConfigError(
                f"{name} is in {directory.store.path()} and in another log directory: move one of them to another "
                "folder"
            )
        opened, failed = self._opener.open_all(
            directory, [name for name in directory.folders if name not in self._open_logs.failed]
        )
        self._open_logs.failed.update(failed)
        self._open_logs.publish((directory, log) for log in opened)

    def _create_in_tier(self, topic: str | None = None) -> None:
        """Create the logs of a topic, or all logs, in the tier."""
        if self._tiering is not None:
            self._tiering.create(
                log for name, log in list(self._open_logs.logs.items()) if topic is None or name.topic == topic
            )

    def _open_again(self, name: TopicPartition) -> None:
        """Open a log that could not be opened before because the process had too many open files."""
        with self._changing:
            self._check_open()
            if not isinstance(self._open_logs.failed.get(name), SystemLimitError):
                return  # another thread was first
            directory = next(found for found in self._dirs if name in found.folders)
            self._open_logs.publish([(directory, self._opener.open(directory, name, directory.request(name)))])

    def _policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        return {name: self._host.policy(name) for name in config.cleanup_policy}

    def _compact(self, log: Log) -> None:
        """Compact a log now, including the records of its active segment, if its policies require it."""
        log.roll()
        self._cleaner.run([log])

    def _tier_of(self, log: Log) -> TierLog | None:
        return self._opener.remote_of(log)
