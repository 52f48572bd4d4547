"""Creation, change, deletion and move of topics. The engine holds its lock during each call."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from stratalog.cleaning.plan.policy_actions import rewriters
from stratalog.config.topic import TopicConfig
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.engine.topics.move_log import close_log, copy_log, finish_move, has_arrived, keep_offsets, moved_request
from stratalog.errors import (
    ClosedError,
    ConfigError,
    LogDirError,
    NotAFileError,
    StorageError,
    SystemLimitError,
    TopicExistsError,
    UnknownTopicError,
)
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.log import Log
from stratalog.model.events import TinySegments
from stratalog.model.names import TopicId, TopicPartition, check_topic, partition_folder
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topic_table import TopicEntry, TopicSetting, TopicTable
from stratalog.segment.missing_index import missing_roles
from stratalog.tier.upkeep.cost import tiny_segments

_LOGGER: Final = logging.getLogger(__name__)

NEW_LOG: Final = LoadRequest(clean=True, recovery_point=0, log_start=None, high_watermark=None, writable=True)

# Source: apache/kafka LogConfig, beside validateNoRemoteLogStorageForCompactedTopic: the message is Kafka's.
LEAVES_TIER: Final = (
    "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and turn to "
    "read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote storage "
    "and delete all remote data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`."
)

NO_TIER: Final = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage: set "
    "tier to the URI of a tier"
)


class TopicChanges:
    """Changes to the topics of one engine. Closes none of its arguments.

    ``forget_offsets`` is called with the name of a deleted topic, and deletes the committed offsets of that topic.
    """

    def __init__(
        self,
        open_logs: OpenLogs,
        topics: TopicTable,
        opener: LogOpener,
        host: ComponentHost,
        forget_offsets: Callable[[str], None],
    ) -> None:
        self._open_logs, self._topics, self._opener, self._host = open_logs, topics, opener, host
        self._forget_offsets = forget_offsets

    def info(self, topic: str, names: Sequence[TopicPartition]) -> TopicInfo:
        """Return the description of a topic; ``names`` are its partitions, sorted."""
        return TopicInfo.of(
            topic,
            next((self._open_logs.logs[name].topic_id for name in names if name in self._open_logs.logs), None),
            tuple(name.partition for name in names),
            self._topics.config(topic),
        )

    def settings(self, name: str) -> dict[str, TopicSetting]:
        """Return the settings of a topic; see ``Engine.topic_settings``."""
        if not self._open_logs.unreached or self._topics.entry(name) is None:
            self._open_logs.partitions_of(name)  # not called if all partitions may be in an unavailable directory
        return self._topics.settings(name)

    def create(self, name: str, partitions: int, config: Mapping[str, object]) -> TopicInfo:
        """Create a topic; see ``Engine.create_topic``."""
        check_topic(name)
        self._host.settings.limits.check_partitions(name, partitions)
        if any(log_name.topic == name for log_name in self._open_logs.name_set()):
            raise TopicExistsError(f"topic {name} exists already")
        self._open_logs.check_all_reached(f"a log directory that is unavailable may contain topic {name}")
        new_config = self._topics.check_settings(config, f"create_topic({name!r})")
        self._host.check_topic_config(new_config)
        self._check_tier(config, new_config)
        topic_id, values = TopicId.random(self._host.env.chance), new_config.to_mapping()
        entry = TopicEntry(topic_id, {setting: values[setting] for setting in config})
        names = [TopicPartition(name, partition) for partition in range(partitions)]
        before = self._topics.entry(name)  # the folders were removed by hand, or a crash interrupted a deletion
        if before is not None:
            self._forget_offsets(name)
        try:
            self._topics.put(name, entry)
            self._make(names, topic_id)
        except BaseException:
            with contextlib.suppress(StorageError):
                self._topics.put(name, before)
            raise
        self._report_tiny_segments(name, new_config)
        return self.info(name, names)

    def create_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic; see ``Engine.create_partitions``."""
        self._open_logs.check_all_reached(f"a log directory that is unavailable may contain partitions of topic {name}")
        names = self._open_logs.partitions_of(name)
        self._host.settings.limits.check_partitions(name, partitions)
        if partitions <= len(names):
            raise ConfigError(f"topic {name} has {len(names)} partitions: {partitions} would not be an increase")
        all_names = [TopicPartition(name, partition) for partition in range(partitions)]
        topic_id = self._open_logs.log(names[0]).topic_id
        assert topic_id is not None  # an engine gives an id to each topic that it opens
        self._make([log_name for log_name in all_names if log_name not in names], topic_id)
        return self.info(name, all_names)

    def _make(self, names: Iterable[TopicPartition], topic_id: TopicId) -> None:
        """Create, open and publish partitions in the directories with the fewest logs. After an error, remove them."""
        created: dict[TopicPartition, tuple[LogDir, Log | None]] = {}
        try:
            for log_name in names:
                directory = self._open_logs.emptiest()
                created[log_name] = directory, None
                directory.create(log_name, topic_id)
                created[log_name] = directory, self._opener.open(directory, log_name, NEW_LOG)
        except BaseException:
            self._discard(created)
            raise
        self._open_logs.publish((directory, log) for directory, log in created.values() if log is not None)

    def _report_tiny_segments(self, name: str, config: TopicConfig) -> None:
        """Notify listeners if the topic's segments are so small that the tier would get too many requests."""
        reason = tiny_segments(config) if self._opener.has_tier else ""
        if reason:
            self._opener.notify(TinySegments(topic=name, segment_bytes=config.segment_bytes, reason=reason))

    def _check_tier(self, config: Mapping[str, object], new_config: TopicConfig) -> None:
        """Raise ConfigError if ``config`` enables ``remote.storage.enable`` and the engine has no tier."""
        if "remote.storage.enable" in config and new_config.remote_storage_enable and not self._opener.has_tier:
            raise ConfigError(NO_TIER)

    def _discard(self, created: Mapping[TopicPartition, tuple[LogDir, Log | None]]) -> None:
        """Close and remove new partitions after an error. Partitions that cannot be removed count as failed."""
        for name, (directory, log) in created.items():
            with contextlib.suppress(StorageError):  # unwritten data is deleted anyway
                if log is not None:
                    log.close()
            try:
                directory.discard(name)
            except StorageError as error:  # for example on a disk that is read-only now
                reason = "the creation of the partition failed, and then the removal of its folder"
                advice = "open the engine again to use the partition, or delete the topic"
                path = directory.store.path(directory.folders[name])
                self._open_logs.fail(name, LogDirError(f"{reason}, {error.reason}", path).advised(advice))
                self._open_logs.half_deleted.add(name)

    def alter(self, name: str, config: Mapping[str, object], *, only_check: bool) -> TopicInfo:
        """Change a topic's settings, or only check them; see ``Engine.alter_topic``."""
        self._open_logs.check_all_reached(
            f"the settings of topic {name} can change only if all log directories are available"
        )
        names = self._open_logs.partitions_of(name)
        old_config = self._topics.config(name)
        entry, new_config = _alter_entry(self._topics, name, config, self.info(name, names).topic_id)
        self._host.check_topic_config(new_config, config)
        self._check_tier(config, new_config)
        leaves = old_config.remote_storage_enable and not new_config.remote_storage_enable
        if leaves and not new_config.remote_log_delete_on_disable:
            raise ConfigError(LEAVES_TIER)
        if only_check:
            return self.info(name, names)
        logs = [self._open_logs.logs[log_name] for log_name in names if log_name in self._open_logs.logs]
        has_new_filter = self._has_new_filter(old_config, new_config)
        with contextlib.ExitStack() as undoing:
            if has_new_filter:
                self._open_logs.check_in_service(names)
                self._recompact_tier(logs)
                self._forget_compacted(names, logs)
            if leaves:
                self._leave_tier(logs, undoing)
            if new_config.remote_storage_enable and not old_config.remote_storage_enable:
                self._enter_tier(logs, entry.topic_id, new_config)
            self._topics.put(name, entry)
            undoing.pop_all()
        if leaves:
            self._warn_of_failed(names)
        components, missing = self._host.available_components(new_config)
        for log in logs:  # a log whose index formats are or were missing keeps the components with which it was opened
            log_components = log.components if missing is not None or missing_roles(log.components) else components
            log.maintenance.configure(
                new_config, log_components, self._opener.remote(log.name, entry.topic_id, new_config)
            )
        if has_new_filter:  # a round with the old policies may have stored its end in the meantime
            with contextlib.suppress(LogDirError):  # the new settings are stored, and the directory reports its failure
                self._forget_compacted(names, logs)
        if tiny_segments(new_config) != tiny_segments(old_config):
            self._report_tiny_segments(name, new_config)
        return self.info(name, names)

    def _has_new_filter(self, old_config: TopicConfig, new_config: TopicConfig) -> bool:
        """Return True if ``new_config`` names a cleanup policy with a record filter that ``old_config`` does not name.

        Earlier compaction rounds, without the new policy, have kept records that this policy drops.
        """
        new_policies = [name for name in new_config.cleanup_policy if name not in old_config.cleanup_policy]
        return bool(rewriters({name: self._host.policy(name) for name in new_policies}))

    def _forget_compacted(self, names: Collection[TopicPartition], logs: Iterable[Log]) -> None:
        """Forget the compacted offsets of the logs on local disk, durably: a new policy must compact all segments."""
        for log in logs:  # otherwise a checkpoint that is written now would contain the offsets again
            log.maintenance.recompact()
        self._open_logs.forget_dirty_starts(names)

    def _recompact_tier(self, logs: Iterable[Log]) -> None:
        """Reset the compacted offset in the manifest of each leader with a tier: all segments are compacted again."""
        for log in logs:
            remote = self._opener.connect_remote(log)
            if remote is None or not log.is_leader:
                continue
            with log.maintenance.stop_if_fenced():
                remote.recompact(leader_epoch=log.leader_epoch, reason="cleanup.policy has a new policy")
            log.maintenance.refresh_remote()

    def _enter_tier(self, logs: Iterable[Log], topic_id: TopicId, config: TopicConfig) -> None:
        """Read the state of each log in the tier, to raise an error before anything is changed."""
        for log in logs:
            remote = self._opener.remote(log.name, topic_id, config)
            if remote is not None:
                remote.availability.reach()  # the engine may have been opened during an outage
                remote.view()

    def _leave_tier(self, logs: Iterable[Log], undoing: contextlib.ExitStack) -> None:
        """Set the log start of each log to its local log start. The leader also removes all segments from the tier.

        From then on, the logs do not use the tier. Callbacks that restore the logs' settings are added to ``undoing``.
        """
        for log in logs:
            remote = self._opener.connect_remote(log)
            if remote is None:
                continue
            undoing.callback(log.maintenance.configure, log.config, log.components, remote)
            start, view = log.maintenance.leave_remote(), log.view()
            if view.is_leader:
                with log.maintenance.stop_if_fenced(view.leader_epoch):
                    remote.clear(start, leader_epoch=view.leader_epoch, reason="remote.storage.enable=false")

    def delete(self, name: str) -> None:
        """Delete a topic; see ``Engine.delete_topic``."""
        self._open_logs.check_all_reached(f"a log directory that is unavailable may contain partitions of topic {name}")
        try:
            names = self._open_logs.partitions_of(name)
        except UnknownTopicError:
            if self._topics.entry(name) is None:
                raise
            names = ()  # an earlier call deleted the partitions, but not the committed offsets
        config = self._topics.config(name)
        delay_ms = config.file_delete_delay_ms
        logs = [self._open_logs.logs[log_name] for log_name in names if log_name in self._open_logs.logs]
        for_each(logs, self._delete_in_tier, self._host.settings.engine.copier_threads if self._opener.has_tier else 1)
        if config.remote_storage_enable:
            self._warn_of_failed(names)
        for log_name in names:
            self._open_logs.remove(log_name, delay_ms)
        self._forget_offsets(name)  # after an error, the entry stays, and ``create`` repeats this call
        self._topics.put(name, None)

    def _delete_in_tier(self, log: Log) -> None:
        remote, view = self._opener.connect_remote(log), log.view()
        if remote is not None and remote.root is not None and view.is_leader:
            remote.delete(leader_epoch=view.leader_epoch, reason="the topic was deleted")

    def _warn_of_failed(self, names: Iterable[TopicPartition]) -> None:
        """Log a warning for each partition that cannot be opened: another engine may own its records in the tier."""
        for log_name in names if self._opener.has_tier else ():
            if log_name in self._open_logs.failed and log_name not in self._open_logs.half_deleted:
                _LOGGER.warning(
                    "the records of %s in the tier are not deleted, because the log cannot be opened here: attach "
                    "the topic to an empty directory, and delete it there: error=%s",
                    log_name,
                    self._open_logs.failed[log_name],
                )

    def move(self, name: TopicPartition, path: str) -> Log:
        """Move a log to another directory; see ``Engine.move_partition``."""
        log = self._open_logs.log(name)
        source = next(directory for directory in self._open_logs.dirs if log.name in directory.logs)
        target = self._open_logs.directory_at(path)
        if target is source:
            return log
        if target.failure is not None:
            raise target.failure.with_traceback(None)
        folder = partition_folder(log.name)
        if folder in target.store.logs():  # checked before the log is closed
            raise NotAFileError(f"the directory has a folder of {log.name} already", target.store.path(folder)).advised(
                "open the engine again, which removes the copy of an earlier move, or move the folder away"
            )
        return self._move(log, source, target)

    def _move(self, log: Log, source: LogDir, target: LogDir) -> Log:
        name, bounds = log.name, None
        try:
            bounds = close_log(log, source)
            copy_log(log, source, target, self._host.env)
        except BaseException as error:
            if has_arrived(target, name):
                self._open_logs.fail(name, _as_storage_error(error, name))
            elif log.healthy:
                log.maintenance.abandon()
                keep_offsets(log, source)
                request = moved_request(source.checkpoints.bounds_of(log))
                # the log was not closed cleanly: records may not be durable, and the last producer snapshot is missing
                if bounds is None:
                    request = dataclasses.replace(request, clean=False, recovery_point=log.offsets().recovery_point)
                self._open_logs.publish([(source, self._reopen(log, source, request))])
            raise
        try:
            finish_move(name, source, target, log.config.file_delete_delay_ms)
        finally:
            source.logs.pop(name, None)
            self._open_logs.publish([(target, self._reopen(log, target, moved_request(bounds)))])
            target.checkpoints.arriving.pop(name, None)
        return self._open_logs.logs[name]

    def _reopen(self, log: Log, directory: LogDir, request: LoadRequest) -> Log:
        """Open a log again in ``directory``, with the role and the leader epoch that it had."""
        new_log = self._opener.open(directory, log.name, request)
        if new_log.healthy and not log.is_leader:
            new_log.follow(log.leader_epoch)
        elif new_log.healthy and log.leader_epoch > new_log.leader_epoch:  # the log has no record in this epoch
            new_log.lead(log.leader_epoch)
        return new_log


