from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_tools import KafkaTools, OracleMissingError

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            item.add_marker(pytest.mark.xdist_group("oracle"))  # one broker at a time


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Real Kafka; without Java and Maven the test is skipped, where CI=true it fails."""
    try:
        return KafkaTools.find(_HERE / "pom.xml")
    except OracleMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the oracle may not be missing here: {error}")
        pytest.skip(f"real Kafka is not to be had: {error}")
