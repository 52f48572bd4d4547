"""Services that run beside an engine, and commands that a plugin adds to the command line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog import Engine


class Service(ABC):
    """A service, such as replication, a gateway or an exporter. It starts after the engine and stops before the engine.

    The engine setting ``services`` lists the services to run. They are opened with the engine. If a service cannot be
    opened, the engine does not open.
    """

    @abstractmethod
    def start(self, engine: Engine) -> None:
        """Start the service. The first call of ``Engine.start`` calls this method; later calls do not.

        The method must return within ``plugin.deadline.ms``, and must not raise an error if it can retry later. If the
        method raises an error, or has not returned after this time, ``Engine.start`` raises an error, and does not start
        the services after this one. A late ``start`` continues on its thread. A service that comes with stratalog has
        no deadline.
        """

    @abstractmethod
    def stop(self, deadline_ns: int) -> None:
        """Stop the service before ``deadline_ns``, a time of the monotonic clock in nanoseconds.

        The method may be called without ``start``, more than once, and on another thread while ``start`` still runs. If
        the deadline has passed, the service stops immediately. When the method returns, no thread of the service runs.
        The engine waits until the deadline, and at least 0.1 s.
        """


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a plugin adds to the command line.

    ``load()`` imports and returns a click command. The command line calls it only if the command is used: other
    commands then import no heavy modules. ``help`` is the command's line in the list of commands.
    """

    name: str
    help: str
    load: Callable[[], object]
