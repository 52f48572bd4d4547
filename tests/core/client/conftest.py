from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog import Engine, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock of the engine, which moves only on request."""
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock) -> Iterator[Engine]:
    """Return an engine with the topics ``t`` (3 partitions) and ``one``."""
    with open_engine(tmp_path / "engine", env=Env(clock=clock)) as new_engine:
        new_engine.create_topic("t", partitions=3)
        new_engine.create_topic("one")
        yield new_engine
