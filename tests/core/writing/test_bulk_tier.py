"""Contract tests of the bulk writer for a tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from bulk_writer_contract import BulkWriterContract
from stratalog import Record, RecordColumns, TopicPartition
from stratalog.errors import LogDirNotFoundError
from stratalog.writing import WriteTarget


class TestTierWriter(BulkWriterContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> WriteTarget:
        (tmp_path / "tier").mkdir()
        return WriteTarget((tmp_path / "tier").as_uri())


def test_a_staging_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    log, missing = TopicPartition("orders", 0), str(tmp_path / "missing")
    with WriteTarget((tmp_path / "tier").as_uri(), staging=missing).open() as writer:
        writer.create_topic("orders", 1)
        with (
            writer.stage(log) as stage,
            pytest.raises(LogDirNotFoundError, match=f"{missing}: stage in a writable folder"),
        ):
            stage.add(RecordColumns.from_records([Record(value=b"v")]))
