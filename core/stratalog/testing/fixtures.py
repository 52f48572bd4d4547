"""Pytest fixtures, found through the ``pytest11`` entry point wherever stratalog is installed.

Importing this costs nothing: what a fixture needs is imported when a test asks for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog.testing.s3 import LocalS3


@pytest.fixture(scope="session")
def local_s3() -> Iterator[LocalS3]:
    """An S3 server on loopback with one bucket, shared by all tests of the session."""
    from stratalog.testing.s3 import local_s3 as serve  # noqa: PLC0415 - needs moto, which not everybody has

    with serve() as server:
        yield server


@pytest.fixture
def s3_tier(local_s3: LocalS3) -> str:
    """The URI of a prefix that no other test uses; ``local_s3.options`` are its options. Planned failures are gone."""
    local_s3.heal()
    return local_s3.uri(f"test-{uuid.uuid4().hex}")
