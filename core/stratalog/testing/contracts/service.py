"""Contract tests of services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env.clock import SystemClock
from stratalog.spi.service_contract import Service

STOP_WITHIN_NS: Final = 30_000_000_000


class ServiceContract:
    """Contract of a service: subclass it, name the class ``Test...``, and override the fixture ``service``.

    ``service`` returns a new service that is not started. The fixture ``engine`` is an engine with a topic ``t`` of two
    empty logs. Override it if the service needs another engine.
    """

    @pytest.fixture
    def service(self) -> Service:
        """Return the service to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of ServiceContract must define the fixture service")

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        """Yield an open engine with a topic ``t`` of two empty logs; the tests pass it to ``start``."""
        with open_engine(tmp_path / "engine") as engine:
            engine.create_topic("t", partitions=2)
            yield engine

    @staticmethod
    def deadline_ns() -> int:
        """Return a deadline for ``stop``, 30 seconds from now, in nanoseconds of the monotonic clock."""
        return SystemClock().monotonic_ns() + STOP_WITHIN_NS

    def test_starts_and_stops_before_the_deadline(self, service: Service, engine: Engine) -> None:
        """``start`` and ``stop`` raise nothing, and ``stop`` returns before its deadline."""
        service.start(engine)
        deadline_ns = self.deadline_ns()
        service.stop(deadline_ns)
        assert SystemClock().monotonic_ns() <= deadline_ns

    def test_may_be_stopped_twice(self, service: Service, engine: Engine) -> None:
        """A second ``stop`` raises nothing: an engine whose close fails may call ``stop`` again."""
        service.start(engine)
        service.stop(self.deadline_ns())
        service.stop(self.deadline_ns())

    def test_may_be_stopped_without_having_started(self, service: Service) -> None:
        """``stop`` without ``start`` raises nothing: an engine that fails to open stops all its services."""
        service.stop(self.deadline_ns())

    def test_does_not_outlive_its_engine(self, service: Service, engine: Engine) -> None:
        """All threads that the service started have ended when ``stop`` returns."""
        before = set(threading.enumerate())
        service.start(engine)
        service.stop(self.deadline_ns())
        assert set(threading.enumerate()) <= before

    def test_stops_though_the_deadline_is_over(self, service: Service, engine: Engine) -> None:
        """``stop`` raises nothing if its deadline is in the past: the service stops immediately."""
        service.start(engine)
        service.stop(0)
