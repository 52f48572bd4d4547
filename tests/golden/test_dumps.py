"""stratalog reads from each file the same batches, records and entries that Kafka's dump tool shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import golden_data
from dump_parser import DumpedBatch, DumpedFile
from golden_data import Golden
from stored_batches import batches_in
from stratalog.model.names import SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX
from stratalog.producers.snapshot import decode_snapshot
from stratalog.segment.components import Components
from stratalog.spi.indexes import IndexRole

Unpacked = Callable[[str], Golden]

DUMPS = [pytest.param(*found, id="/".join(found)) for found in golden_data.dumps()]
every_dump = pytest.mark.parametrize(("directory", "dump"), DUMPS)
INDEXES = [
    pytest.param(IndexRole.OFFSET, ".index", lambda dumped: dumped.offset_entries, id="index"),
    pytest.param(IndexRole.TIME, ".timeindex", lambda dumped: dumped.time_entries, id="timeindex"),
    pytest.param(IndexRole.TRANSACTION, ".txnindex", lambda dumped: dumped.aborted, id="txnindex"),
]


def files_of(golden: Golden, dump: str, suffix: str) -> list[tuple[Path, DumpedFile]]:
    return [(path, dumped) for path, dumped in golden.dumped_files(dump) if path.suffix == suffix]


def base_offset(path: Path) -> int:
    return int(path.name[:20])


@every_dump
def test_batches_and_records(golden: Unpacked, components: Components, directory: str, dump: str) -> None:
    dumped_files = files_of(golden(directory), dump, ".log")
    assert dumped_files
    for path, dumped in dumped_files:
        actual = [
            DumpedBatch.of(batch, batch.position, components.codecs.name_of(batch.codec_id), records)
            for batch, records in batches_in(path.read_bytes(), components)
        ]
        assert actual == dumped.batches, path


@every_dump
@pytest.mark.parametrize(("role", "suffix", "entries"), INDEXES)
def test_index_entries(
    golden: Unpacked,
    components: Components,
    directory: str,
    dump: str,
    role: IndexRole,
    suffix: str,
    entries: Callable[[DumpedFile], list[object]],
) -> None:
    for path, dumped in files_of(golden(directory), dump, suffix):
        read = list(components.indexes[role].reader(path.read_bytes(), base_offset(path)))
        assert read == entries(dumped), path


@every_dump
def test_producers_of_snapshots(golden: Unpacked, directory: str, dump: str) -> None:
    for path, dumped in files_of(golden(directory), dump, SNAPSHOT_SUFFIX):
        read = decode_snapshot(path.read_bytes(), str(path))
        assert sorted(read) == sorted(dumped.producers), path


@every_dump
def test_no_segment_file_is_left_out(golden: Unpacked, directory: str, dump: str) -> None:
    dumped = {path for path, _ in golden(directory).dumped_files(dump)}
    suffixes = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
    assert dumped == {path for path in next(iter(dumped)).parent.iterdir() if path.suffix in suffixes}
