from __future__ import annotations

import pytest

from log_bed import LogBed
from stratalog.model.batches import CONTROL_BIT, BatchTable, ScanStop
from stratalog.model.messages.control import (
    ControlRecord,
    ControlType,
    EndMarker,
    KraftVersion,
    SnapshotFooter,
    control_value,
)
from stratalog.model.records import Record
from stratalog.segment.control_batches import CONTROL_MAGIC, control_batch, drop_markers, read_control
from stratalog.segment.framing import scan
from vectors import VECTORS

START_MS = 1_700_000_000_000
KEY = bytes.fromhex("00000000")


def read(bed: LogBed, data: bytes | bytearray) -> ControlRecord | None:
    (table,) = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    (batch,) = table
    return read_control(data, batch, bed.components)


@pytest.mark.parametrize(("magic", "kept"), [(0, [0, 1, 2]), (1, [0, 1, 2]), (2, [0, 2])])
def test_the_bit_of_markers_means_nothing_in_older_formats(magic: int, kept: list[int]) -> None:
    rows = [
        (70 * offset, 70, offset, offset, -1, -1, 0, -1, -1, -1, 1, attributes, 0)
        for offset, attributes in enumerate((0, CONTROL_BIT, 1))
    ]
    table = drop_markers(BatchTable.from_rows(magic, rows, ScanStop.END, 210))
    assert list(table.base_offset) == kept


@pytest.mark.parametrize(
    ("kind", "name"), [(ControlType.ABORT, "v2_abort_marker"), (ControlType.COMMIT, "v2_commit_marker")]
)
def test_a_marker_is_kafkas_to_the_byte(bed: LogBed, kind: ControlType, name: str) -> None:
    expected = next(vector["hex"] for vector in VECTORS["vectors"] if vector["name"] == name)
    data = control_batch(
        bed.components.formats.of(CONTROL_MAGIC, "", 0),
        EndMarker(kind, 7),
        timestamp_ms=START_MS,
        base_offset=21,
        leader_epoch=0,
        producer_id=4000,
        producer_epoch=3,
    )
    assert data.hex() == expected
    assert len(data) == 78
    assert read(bed, data) == EndMarker(kind, 7)


@pytest.mark.parametrize("record", [SnapshotFooter(), KraftVersion(kraft_version=1)])
def test_other_control_batches_belong_to_no_transaction(bed: LogBed, record: ControlRecord) -> None:
    form = bed.components.formats.of(CONTROL_MAGIC, "", 0)
    data = control_batch(form, record, timestamp_ms=START_MS, leader_epoch=4)
    (batch,) = form.scan(data, 0, len(data), check_crc=True)
    assert (batch.is_control, batch.is_transactional, batch.codec_id, batch.leader_epoch) == (True, False, 0, 4)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert read(bed, data) == record


def test_only_the_first_record_of_a_control_batch_counts(bed: LogBed) -> None:
    abort, commit = (EndMarker(kind, 3) for kind in (ControlType.ABORT, ControlType.COMMIT))
    markers = [Record(key=b"\0\0\0" + bytes([marker.kind]), value=control_value(marker)) for marker in (commit, abort)]
    assert read(bed, bed.batch(0, markers, control=True)) == commit


@pytest.mark.parametrize(
    ("listed", "control"),
    [
        ([Record(key=KEY, value=bytes(6))], False),
        ([Record(key=KEY, value=bytes(5))], True),
        ([Record(key=b"\0\0\0\x09", value=bytes(6))], True),
        ([Record()], True),
    ],
    ids=["data", "short", "unknown type", "null"],
)
def test_an_unknown_control_batch_is_read_as_none(bed: LogBed, listed: list[Record], *, control: bool) -> None:
    assert read(bed, bed.batch(0, listed, control=control)) is None


def test_an_emptied_batch_and_damaged_records_yield_no_records(bed: LogBed) -> None:
    data = bytearray(bed.marker(0, 5, ControlType.ABORT))
    (table,) = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    (batch,) = table
    data[61] ^= 0x40
    assert read_control(data, batch, bed.components) is None
    data[57:61] = bytes(4)
    (table,) = scan(bed.components.formats, data, 0, len(data), check_crc=False).tables
    assert read_control(data, table[0], bed.components) is None
