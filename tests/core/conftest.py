from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from log_bed import LogBed
from ordered_locks import checked_lock_order, violations
from stratalog.registry.registry import Registry


@pytest.fixture(scope="session")
def installed() -> Registry:
    """Return the registry of the installed plugins, without opening a component."""
    return Registry.load()


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return an empty directory, which a test uses as a tier."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


@pytest.fixture
def bed(tmp_path: Path, installed: Registry) -> Iterator[LogBed]:
    """Yield a bed with one log in its own directory."""
    with LogBed(tmp_path / "data", installed) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _ordered_locks() -> Iterator[None]:
    """Replace the locks of logs and engines by locks that check their order."""
    with checked_lock_order():
        yield


@pytest.fixture(autouse=True)
def _lock_order() -> Iterator[None]:
    """Fail a test in which a thread acquired locks in the wrong order, even if the error was caught."""
    yield
    assert violations() == []
