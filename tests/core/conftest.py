from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.registry.registry import Registry
from stratalog.testing.logs import LogBed


@pytest.fixture(scope="session")
def installed() -> Registry:
    """The plugins that are installed; asking it opens nothing."""
    return Registry.load()


@pytest.fixture
def bed(tmp_path: Path, installed: Registry) -> Iterator[LogBed]:
    """One log in a directory of its own."""
    with LogBed(tmp_path / "data", installed) as made:
        yield made
