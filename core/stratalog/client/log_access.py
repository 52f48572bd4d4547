"""Interfaces through which clients use the logs of an engine, or, for reading only, the logs of a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stratalog.errors import ClosedError, StorageError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import TopicPartition


class ReadableLogs(Protocol):
    """Logs for reading: an ``Engine`` or a ``Reader``, whose methods with the same names have the full descriptions."""

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the names of all logs, sorted, including logs that cannot be opened."""

    def log(self, topic: str, partition: int) -> LogReader:
        """Return one log. Raise UnknownTopicError if the log does not exist, StorageError if it cannot be opened."""


class Logs(ReadableLogs, Protocol):
    """Logs of an engine, for reading and writing. The methods of ``Engine`` have the full descriptions."""

    @property
    def topic_changes(self) -> int:
        """Number of changes of topics, which increases after each creation, change, move or deletion of a topic."""

    def log(self, topic: str, partition: int) -> Log:
        """Return one log. Raise UnknownTopicError if the log does not exist, StorageError if it cannot be opened."""

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        """Create a topic. Raises the errors of ``Engine.create_topic``; TopicExistsError if the topic exists."""


def raise_if_closed(error: StorageError, logs: ReadableLogs) -> None:
    """Raise ClosedError if the engine or the reader was closed before ``error`` was raised.

    A ClosedError of one log, which is out of service, is not raised.
    """
    if isinstance(error, ClosedError):
        try:
            logs.log("", 0)  # no topic has this name
        except ClosedError:
            raise
        except StorageError:
            return
