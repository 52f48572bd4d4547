from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.testing.faults import FaultyVfs


@pytest.fixture
def files() -> FaultyVfs:
    return FaultyVfs()


@pytest.fixture
def engine(tmp_path: Path, files: FaultyVfs) -> Iterator[Engine]:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "logs", tier=(tmp_path / "tier").as_uri(), env=Env(files=files)) as made:
        made.create_topic("orders", partitions=2)
        log = made.log("orders", 0)
        log.append([Record(value=b"v")])
        log.roll()
        yield made
