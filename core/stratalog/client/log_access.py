"""What producers and consumers need of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stratalog.errors import UnknownTopicError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition


class Logs(Protocol):
    """The logs of an engine; its own methods of these names tell more."""

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All logs, sorted."""

    def log(self, topic: str, partition: int) -> Log:
        """One log; UnknownTopicError if it is not here."""

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        """Create a topic; TopicExistsError if it is there."""


def partitions_of(logs: Logs, topic: str) -> tuple[TopicPartition, ...]:
    """The partitions of a topic, sorted.

    Raises:
        UnknownTopicError: there is none.
    """
    found = tuple(name for name in logs.partitions() if name.topic == topic)
    if not found:
        raise UnknownTopicError(f"there is no topic {topic}")
    return found
