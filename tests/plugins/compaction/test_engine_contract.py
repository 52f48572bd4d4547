"""The contract of engines, with the bundled cleanup policies."""

from __future__ import annotations

import pytest

from stratalog.testing.contracts import EngineContract, EngineSetup

pytestmark = pytest.mark.long


class TestPoliciesInAnEngine(EngineContract):
    entry_point = "compaction"
    missing = "no cleanup policy"

    @pytest.fixture(params=["compact,delete", "latest_by_timestamp,delete", "latest_by_header,delete", "ttl,delete"])
    def engine_setup(self, request: pytest.FixtureRequest) -> EngineSetup:
        return EngineSetup(topic={"cleanup.policy": request.param})
