from __future__ import annotations

from pathlib import Path

import pytest

from kafka_tools import KafkaTools, OracleMissingError
from requirement import Requirement, missing

_POM = Path(__file__).with_name("pom.xml")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.oracle)


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Return the tools of real Kafka. Skip or fail the test if Java or Maven is missing."""
    try:
        return KafkaTools.find(_POM)
    except OracleMissingError as error:
        missing(Requirement.KAFKA, f"real Kafka cannot run here: {error}")
