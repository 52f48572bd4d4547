"""The log directories of an engine and the logs that are open in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from stratalog.engine.open.log_dir import LogDir
from stratalog.errors import ConfigError, LogDirError, LogDirOfflineError, StorageError
from stratalog.log.log import Log
from stratalog.model.events import Event, LogOpened
from stratalog.model.names import TopicPartition, partitions_of, unknown_topic

T = TypeVar("T")


class OpenLogs:
    """All logs of an engine and their directories. The caller holds the engine's lock during each change.

    Attributes:
        dirs: the locked log directories.
        logs: open logs. A change replaces the mapping; therefore reads need no lock.
        failed: errors of logs that could not be opened, moved or deleted. A change replaces the mapping; therefore reads
            need no lock.
        half_deleted: names of logs in ``failed`` whose deletion has failed, or whose creation failed and then the
            removal of their folders. Only their folders remain to be deleted.
        unreached: errors of log directories that could not be opened, by path.
        lacks_first: True if the first directory, which has the topics' settings, could not be opened.
    """

    def __init__(self, notify: Callable[[Event], None]) -> None:
        self._notify = notify
        self.dirs: list[LogDir] = []
        self.logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, StorageError] = {}
        self.half_deleted: set[TopicPartition] = set()
        self.unreached: dict[str, StorageError] = {}
        self.lacks_first = False

    def leave_out(self, path: str, error: StorageError, *, is_first: bool) -> None:
        """Store a directory that cannot be opened. ``is_first`` is True for the first directory of ``log.dirs``."""
        self.unreached[path] = error
        self.lacks_first = self.lacks_first or is_first

    def names(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted, including logs that could not be opened."""
        return tuple(sorted(self.name_set()))

    def name_set(self) -> set[TopicPartition]:
        """Return the names of all logs. With many logs, this is much faster than ``names``, which sorts them."""
        return {*self.logs, *self.failed}

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the names of a topic's logs, sorted; raise UnknownTopicError if there are none."""
        return partitions_of(self.name_set(), topic, self.places())

    def log(self, name: TopicPartition) -> Log:
        """Return an open log."""
        if name in self.failed:
            raise self.failed[name].with_traceback(None)
        log = self.logs.get(name)
        if log is None:
            self.check_all_reached(
                f"there is no {name} in {self.places()}; a directory that is unavailable may contain it"
            )
            raise unknown_topic(name, self.name_set(), self.places())
        return log

    def places(self) -> str:
        """Return the paths of the opened directories, separated by commas, for error texts."""
        return ", ".join(directory.store.path() for directory in self.dirs)

    def check_all_reached(self, reason: str) -> None:
        """Raise the error of ``unreached_error`` if a directory could not be opened."""
        if self.unreached:
            raise self.unreached_error(reason)

    def unreached_error(self, reason: str) -> LogDirOfflineError:
        """Return an error with ``reason`` and the error of the first directory that could not be opened."""
        path, error = next(iter(self.unreached.items()))
        return LogDirOfflineError(f"{reason}: {error.reason}", path)

    def online(self) -> list[LogDir]:
        """Return the directories that are in service; if there is none, raise the error of the first directory."""
        online = [directory for directory in self.dirs if directory.failure is None]
        if not online and self.dirs[0].failure is not None:
            raise self.dirs[0].failure.with_traceback(None)
        return online

    def emptiest(self) -> LogDir:
        """Return the directory in service with the fewest logs. Raises the errors of ``online``."""
        return min(self.online(), key=lambda directory: len(directory.folders))

    def directory_at(self, path: str) -> LogDir:
        """Return the directory with this path, or raise ConfigError if there is none."""
        for directory in self.dirs:
            if os.path.realpath(directory.store.path()) == os.path.realpath(path):
                return directory
        raise ConfigError(f"{path} is not one of the log directories {self.places()}")

    def publish(self, opened_logs: Iterable[tuple[LogDir, Log]]) -> None:
        """Add opened logs to ``logs`` in one step, add them to their directories, and notify the listeners.

        The logs are removed from ``failed``. A log whose directory is out of service by now refuses appends.
        """
        logs: dict[TopicPartition, Log] = {}
        for directory, log in opened_logs:
            logs[log.name] = directory.logs[log.name] = log
            # in this order: `take_offline` sets the failure first, and then reads the logs
            if directory.failure is not None:
                log.maintenance.take_offline(directory.failure)
        self.logs = {**self.logs, **logs}  # one assignment: other threads see all logs or none
        if not self.failed.keys().isdisjoint(logs):
            self.failed = {name: error for name, error in self.failed.items() if name not in logs}
        for name, log in logs.items():
            offsets = log.offsets()
            self._notify(LogOpened(log=name, log_start=offsets.log_start, log_end=offsets.log_end))

    def fail(self, name: TopicPartition, error: StorageError) -> None:
        """Move a log from ``logs`` to ``failed`` with its error."""
        self.failed = {**self.failed, name: error}
        self.logs = _without(self.logs, name)

    def write_dirty_starts(self, log: Log) -> None:
        """Write the cleaner checkpoint of the directory that contains ``log``. The file is durable on return."""
        for directory in self.dirs:
            if directory.logs.get(log.name) is log:
                directory.checkpoints.write_dirty_starts()

    def check_in_service(self, names: Collection[TopicPartition]) -> None:
        """Raise LogDirOfflineError if a directory that contains one of the logs is out of service."""
        for directory in self.dirs:
            if not directory.folders.keys().isdisjoint(names):
                directory.checkpoints.check_in_service()

    def forget_dirty_starts(self, names: Collection[TopicPartition]) -> None:
        """Remove the cleaner's checkpoints of the directories that contain one of the logs, durably."""
        for directory in self.dirs:
            if not directory.folders.keys().isdisjoint(names):
                directory.checkpoints.forget_dirty_starts(names)

    def remove(self, name: TopicPartition, delay_ms: int) -> None:
        """Take a log out of service, and rename its folders in all directories to ``-delete``.

        If the call fails, ``log`` raises an error until the call is repeated.
        """
        log = self.logs.get(name)
        paths = [directory.store.path(directory.folders[name]) for directory in self.dirs if name in directory.folders]
        try:
            if log is not None:
                log.maintenance.abandon()
            for directory in self.dirs:
                if name in directory.folders:
                    directory.set_aside(name, delay_ms)
            self.logs = _without(self.logs, name)
            self.failed = _without(self.failed, name)
        except BaseException:
            if log is not None:
                self.half_deleted.add(name)
                error = LogDirError("the deletion of the topic failed", ", ".join(paths))
                self.fail(name, error.advised("delete the topic again"))
            raise
        self.half_deleted.discard(name)


def _without(entries: dict[TopicPartition, T], name: TopicPartition) -> dict[TopicPartition, T]:
    """Return a copy of ``entries`` without ``name``; with many logs, the copy is much faster than a comprehension."""
    copy = entries.copy()
    copy.pop(name, None)
    return copy
