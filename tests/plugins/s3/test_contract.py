from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.spi import ObjectStore
from stratalog.testing.contracts.object_store import ObjectStoreContract
from stratalog.testing.s3 import LocalS3

OpenStore = Callable[..., ObjectStore]


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore, local_s3: LocalS3, s3_tier: str) -> ObjectStore:
        return open_store(s3_tier, local_s3.options)


class TestFile(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}")


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4().hex}/prefix")
