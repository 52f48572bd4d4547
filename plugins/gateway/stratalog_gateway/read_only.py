"""A read-only gateway, which serves the topics and records that another process writes to a tier or a directory.

The gateway stores groups and their offsets in its own engine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from stratalog import Log, LogOffsets, LogReader, Reader, TopicId, TopicInfo, TopicPartition, TopicSetting
from stratalog.errors import ClosedError, StorageError, UnknownTopicError
from stratalog.spi import Clock, TopicConfig
from stratalog_gateway.security.client import Permissions
from stratalog_gateway.security.json_file import read_field, replace_json
from stratalog_gateway.security.resources import Operation, ResourceType

_LOGGER: Final = logging.getLogger(__name__)
_IDS_VERSION: Final = 1  # version of the file of topic ids
_CHANGES: Final = frozenset({
    Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.CLUSTER_ACTION,
    Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
})  # fmt: skip


class ReadOnlyPermissions:
    """Permissions of a read-only gateway. No client may change topics, transactions or the cluster.

    ``permissions`` decides about all other operations, including changes of groups. If it is None, all other operations
    are allowed. A refused client gets Kafka's error code for a missing permission, after which clients do not retry.
    """

    def __init__(self, permissions: Permissions | None) -> None:
        self._permissions = permissions

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if a principal may perform an operation on a resource from the IP address ``host``."""
        if operation in _CHANGES and kind != ResourceType.GROUP:
            return False
        return self._permissions is None or self._permissions.allows(principal, host, operation, kind, name)

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return True if a principal may perform an operation on at least one resource of a type."""
        if operation in _CHANGES and kind != ResourceType.GROUP:
            return False
        return self._permissions is None or self._permissions.allows_any(principal, host, operation, kind)


class ReadOnlySource:
    """Topics and logs of a reader. From ``start`` to ``stop``, a thread refreshes them. Thread-safe.

    After a failed refresh, the thread logs a warning, and retries after ``refresh_ms``. Clients read the earlier state
    until a refresh succeeds.

    Args:
        reader: reader of a tier or a directory. The caller closes the reader.
        ids_file: file in which the ids of all topics are stored for the next gateway with the same groups. None: ids
            are not stored.

    Raises:
        ConfigError: the file of topic ids is malformed.
        OSError: the file of topic ids cannot be read.
    """

    def __init__(self, reader: Reader, refresh_ms: int, clock: Clock, ids_file: Path | None = None) -> None:
        self._reader, self._refresh_ms, self._clock, self._ids_file = reader, refresh_ms, clock, ids_file
        self._lock = threading.Lock()  # only one thread at a time may open or refresh logs of a reader
        self._topics = reader.topics()
        self._ids: dict[str, str] = {}  # ids of all topics, including topics that are missing now
        if ids_file is not None and ids_file.exists():
            self._ids = cast(dict[str, str], read_field(ids_file, _IDS_VERSION, "topics", dict))
        self._stored_ids = dict(self._ids)
        self._forget_offsets: Callable[[str], object] = lambda _: None
        self._logs: dict[TopicPartition, _ReadOnlyLog] = {}  # under _lock
        self._is_outdated = False  # under _lock; True if a log was closed after `_topics` was read
        self._changes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-gateway-refresh", daemon=True)

    @property
    def topic_changes(self) -> int:
        """Number of refreshes that detected a change of topics or partitions, such as a deleted topic.

        A failed refresh is counted, too, if it detected a deleted topic.
        """
        return self._changes

    def attach(self, forget_offsets: Callable[[str], object]) -> None:
        """Set the function that deletes the committed offsets of a topic, by name. The gateway calls this method.

        ``start`` and ``refresh`` call the function for each topic that was created again, before clients see the new topic.
        Otherwise groups would skip the first records of the new topic. The function must not call methods of this object.
        """
        self._forget_offsets = forget_offsets

    def start(self) -> None:
        """Start the thread that refreshes the logs."""
        with self._lock:
            self._compare_ids(self._topics)
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the refreshes. Wait at most ``wait_s`` for the thread. Idempotent; allowed before ``start``."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics of the last successful refresh, by name."""
        return self._topics

    def log(self, topic: str, partition: int) -> Log:
        """Return the log of a partition. It has no methods that write. Raises the errors of ``Reader.log``."""
        name = TopicPartition(topic, partition)
        with self._lock:
            log = self._logs.get(name)
            if log is None:
                log_reader = self._reader.log(topic, partition)
                log = self._logs[name] = _ReadOnlyLog(log_reader, self._reader.topic_config(name))
        return cast(Log, log)

    def topic_settings(self, name: str) -> dict[str, TopicSetting]:
        """Return the settings of a topic by key; raise UnknownTopicError if the topic does not exist."""
        info = self.topics().get(name)
        if info is None:
            raise UnknownTopicError(f"there is no topic {name}")
        with self._lock:
            config = info.config
        defaults, keys = TopicConfig().to_mapping(), TopicConfig.keys()
        return {
            key: TopicSetting(value, defaults[key], "default" if value == defaults[key] else "topic", keys[key].doc)
            for key, value in config.to_mapping().items()
            if key in keys
        }

    def log_directories(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Return an empty mapping, because the logs belong to another process."""
        return {}

    def offline_log_directories(self) -> tuple[str, ...]:
        """Return an empty tuple, because the directories belong to another process."""
        return ()

    def refresh(self) -> None:
        """Make new records and changes of topics visible. Raises the errors of ``Reader.refresh``."""
        with self._lock:
            try:
                changed_names, topics = self._reader.refresh(), self._reader.topics()
            except BaseException:
                self._changes += self._forget_closed()  # the failed refresh may have closed logs
                raise
            changed_logs = [self._logs[name] for name in changed_names if name in self._logs]
            self._forget_closed()
            self._compare_ids(topics)
            if self._is_outdated or _identities(topics) != _identities(self._topics):
                self._topics, self._is_outdated = topics, False
                self._changes += 1
        for log in changed_logs:
            log.run_callbacks()

    def _compare_ids(self, topics: Mapping[str, TopicInfo]) -> None:
        """Delete the committed offsets of topics that were deleted and created again. Then store the ids of all topics.

        The caller holds the lock. Errors are logged, and the next refresh retries. After an error of one topic, the
        other topics are still compared: the id of a new topic must be stored before the topic is deleted and created
        again.
        """
        for name, info in topics.items():
            if info.topic_id is None:
                continue
            topic_id = str(info.topic_id)
            try:
                if self._ids.get(name, topic_id) != topic_id:
                    self._forget_offsets(name)
                self._ids[name] = topic_id
            except StorageError as error:
                _LOGGER.warning("committed offsets of the deleted topic %s remain, will retry: %s", name, error)
        if self._ids_file is not None and self._stored_ids != self._ids:
            try:
                replace_json(self._ids_file, {"version": _IDS_VERSION, "topics": self._ids})
                self._stored_ids = dict(self._ids)
            except OSError as error:
                _LOGGER.warning("the ids of topics cannot be stored, will retry: %s", error)

    def _forget_closed(self) -> bool:
        """Remove the logs of deleted topics, under the lock. Return True if there were such logs."""
        closed = [name for name, log in self._logs.items() if log.is_closed]
        for name in closed:
            del self._logs[name]
        self._is_outdated |= bool(closed)
        return bool(closed)

    def _run(self) -> None:
        while not self._clock.wait(self._stopping, self._refresh_ms):
            try:
                self.refresh()
            except StorageError as error:
                _LOGGER.warning("the logs are shown in an earlier state: %s", error)
            except BaseException:  # even a SystemExit of a plugin must not end this thread
                _LOGGER.exception("the logs are shown in an earlier state")


def _identities(topics: Mapping[str, TopicInfo]) -> dict[str, tuple[TopicId | None, tuple[int, ...]]]:
    """Return the id and the partitions of each topic. A topic that is created again has another id."""
    return {name: (info.topic_id, info.partitions) for name, info in topics.items()}


class _ReadOnlyLog:
    """A log of a reader. It has those methods of an engine's log that handlers of read requests call."""

    def __init__(self, log: LogReader, config: TopicConfig) -> None:
        self.name, self.topic_id, self.config, self._log = log.name, log.topic_id, config, log
        self.transfer, self.offsets, self.segments = log.transfer, log.offsets, log.segments
        self.end_offset_for_epoch, self.first_since = log.end_offset_for_epoch, log.first_since
        self.largest_timestamp, self.leader_epoch_at = log.largest_timestamp, log.leader_epoch_at
        self._callbacks: set[Callable[[LogOffsets], object]] = set()

    @property
    def leader_epoch(self) -> int:
        """Latest leader epoch; -1 if the log has no known leader epoch."""
        return self._log.latest_epoch

    @property
    def is_closed(self) -> bool:
        """True if the topic was deleted, even if it was created again, or if the reader is closed."""
        try:
            self._log.offsets()
        except ClosedError:
            return True
        return False

    def producers(self) -> tuple[object, ...]:
        """Return an empty tuple, because only the writer knows the producers."""
        return ()

    def subscribe(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Register ``callback``. Each refresh that changes the log calls it with the bounds of the log.

        Return a function that ends the calls.
        """
        self._callbacks.add(callback)
        return lambda: self._callbacks.discard(callback)

    def run_callbacks(self) -> None:
        """Call the callbacks with the bounds of the log, unless the log is closed."""
        if not self.is_closed:
            bounds = self._log.offsets()
            for callback in tuple(self._callbacks):
                callback(bounds)
