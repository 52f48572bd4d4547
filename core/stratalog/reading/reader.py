"""Reads without an engine: logs of a directory or tier, each in its state when it was opened or last refreshed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import all_results, outcomes
from stratalog.errors import ClosedError, ConfigError, CorruptCheckpointError, LogDirError, SystemLimitError
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.view import LogView, PublishedView
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicId, TopicPartition, only_partition, unknown_topic
from stratalog.producers.snapshot import ProducerEntry
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.topic_reader import TopicReader
from stratalog.segment.components import Components
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.tier.tier import Tier

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class TopicInfo:
    """One topic. ``topic_id`` is None if a Kafka broker without topic ids (before 2.8) wrote the directory.

    It is also None if the id cannot be read from any partition.
    """

    name: str
    topic_id: TopicId | None
    partitions: tuple[int, ...]
    read_config: Callable[[], TopicConfig] = field(repr=False)

    @property
    def config(self) -> TopicConfig:
        """Settings of the topic. A reader of a tier alone may read them from the tier.

        Raises:
            StoreError, CorruptManifestError: the settings cannot be read from the tier.
            ClosedError: the reader of the tier is closed.
        """
        return self.read_config()

    @classmethod
    def of(cls, name: str, topic_id: TopicId | None, partitions: tuple[int, ...], config: TopicConfig) -> TopicInfo:
        """Return the description of a topic whose settings are known."""
        return cls(name, topic_id, partitions, lambda: config)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicInfo):
            return NotImplemented
        return self._identity() == other._identity() and self.config == other.config

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[object, ...]:
        return TopicInfo.of, (*self._identity(), self.config)

    def _identity(self) -> tuple[str, TopicId | None, tuple[int, ...]]:
        return self.name, self.topic_id, self.partitions


class StaticLog(LogReader):
    """A log in its state when it was opened, or when its reader was last refreshed.

    Attributes:
        producers: states of producers at the log's end; empty for a log that is read from its tier alone.
        dirty_start: first offset of the local part that was not compacted yet; None if it was never compacted.
    """

    def __init__(
        self,
        view: LogView,
        topic_id: TopicId | None,
        producers: tuple[ProducerEntry, ...] = (),
        dirty_start: int | None = None,
    ) -> None:
        self._published = PublishedView()
        self._published.replace(view)
        super().__init__(view.name, topic_id, self._published.view, view.components.env.watch)
        self.producers, self.dirty_start = producers, dirty_start

    @property
    def components(self) -> Components:
        """The formats, codecs and indexes with which the log is read."""
        return self._published.view().components

    @property
    def is_deleted(self) -> bool:
        """True if the topic was deleted, and the tier still has the last manifest root of the log."""
        remote = self._published.view().remote
        return remote is not None and remote.is_deleted

    def show(self, view: LogView) -> None:
        """Replace the state of the log by ``view``; reads in progress continue with the earlier view.

        Only the log's ``Reader`` calls this method.
        """
        self._published.replace(view)

    def replace(self, newer: StaticLog) -> None:
        """Replace the state of the log by the state of ``newer``, and take over the segments of ``newer``.

        Reads in progress continue in the new segments, up to their earlier end offset. Only the log's ``Reader`` calls
        this method.
        """
        old_segments = self._published.view().segments
        self._published.replace(newer.view())
        self.producers, self.dirty_start = newer.producers, newer.dirty_start
        for segment in old_segments:
            segment.close()

    def close(self) -> None:
        """Close the segments' files; ``view`` then raises ClosedError. A second call does nothing."""
        self._views = partial(_refuse_closed, self.name)
        for segment in self._published.view().segments:
            segment.close()


def _refuse_closed(name: TopicPartition) -> NoReturn:
    raise ClosedError(f"the reader of {name} is closed")


