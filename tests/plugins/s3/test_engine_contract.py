"""The contract of engines, with the bundled object stores."""

from __future__ import annotations

import uuid

import pytest

from stratalog.testing.contracts import EngineContract, EngineSetup
from stratalog.testing.s3 import LocalS3

pytestmark = pytest.mark.long


class TestS3InAnEngine(EngineContract):
    entry_point = "s3"
    opens_without = False
    missing = "s3"

    @pytest.fixture
    def engine_setup(self, local_s3: LocalS3, s3_tier: str) -> EngineSetup:
        return EngineSetup(tier=s3_tier, tier_options=local_s3.options)


class TestMemoryInAnEngine(EngineContract):
    entry_point = "s3"
    opens_without = False
    missing = "memory"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        return EngineSetup(tier=f"memory://{uuid.uuid4().hex}/prefix")
