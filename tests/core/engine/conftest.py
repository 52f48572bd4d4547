from __future__ import annotations

import pytest

from stratalog.env.clock import ManualClock
from stratalog.testing.faults import FaultyVfs


@pytest.fixture
def clock() -> ManualClock:
    """The clock moves only on request."""
    return ManualClock()


@pytest.fixture
def files() -> FaultyVfs:
    """Real files that fail on request."""
    return FaultyVfs()
