"""Services that break one rule each."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError
from stratalog import Engine
from stratalog.spi import Service
from stratalog.testing.contracts import ServiceContract


class Counting(Service):
    """A service that counts the logs of its engine."""

    def __init__(self) -> None:
        self.stops = 0
        self.logs: int | None = None

    def start(self, engine: Engine) -> None:
        """Count the logs of the engine."""
        self.logs = len(engine.partitions())

    def stop(self, deadline_ns: int) -> None:
        """Count the calls."""
        del deadline_ns
        self.stops += 1


class RaisesInTime(Counting):
    """Service whose stop raises before its deadline."""

    def stop(self, deadline_ns: int) -> None:
        """Raise if the deadline is in the future."""
        if self.logs is not None and deadline_ns and not self.stops:
            self.stops += 1
            raise MutantError("in time")


class StopsOnce(Counting):
    """Service that cannot be stopped twice."""

    def stop(self, deadline_ns: int) -> None:
        """Raise at the second call."""
        super().stop(deadline_ns)
        if self.stops > 1:
            raise MutantError("stopped twice")


class NeedsAStart(Counting):
    """Service that cannot be stopped before it was started."""

    def stop(self, deadline_ns: int) -> None:
        """Raise without a start."""
        del deadline_ns
        if self.logs is None:
            raise MutantError("not started")


class LeavesAThread(Counting):
    """Service that leaves a running thread."""

    def start(self, engine: Engine) -> None:
        """Start a thread that never ends."""
        super().start(engine)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class NeedsTime(Counting):
    """Service that cannot be stopped after its deadline."""

    def stop(self, deadline_ns: int) -> None:
        """Raise if the deadline has passed."""
        if not deadline_ns:
            raise MutantError("too late")


def _made(kind: type[Counting]) -> Any:
    def make(folder: Path) -> Service:
        del folder
        return kind()

    return make


MUTANTS: Final = ContractMutants(
    contract=ServiceContract,
    fixture="service",
    sound=_made(Counting),
    mutants={
        "test_starts_and_stops_before_the_deadline": _made(RaisesInTime),
        "test_may_be_stopped_twice": _made(StopsOnce),
        "test_may_be_stopped_without_having_started": _made(NeedsAStart),
        "test_does_not_outlive_its_engine": _made(LeavesAThread),
        "test_stops_though_the_deadline_is_over": _made(NeedsTime),
    },
)
