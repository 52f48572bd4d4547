from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_tools import KafkaTools, OracleMissingError

_POM = Path(__file__).with_name("pom.xml")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.oracle)


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Real Kafka; without Java and Maven the test is skipped, where CI=true it fails."""
    try:
        return KafkaTools.find(_POM)
    except OracleMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the oracle may not be missing here: {error}")
        pytest.skip(f"real Kafka is not to be had: {error}")
