from __future__ import annotations

import pytest

from stratalog.testing.contracts import SegmentStoreContract, StoreOpener


class TestLocalStore(SegmentStoreContract):
    @pytest.fixture
    def open_store(self, bench: StoreOpener) -> StoreOpener:
        return bench
