"""What every service keeps to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from stratalog.engine.open_engine import open_engine
from stratalog.env.clock import SystemClock
from stratalog.spi.service_contract import EngineHandle, Service

STOP_WITHIN_NS: Final = 30_000_000_000


class ServiceContract:
    """Subclass it, name the class ``Test...``, and give one fixture, ``service``: a new service, not started.

    The fixture ``engine`` is an engine with a topic ``t`` of two empty logs; it may be overridden by what the service needs.
    """

    @pytest.fixture
    def service(self) -> Service:
        """The service to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of ServiceContract gives the fixture service")

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[EngineHandle]:
        """What the service is started with."""
        with open_engine(tmp_path / "engine") as engine:
            engine.create_topic("t", partitions=2)
            yield engine

    @staticmethod
    def deadline_ns() -> int:
        """A moment of the monotonic clock by which a service must have stopped."""
        return SystemClock().monotonic_ns() + STOP_WITHIN_NS

    def test_starts_and_stops_before_the_deadline(self, service: Service, engine: EngineHandle) -> None:
        """Neither call raises, and stopping does not wait past its deadline."""
        service.start(engine)
        deadline_ns = self.deadline_ns()
        service.stop(deadline_ns)
        assert SystemClock().monotonic_ns() <= deadline_ns

    def test_may_be_stopped_twice(self, service: Service, engine: EngineHandle) -> None:
        """An engine that fails while it closes asks again."""
        service.start(engine)
        service.stop(self.deadline_ns())
        service.stop(self.deadline_ns())

    def test_may_be_stopped_without_having_started(self, service: Service) -> None:
        """An engine that fails while it opens stops all its services."""
        service.stop(self.deadline_ns())

    def test_does_not_outlive_its_engine(self, service: Service, engine: EngineHandle) -> None:
        """After it has stopped it leaves the logs alone: what it began on threads has ended."""
        before = set(threading.enumerate())
        service.start(engine)
        service.stop(self.deadline_ns())
        assert set(threading.enumerate()) <= before

    def test_stops_though_the_deadline_is_over(self, service: Service, engine: EngineHandle) -> None:
        """A deadline in the past means: end now."""
        service.start(engine)
        service.stop(0)
