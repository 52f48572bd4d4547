from __future__ import annotations

import pytest

from stratalog.env.clock import ManualClock
from stratalog.testing.faults import FaultyVfs


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that moves only on request."""
    return ManualClock()


@pytest.fixture
def files() -> FaultyVfs:
    """Return a file system of real files that fails on request."""
    return FaultyVfs()
