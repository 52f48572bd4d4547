"""Bulk writing to a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.testing.contracts import BulkWriterContract
from stratalog.writing import WriteTarget


class TestDirectoryWriter(BulkWriterContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> WriteTarget:
        return WriteTarget(str(tmp_path / "data"))
