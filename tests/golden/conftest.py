from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

import golden_data
from golden_data import Golden
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.reading.open_reader import open_host
from stratalog.segment.components import Components

Unpacked = Callable[[str], Golden]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """Return a function that unpacks a golden directory by name. Each directory is unpacked once."""
    folder = tmp_path_factory.mktemp("golden")

    @cache
    def unpacked(name: str) -> Golden:
        return golden_data.unpack(name, folder)

    return unpacked


@pytest.fixture(scope="session")
def components() -> Iterator[Components]:
    """Yield the installed formats, codecs and indexes."""
    host = open_host(Settings(), (), None)
    yield host.components(TopicConfig())
    host.close()
