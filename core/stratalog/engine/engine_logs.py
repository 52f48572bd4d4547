"""The owner of the directories, topics and logs of an engine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from stratalog.engine.duties.engine_metrics import EngineState
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.open.directory_id import check_identities
from stratalog.engine.open.inventory import Inventory, keep_inventory, missing_entries, read_inventory
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.notifier import Notifier
from stratalog.engine.open.offline_tier import check_known
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.engine.tiering.attach_tier import Attach, Attacher, check_not_interrupted
from stratalog.engine.tiering.tier_duties import TierDuties
from stratalog.engine.topics.move_log import clean_up_moves, remove_copies
from stratalog.engine.topics.topic_changes import TopicChanges
from stratalog.env.lock_order import LockRank
from stratalog.env.progress import ProgressSum
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    LogDirError,
    LogDirLockedError,
    SystemLimitError,
    UnknownTopicError,
)
from stratalog.log.durability.subscribers import Background
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.log import Log
from stratalog.model.events import LogDirOffline
from stratalog.model.names import TOPICS_FILE, TopicPartition, only_partition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topic_table import TopicEntry, TopicSetting, TopicTable, parse_topics
from stratalog.tier.takeover.take_over import AttachedLog
from stratalog.tier.tier import Tier

_LOGGER: Final = logging.getLogger(__name__)
R = TypeVar("R")


class EngineLogs:
    """The owner of an engine's directories, topics and logs: opens, changes and closes them. Thread-safe.

    Args:
        host: opens components, and has all settings. This object does not close it.
        tier: the opened tier, or None. This object does not close it.

    Attributes:
        policies: opens the cleanup policies of a topic; see ``ComponentHost.policies``.
        tiering: creates and offloads logs in the tier; None without a tier.
        attached: descriptions of the logs that were taken over when the engine was opened; () without ``attach``.
        changes: number of changes of topics since the engine was opened; see ``Engine.topic_changes``.
    """

    def __init__(
        self,
        host: ComponentHost,
        tier: Tier | None,
        progress: ProgressSum,
        forget_offsets: Callable[[str], None],
        attach: Attach | None,
    ) -> None:
        self._host, self._tier, settings = host, tier, host.settings
        self.env, self.policies = host.env, host.policies
        self._change_lock = LockRank.TOPICS.lock()  # held while topics are created, altered, moved or deleted
        self._closed = False  # under _change_lock
        self.changes = 0
        with contextlib.ExitStack() as stack:  # closed by close(), or here after an error
            self.notifier = Notifier(host.registry, settings.engine.service_stop_ms)
            stack.callback(self.notifier.close)
            self.open_logs = OpenLogs(self.notifier)
            self._open_dirs(stack)
            background = Background()
            stack.callback(background.close)
            inventory = self._read_inventory()
            self._topics = TopicTable(
                self.open_logs.dirs[0].store,
                settings.topic_defaults,
                has_tier=tier is not None,
                sections=host.registry.topic_sections(),
                entries=self._read_entries(inventory),
            )
            self.opener = LogOpener(host, tier, self._topics, self.open_logs.dirs, self.notifier, progress, background)
            self.tiering = None if tier is None else TierDuties(tier, self.opener, host)
            self._changes = TopicChanges(self.open_logs, self._topics, self.opener, host, forget_offsets)
            self.attached = self._open_all(inventory, attach)
            remove_copies(self.open_logs.dirs)
            self._keep_inventory()
            self._create_in_tier()
            self._resources = stack.pop_all()

    # --- use ---------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ClosedError after ``end``."""
        if self._closed:
            raise ClosedError("the engine is closed")

    def topics(self) -> dict[str, TopicInfo]:
        """Return the descriptions of all topics, by name; see ``Engine.topics``."""
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.open_logs.names():
            grouped.setdefault(name.topic, []).append(name)
        return {topic: self._changes.info(topic, names) for topic, names in grouped.items()}

    def settings(self, topic: str) -> dict[str, TopicSetting]:
        """Return the settings of a topic by their names; see ``Engine.topic_settings``."""
        self.check_open()
        return self._changes.settings(topic)

    def log(self, topic: str, partition: int | None) -> Log:
        """Return one log; see ``Engine.log``.

        If the log could not be opened because the process had too many open files, open the log now.
        """
        self.check_open()
        name = TopicPartition(topic, self._only_partition(topic) if partition is None else partition)
        if isinstance(self.open_logs.failed.get(name), SystemLimitError):
            self._reopen(name)
        return self.open_logs.log(name)

    def _only_partition(self, topic: str) -> int:
        """Return the number of the topic's only partition. Raises the errors of ``Engine.log``."""
        try:
            return only_partition(self.open_logs.names(), topic, self.open_logs.places())
        except UnknownTopicError:
            self.open_logs.check_all_reached(
                f"there is no topic {topic} in {self.open_logs.places()}; a directory that is unavailable may contain it"
            )
            raise

    def logs_of(self, topic: str) -> list[Log]:
        """Return the logs of all partitions of a topic.

        Raises:
            LogDirOfflineError: a log directory is unavailable and may contain partitions of the topic.
            The errors of ``log``.
        """
        self.check_open()
        self.open_logs.check_all_reached(f"a log directory that is unavailable may contain partitions of topic {topic}")
        return [self.log(*name) for name in self.open_logs.partitions_of(topic)]

    def state(self, duties: Sequence[DutyStatus]) -> EngineState:
        """Return a snapshot of the state from which the metrics are read. ``duties`` is the status of the duties."""
        tier, tiering = self._tier, self.tiering
        return EngineState(
            logs=[log for _, log in sorted(self.open_logs.logs.items())],
            failed_logs=len(self.open_logs.failed),
            dirs=self.open_logs.dirs,
            unreached=tuple(self.open_logs.unreached),
            duties=duties,
            open_files=self._host.handles.open_count,
            listener_failures=self._host.registry.listener_failures,
            tier=None if tier is None else tier.metrics(),
            tier_away=tier is not None and tier.availability.error is not None,
            tier_failing=frozenset() if tiering is None else tiering.failing(),
            throttled_ms=0 if tiering is None else tiering.throttled_ms,
        )

    # --- changes -----------------------------------------------------------------------------------------------------

    def change(self, topic: str, work: Callable[[TopicChanges], R], *, only_check: bool = False) -> R:
        """Return the result of ``work``, which changes a topic, or with ``only_check`` checks a change.

        After a change, store the inventory, and create new logs of the topic in the tier.
        """
        with self._change_lock:
            self.check_open()
            if only_check:
                return work(self._changes)
            try:
                result = work(self._changes)
            finally:
                self.changes += 1  # even after an error: a failed change may have changed some logs
            self._keep_inventory()
            self._create_in_tier(topic)
            return result

    def end(self) -> None:
        """Wait for a running change of a topic. After ``end``, ``check_open`` and all changes raise ClosedError."""
        with self._change_lock:  # released before ``close``, which waits for listeners that may call the engine
            self._closed = True

    def close(self) -> None:
        """Close the logs and directories, and deliver the queued events to the listeners. Idempotent."""
        self._resources.close()

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open_all(self, inventory: Inventory | None, attach: Attach | None) -> tuple[AttachedLog, ...]:
        """Open the logs of all directories, or, with ``attach``, take over and open logs of the tier.

        Return descriptions of the logs that were taken over; () without ``attach``.
        """
        if attach is not None and self._tier is not None:
            self.open_logs.check_all_reached("attach needs all log directories to be available")
            return self._take_over(self._tier, attach)
        check_not_interrupted(self.open_logs.dirs)
        if inventory is not None:
            self.opener.partitions = inventory.partitions
        for directory in self.open_logs.dirs:
            self._open_logs_of(directory, inventory)
        if inventory is not None:
            self._fail_unreached(inventory)
        return ()

    def _open_dirs(self, stack: contextlib.ExitStack) -> None:
        """Lock the available log directories, and check that they belong to one broker or engine and to this tier."""
        for number, path in enumerate(self._host.settings.engine.log_dirs):
            store = self._host.segment_store(path, read_only=False)
            try:
                directory = LogDir(store, self._host.env, self.notifier)
            except (CorruptCheckpointError, LogDirError) as error:
                if isinstance(error, LogDirLockedError | SystemLimitError):
                    raise
                self.open_logs.leave_out(store.path(), error, is_first=number == 0)
                continue
            self.open_logs.dirs.append(directory)
            stack.callback(self._close_dir, directory)
        for path, problem in self.open_logs.unreached.items():
            if not self.open_logs.dirs:
                raise problem
            _LOGGER.error("a log directory is unavailable, the others are in use: path=%s error=%s", path, problem)
            self.notifier(LogDirOffline(path=path, reason=str(problem)))
        if self._tier is not None:
            check_known(self._tier, [directory.store for directory in self.open_logs.dirs])
            self._tier.availability.listen(self.notifier)
        check_identities([(directory.store.path(), directory.identity) for directory in self.open_logs.dirs])
        clean_up_moves(self.open_logs.dirs)

    def _close_dir(self, directory: LogDir) -> None:
        directory.close(failed=any(name in directory.folders for name in self.open_logs.failed))

    def _read_inventory(self) -> Inventory | None:
        """Return the stored inventory if a directory is unavailable and an inventory exists; otherwise None.

        Raises:
            StorageError: the first directory cannot be opened, and no other directory has an inventory.
        """
        if not self.open_logs.unreached:
            return None
        inventory = read_inventory(directory.store for directory in self.open_logs.dirs)
        if inventory is None and self.open_logs.lacks_first:
            raise next(iter(self.open_logs.unreached.values()))
        return inventory

    def _read_entries(self, inventory: Inventory | None) -> Mapping[str, TopicEntry]:
        """Return the stored topics, from the topics file and, if it lacks topics, from other files.

        The topics file lacks topics if another directory was the first one in ``log.dirs`` before; see
        ``missing_entries``.
        """
        if inventory is not None and self.open_logs.lacks_first:
            return inventory.entries
        first = self.open_logs.dirs[0].store
        entries = parse_topics(first.read_small(TOPICS_FILE), first.path(TOPICS_FILE))
        missing = missing_entries(self.open_logs.dirs, entries)
        if missing:
            _LOGGER.warning(
                "the topics file lacks topics, whose settings are read from other files: file=%s topics=%s",
                first.path(TOPICS_FILE),
                ", ".join(sorted(missing)),
            )
        return {**entries, **missing}

    def _fail_unreached(self, inventory: Inventory) -> None:
        """Add each partition of the inventory that is in no available directory to the failed logs."""
        noted_names = {*self.open_logs.logs, *self.open_logs.failed}
        self.open_logs.failed.update(
            (name, self.open_logs.unreached_error(f"the log directory of {name} is unavailable"))
            for name in inventory.log_names()
            if name not in noted_names
        )

    def _keep_inventory(self) -> None:
        if not self.open_logs.unreached:
            in_service = [directory.store for directory in self.open_logs.dirs if directory.failure is None]
            keep_inventory(in_service, self._topics.entries, self.open_logs.name_set())

    def _take_over(self, tier: Tier, attach: Attach) -> tuple[AttachedLog, ...]:
        """Take over the logs of a tier into empty directories. Raises the errors of ``Attacher.run``."""
        attached = Attacher(tier, self._host, self.open_logs, self._topics, self.opener, attach).run()
        if self._host.settings.engine.tier_outage_open == "serve":
            tier.availability.allow_offline()
        return attached

    def _open_logs_of(self, directory: LogDir, inventory: Inventory | None) -> None:
        # With default settings in place of a topic's own settings, records could be deleted, or sent to a tier.
        if inventory is not None and self.open_logs.lacks_first:
            for name in directory.folders:
                if name.topic not in inventory.partitions:
                    reason = f"the settings of {name} are in a log directory that is unavailable"
                    self.open_logs.failed[name] = self.open_logs.unreached_error(reason)
        duplicates = [name for name in directory.folders if name in self.open_logs.logs]
        for name in duplicates:
            self.open_logs.failed[name] = ConfigError(
                f"{name} is in {directory.store.path()} and in another log directory: move one of them to another "
                "folder"
            )
        opened_logs, failed = self.opener.open_all(
            directory, [name for name in directory.folders if name not in self.open_logs.failed]
        )
        self.open_logs.failed.update(failed)
        for name in (*duplicates, *failed):
            _LOGGER.error("a log cannot be opened: log=%s error=%s", name, self.open_logs.failed[name])
        self.open_logs.publish((directory, log) for log in opened_logs)

    def _create_in_tier(self, topic: str | None = None) -> None:
        """Create the manifests of a topic's open logs in the tier; if ``topic`` is None, of all open logs."""
        if self.tiering is not None:
            self.tiering.create(
                log for name, log in list(self.open_logs.logs.items()) if topic is None or name.topic == topic
            )

    def _reopen(self, name: TopicPartition) -> None:
        """Open a log whose earlier open failed because the process had too many open files."""
        with self._change_lock:
            self.check_open()
            if not isinstance(self.open_logs.failed.get(name), SystemLimitError):
                return  # another thread was first
            directory = next(item for item in self.open_logs.dirs if name in item.folders)
            request = LoadRequest.of(directory.checkpoints.stored, name, writable=True)
            self.open_logs.publish([(directory, self.opener.open(directory, name, request))])
