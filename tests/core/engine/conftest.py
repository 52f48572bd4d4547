from __future__ import annotations

import pytest

from stratalog.env.clock import ManualClock
from stratalog.testing.faults import FaultyVfs


@pytest.fixture
def clock() -> ManualClock:
    """Moves only when told to."""
    return ManualClock()


@pytest.fixture
def files() -> FaultyVfs:
    """Real files that fail when told to."""
    return FaultyVfs()
