from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from stratalog.spi import CodecTable, Env, HandlePool, Limits, ObjectStore, OpenContext
from stratalog_s3 import stratalog_object_stores

OpenStore = Callable[..., ObjectStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens stores by URI through the plugin's providers, and closes them."""
    opened: list[ObjectStore] = []

    def open_(
        uri: str, options: Mapping[str, object] | None = None, *, env: Env | None = None, read_only: bool = False
    ) -> ObjectStore:
        world = env or Env()
        context = OpenContext(
            env=world,
            limits=Limits(),
            handles=HandlePool(world.files, 8),
            codecs=CodecTable(),
            location=uri,
            options=options or {},
            read_only=read_only,
        )
        scheme = uri.partition(":")[0]
        provider = next(found for found in stratalog_object_stores() if scheme in found.schemes)
        opened.append(provider.open(context))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def deadline_ns() -> int:
    """Long enough for any test."""
    return Env().clock.monotonic_ns() + 60_000_000_000