class Reader(CheckedArguments, Closeable):
    """All logs of one or more log directories, or of one tier, for reading. A context manager.

    ``log`` opens a log at its first call, and later returns the same object.

    Attributes:
        location: the directories' paths or the tier's URI.
        tier: the opened tier; None if there is none.
    """

    def __init__(self, location: str, host: ComponentHost, tier: Tier | None) -> None:
        self.location, self.tier, self._host = location, tier, host
        self._components = host.reading_components()
        self._logs: dict[TopicPartition, StaticLog] = {}
        self._closed = False
        ends_with_fork(self)

    def __repr__(self) -> str:
        return f"Reader({self.location!r})"

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted.

        Raises:
            StoreError, CorruptManifestError: a tier that is read alone cannot be listed or read.
            ClosedError: the reader is closed.
        """
        self._check_open()
        return tuple(sorted(self._names()))

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name.

        Raises:
            SystemLimitError: the process has too many open files.
            The errors of ``partitions``.
        """
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.partitions():
            grouped.setdefault(name.topic, []).append(name)
        return {
            topic: TopicInfo(
                topic,
                self._readable_id(names),
                tuple(name.partition for name in names),
                partial(self.topic_config, names[0]),
            )
            for topic, names in grouped.items()
        }

    def _readable_id(self, names: Iterable[TopicPartition]) -> TopicId | None:
        """Return the topic id of the first log whose id can be read.

        The method ignores damaged and unreadable files, and folders that the writer has deleted meanwhile. ``log``
        raises the errors of these logs.
        """
        for name in names:
            try:
                topic_id = self._topic_id(name)
            except SystemLimitError:  # a later call may succeed
                raise
            except (CorruptCheckpointError, LogDirError):
                continue
            if topic_id is not None:
                return topic_id
        return None

    def log(self, topic: str, partition: int | None = None) -> StaticLog:
        """Return one log. ``partition`` may be left out if the topic has only one partition.

        Raises:
            UnknownTopicError: there is no such log.
            ConfigError: ``partition`` is left out, and the topic has several partitions; the log is in several log
                directories; the log has no state at the version or timestamp ``as_of``; or the key of a manifest's MAC
                is missing.
            UnknownComponentError: a newer stratalog wrote the log's manifest.
            CorruptionError: a file or manifest that describes the log is malformed.
            LogDirError, StoreError: the directory or the tier cannot be read.
            ClosedError: the reader is closed.
        """
        self._check_open()
        name = TopicPartition(
            topic, only_partition(self._names(), topic, self.location) if partition is None else partition
        )
        if name not in self._logs:
            if name not in self._names():
                raise unknown_topic(name, self._names(), self.location)
            return self._keep(name, self._open(name))
        return self._logs[name]

    def open_logs(self, names: Iterable[TopicPartition]) -> None:
        """Open several logs in parallel. ``log`` then returns each log at once. Raise the errors of ``log``."""
        self._check_open()
        unopened = [name for name in names if name not in self._logs]
        existing = self._names()
        for name in unopened:
            if name not in existing:
                raise unknown_topic(name, existing, self.location)

        def open_log(name: TopicPartition) -> None:
            self._keep(name, self._open(name))  # kept, and closed with the reader, even if another log fails

        self._in_parallel(unopened, open_log)

    def _keep(self, name: TopicPartition, new_log: StaticLog) -> StaticLog:
        """Return the log for later calls of ``log``: ``new_log``, or the log that another thread has opened before."""
        log = self._logs.setdefault(name, new_log)
        if log is not new_log:
            new_log.close()
        return log

    def release(self, name: TopicPartition) -> None:
        """Close a log and free its memory; do nothing if the log is not open. ``log`` opens the log again."""
        log = self._logs.pop(name, None)
        if log is not None:
            log.close()
            if self.tier is not None and log.topic_id is not None:
                self.tier.release(name, log.topic_id)

    def _in_parallel(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Call ``work`` with each item, on several threads; raise the first error after all calls."""
        return all_results(outcomes(items, work, self._host.settings.engine.reader_threads, "stratalog-open"))

    def topic(self, name: str) -> TopicReader:
        """Return a reader of all partitions of a topic.

        Raises:
            UnknownTopicError: there is no such topic; the text names a similar topic if there is one.
            ClosedError: the reader is closed.
            The errors of ``partitions``.
        """

        def partitions() -> list[int]:
            self._check_open()
            return sorted(log.partition for log in self._names() if log.topic == name)

        if not partitions():
            raise unknown_topic(name, self._names(), self.location)
        return TopicReader(name, self.log, partitions, self.refresh, self._host.env.clock)

    def refresh(self) -> tuple[TopicPartition, ...]:
        """Update all logs to their current state in the directory or the tier, for example to follow a running writer.

        New topics become visible. If a topic was deleted, or deleted and created again, its logs are closed: call
        ``log`` again.

        A refresh of a tier lists its objects, and sends one or two requests for each open log that has changed. A
        refresh of a directory checks the segments after the recovery point of each open log that has changed. Records
        of a running writer are visible up to its last high watermark checkpoint.

        Returns:
            The opened logs that have changed, sorted, including those that were closed.

        Raises:
            ConfigError: the reader shows an earlier state (``as_of``).
            ClosedError: the reader is closed.
            StoreError, CorruptManifestError, LogDirError: the refresh failed; some logs may not have been updated.
        """
        raise ConfigError(f"{self.location} is read in an earlier state: open it without as_of to read changes")

    @abstractmethod
    def topic_config(self, name: TopicPartition) -> TopicConfig:
        """Return the settings of a log's topic; for a tier that is read alone, those in the log's manifest.

        If the topic's settings are unknown, the result has unlimited retention unless ``[topic_defaults]`` limits it.

        Raises:
            UnknownTopicError, StoreError, CorruptManifestError, ClosedError: only for a tier that is read alone.
        """

    def policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        """Return the cleanup policies that the settings of a topic name, by name.

        Raises:
            ConfigError: a plugin refuses the settings.
            PluginError: a policy is not installed (UnknownComponentError), or cannot be opened.
        """
        return self._host.policies(config)

    def close(self) -> None:
        """Close all logs, files and connections; reads then raise ClosedError. A second call does nothing."""
        if not self._closed:
            self._closed = True
            for log in self._logs.values():
                log.close()
            if self.tier is not None:
                self.tier.close()
            self._close()
            self._host.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed")

    @abstractmethod
    def _names(self) -> Collection[TopicPartition]: ...

    @abstractmethod
    def _topic_id(self, name: TopicPartition) -> TopicId | None: ...

    @abstractmethod
    def _open(self, name: TopicPartition) -> StaticLog: ...

    @abstractmethod
    def _close(self) -> None: ...
