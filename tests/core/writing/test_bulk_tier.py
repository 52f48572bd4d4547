"""Contract tests of the bulk writer for a tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from bulk_writer_contract import BulkWriterContract
from stratalog.writing import WriteTarget


class TestTierWriter(BulkWriterContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> WriteTarget:
        (tmp_path / "tier").mkdir()
        return WriteTarget((tmp_path / "tier").as_uri())
