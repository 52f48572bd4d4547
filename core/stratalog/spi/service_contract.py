"""Services that run beside an engine, and commands that a plugin adds to the command line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog import Engine


class Service(ABC):
    """A service, such as replication, a gateway or an exporter: started after the engine, stopped before it.

    ``services`` of the engine's settings lists the services to run. They are opened with the engine. If a service
    cannot be opened, the engine does not open.
    """

    @abstractmethod
    def start(self, engine: Engine) -> None:
        """Start the service. ``Engine.start`` calls this once.

        The method must return soon. It must not raise if it can retry later.
        """

    @abstractmethod
    def stop(self, deadline_ns: int) -> None:
        """Stop the service before the deadline, a time of the monotonic clock in nanoseconds.

        May be called without a start, and more than once. If the deadline has passed, the service stops immediately. No
        thread of the service is left on return. The engine waits no longer than the deadline.
        """


@dataclass(frozen=True, slots=True)
class Command:
    """A further command of the command line.

    ``load()`` imports and returns a click command. The command line calls ``load`` only if the command is used, so that
    heavy modules are not imported before.
    """

    name: str
    help: str
    load: Callable[[], object]
