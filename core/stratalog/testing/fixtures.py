"""Pytest fixtures, which pytest finds through the ``pytest11`` entry point of stratalog.

Importing this module is cheap: a fixture imports its dependencies at its first use.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog.testing.kafka_server import KafkaServer
    from stratalog.testing.s3 import LocalS3


@pytest.fixture(scope="session")
def local_s3() -> Iterator[LocalS3]:
    """Start an S3 server on loopback with one bucket, shared by all tests of the session."""
    from stratalog.testing.s3 import local_s3 as serve  # noqa: PLC0415 - needs moto, which is optional

    with serve() as server:
        yield server


@pytest.fixture
def s3_tier(local_s3: LocalS3) -> str:
    """URI of a prefix that no other test uses; ``local_s3.options`` are its options; planned failures are removed."""
    local_s3.heal()
    return local_s3.uri(f"test-{uuid.uuid4().hex}")


@pytest.fixture
def kafka_server(tmp_path: Path) -> Iterator[KafkaServer]:
    """Start a server for Kafka clients on loopback, with no topics; ``bootstrap`` is its address."""
    from stratalog.testing.kafka_server import kafka_server as serve  # noqa: PLC0415 - other fixtures do without

    with serve(tmp_path / "kafka") as server:
        yield server
