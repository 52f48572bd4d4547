"""Reads without an engine: the logs of a directory or a tier, each in its state when it was opened or last refreshed."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import outcomes
from stratalog.errors import ClosedError, ConfigError, CorruptCheckpointError
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.view import LogView
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


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. ``topic_id`` is None if the directory is older than topic ids."""

    name: str
    topic_id: TopicId | None
    partitions: tuple[int, ...]
    config: TopicConfig


class StaticLog(LogReader):
    """A log in its state when it was opened, or when its reader was last refreshed.

    Attributes:
        producers: producers with a state at the log's end; none for a log that is read from its tier alone.
        dirty_start: first offset of local disk that was not compacted yet; None if the log was never compacted there.
    """

    def __init__(
        self,
        view: LogView,
        topic_id: TopicId | None,
        components: Components,
        producers: tuple[ProducerEntry, ...] = (),
        dirty_start: int | None = None,
    ) -> None:
        super().__init__(view.log, topic_id)
        self.producers, self.dirty_start = producers, dirty_start
        self._view, self._components, self._closed = view, components, False

    @property
    def components(self) -> Components:
        """The components that reads of the log use."""
        return self._components

    @property
    def is_deleted(self) -> bool:
        """True if the log is of a tier in which its topic was deleted; its last root stays there for a while."""
        remote = self._view.remote
        return remote is not None and remote.is_deleted

    def view(self) -> LogView:
        """Return the same view until the reader is refreshed; raise ClosedError after ``close``."""
        if self._closed:
            raise ClosedError(f"the reader of {self.name} is closed")
        return self._view

    def show(self, view: LogView) -> None:
        """Use ``view`` from now on; for the reader. Reads that have begun continue with the earlier view."""
        self._view = view

    def replace(self, newer: StaticLog) -> None:
        """Show the state of ``newer``, and own its segments from now on; for the reader.

        Reads that have begun continue in the new segments, up to the end that they had.
        """
        replaced, self._view = self._view.segments, newer._view
        self.producers, self.dirty_start = newer.producers, newer.dirty_start
        for segment in replaced:
            segment.close()

    def close(self) -> None:
        """Close the segments' files. A second call does nothing."""
        self._closed = True
        for segment in self._view.segments:
            segment.close()


class Reader(CheckedArguments, Closeable):
    """All logs of one directory or one tier, for reading. A context manager.

    Logs are opened at first use; later calls of ``log`` return the same object.

    Attributes:
        location: the directory's path or the tier's URI.
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
        """Return the names of all logs, sorted."""
        return tuple(sorted(self._names()))

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.partitions():
            grouped.setdefault(name.topic, []).append(name)
        return {
            topic: TopicInfo(
                topic, self._readable_id(names), tuple(name.partition for name in names), self._config(topic)
            )
            for topic, names in grouped.items()
        }

    def _readable_id(self, names: Iterable[TopicPartition]) -> TopicId | None:
        """Return the first readable id; one log's damaged file must not hide the others. ``log`` raises the error."""
        for name in names:
            with contextlib.suppress(CorruptCheckpointError):
                found = self._topic_id(name)
                if found is not None:
                    return found
        return None

    def log(self, topic: str, partition: int | None = None) -> StaticLog:
        """Return one log. ``partition`` may be left out if the topic has one partition.

        Raises:
            UnknownTopicError: there is no such log.
            ConfigError: ``partition`` is left out, and the topic has several.
            CorruptCheckpointError, CorruptManifestError: a file or manifest that describes the log is malformed.
        """
        if self._closed:
            raise ClosedError("the reader is closed")
        name = TopicPartition(
            topic, only_partition(self._names(), topic, self.location) if partition is None else partition
        )
        if name not in self._logs:
            if name not in self._names():
                raise unknown_topic(name, self._names(), self.location)
            self._logs[name] = self._open(name)
        return self._logs[name]

    def open_logs(self, names: Iterable[TopicPartition]) -> None:
        """Open several logs, in parallel; ``log`` then returns them without a request. Errors as ``log``."""
        if self._closed:
            raise ClosedError("the reader is closed")
        wanted = [name for name in names if name not in self._logs]
        there = self._names()
        for name in wanted:
            if name not in there:
                raise unknown_topic(name, there, self.location)
        for name, opened in zip(wanted, self._in_parallel(wanted, self._open), strict=True):
            self._logs[name] = opened

    def release(self, name: TopicPartition) -> None:
        """Close a log, and free its memory; ``log`` opens it again, in its state at that time."""
        found = self._logs.pop(name, None)
        if found is not None:
            found.close()
            if self.tier is not None and found.topic_id is not None:
                self.tier.release(name, found.topic_id)

    def _in_parallel(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Call ``work`` with each item, on several threads; raise the first error after all calls."""
        found = outcomes(items, work, self._host.settings.engine.reader_threads, "stratalog-open")
        for outcome in found:
            if isinstance(outcome, Exception):
                raise outcome
        return cast(list[R], found)

    def topic(self, name: str) -> TopicReader:
        """Return all partitions of a topic, to be scanned to Arrow or followed.

        Raises:
            UnknownTopicError: there is no such topic; the text names a similar one.
        """

        def partitions() -> list[int]:
            if self._closed:
                raise ClosedError("the reader is closed")
            return sorted(found.partition for found in self._names() if found.topic == name)

        if not partitions():
            raise unknown_topic(name, self._names(), self.location)
        return TopicReader(name, self.log, partitions, self.refresh, self._host.env.clock)

    def refresh(self) -> tuple[TopicPartition, ...]:
        """Update the logs to what was committed since. The reader of a tier or a directory thus follows a live writer.

        New topics appear. If a topic was deleted and created again, its logs are closed: call ``log`` again. In a tier, a refresh
        costs a listing, which is a request for each 1,000 objects, and one or two requests for each open log that has changed. In
        a directory, each open log that has changed is opened again: its segments after the recovery point are checked. A
        running writer's records are visible up to its last high watermark checkpoint.

        Returns:
            The logs that were opened before and have changed.

        Raises:
            ConfigError: the reader shows an earlier state (``as_of``).
            StoreError, CorruptManifestError, LogDirError: the refresh failed; logs that it had not yet reached are unchanged.
        """
        raise ConfigError(f"{self.location} is read in an earlier state: open it without as_of to read changes")

    def topic_config(self, name: TopicPartition) -> TopicConfig:
        """Return the settings of a log's topic; for a tier alone, those that the log's manifest notes.

        A topic without known settings keeps all records.
        """
        return self._config(name.topic)

    def policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        """Return the cleanup policies that the settings of a topic name, by name.

        Raises:
            UnknownComponentError: a policy is not installed.
        """
        return self._host.policies(config)

    def close(self) -> None:
        """Close all files and connections. A second call does nothing."""
        if not self._closed:
            self._closed = True
            for log in self._logs.values():
                log.close()
            if self.tier is not None:
                self.tier.close()
            self._close()
            self._host.close()

    @abstractmethod
    def _names(self) -> Collection[TopicPartition]: ...

    @abstractmethod
    def _topic_id(self, name: TopicPartition) -> TopicId | None: ...

    def _config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic, as far as they are known here."""
        del topic
        return TopicConfig()

    @abstractmethod
    def _open(self, name: TopicPartition) -> StaticLog: ...

    @abstractmethod
    def _close(self) -> None: ...
