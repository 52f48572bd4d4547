from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Engine, open_engine
from stratalog.spi.service_contract import Service
from stratalog.testing.contracts import ServiceContract


class Counting(Service):
    """Service that counts the logs of its engine."""

    def __init__(self) -> None:
        self.logs = 0

    def start(self, engine: Engine) -> None:
        self.logs = len(engine.partitions())

    def stop(self, deadline_ns: int) -> None:
        del deadline_ns
        self.logs = 0


class TestCounting(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return Counting()


def test_a_service_sees_the_logs_of_its_engine(tmp_path: Path) -> None:
    service = Counting()
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", partitions=3)
        service.start(engine)
    assert service.logs == 3
