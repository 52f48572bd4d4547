from __future__ import annotations

import pytest

from stratalog.spi.services import EngineHandle, Service
from stratalog.testing.contracts import ServiceContract
from stratalog.testing.contracts.service import IdleEngine


class Counting(Service):
    """The smallest service there is."""

    def __init__(self) -> None:
        self.logs = 0

    def start(self, engine: EngineHandle) -> None:
        self.logs = len(engine.partitions())

    def stop(self, deadline_ns: int) -> None:
        del deadline_ns
        self.logs = 0


class TestCounting(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return Counting()


def test_a_service_sees_the_logs_of_its_engine() -> None:
    service = Counting()
    service.start(IdleEngine())
    assert service.logs == len(IdleEngine().partitions()) > 0
