from __future__ import annotations

import pytest

from stratalog.spi import Provider, SegmentStore
from stratalog.testing.contracts import SegmentStoreContract, StoreOpener
from stratalog.testing.faults import StoreBench


class TestLocalStore(SegmentStoreContract):
    @pytest.fixture
    def open_store(self, bench: StoreBench) -> StoreOpener:
        return bench

    @pytest.fixture
    def provider(self, bench: StoreBench) -> Provider[SegmentStore]:
        return bench.provider
