from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

import golden_data
from golden_data import Golden

Unpacked = Callable[[str], Golden]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """Return a function that unpacks a golden directory by name. Each directory is unpacked once."""
    folder = tmp_path_factory.mktemp("golden")

    @cache
    def unpacked(name: str) -> Golden:
        return golden_data.unpack(name, folder)

    return unpacked
