"""Services and commands: what runs beside an engine, and what a plugin adds to the command line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.model.names import TopicPartition


class EngineHandle(Protocol):
    """What a service sees of its engine."""

    def partitions(self) -> Sequence[TopicPartition]:
        """All logs."""


class Service(ABC):
    """Replication, a gateway, an exporter: started after the engine, stopped before it."""

    @abstractmethod
    def start(self, engine: EngineHandle) -> None:
        """Begin; must return soon and must not raise for what can be retried."""

    @abstractmethod
    def stop(self, deadline_ns: int) -> None:
        """End before the deadline, a moment of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Command:
    """A further command: ``load()`` imports and returns a click command; nothing heavy is imported before."""

    name: str
    help: str
    load: Callable[[], object]