def _alter_entry(
    topics: TopicTable, topic: str, changes: Mapping[str, object], topic_id: TopicId | None
) -> tuple[TopicEntry, TopicConfig]:
    """Return the entry to store for a topic with changed settings, and all its new settings.

    In ``changes``, the value None resets a setting to its default. Stored settings that no installed plugin knows stay
    as they are, unless they are reset.

    Raises:
        UnknownSettingError, ConfigError: a change is wrong, or the topic id is unknown because no partition is open.
    """
    source = f"alter_topic({topic!r})"
    for name in changes.keys() - topics.defaults.to_mapping().keys() - topics.own_settings(topic).keys():
        topics.defaults.replaced({name: ""}, source)  # raises an error that suggests the nearest name
    unknown = topics.unknown(topic)
    before = {name: value for name, value in topics.own_settings(topic).items() if name not in unknown}
    settings = {name: value for name, value in {**before, **changes}.items() if value is not None}
    new_config = topics.check_settings(settings, source)
    values = new_config.to_mapping()
    known_id = topics.topic_id(topic) or topic_id
    if known_id is None:
        raise ConfigError(f"the id of topic {topic} is not known, because none of its partitions can be opened")
    kept_unknown = {name: value for name, value in unknown.items() if name not in changes}
    return TopicEntry(known_id, {**kept_unknown, **{name: values[name] for name in settings}}), new_config


def _as_storage_error(error: BaseException, name: TopicPartition) -> StorageError:
    # An engine opens a log again after a SystemLimitError, and would use the old folder.
    if isinstance(error, StorageError) and not isinstance(error, SystemLimitError):
        return error
    return ClosedError(f"moving {name} failed ({type(error).__name__}): open the engine again")
