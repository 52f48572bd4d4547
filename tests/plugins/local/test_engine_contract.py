"""The contract of engines, with the bundled segment store."""

from __future__ import annotations

import pytest

from stratalog.testing.contracts import EngineContract, EngineSetup


class TestLocalStoreInAnEngine(EngineContract):
    entry_point = "local"
    opens_without = False
    missing = "file"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        return EngineSetup()
