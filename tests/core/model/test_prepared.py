from __future__ import annotations

from typing import Any

import pytest

from compiled_twin import compiled_twin
from stratalog.model import prepared_py
from stratalog.model.batches import BATCH_COLUMNS, BatchTable, ScanStop
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import EXTENSIONS

CONTROL = 0x20


@pytest.fixture(params=["python", "compiled"])
def twin(request: pytest.FixtureRequest) -> type[PreparedBatches]:
    """Return the Python or the compiled class ``PreparedBatches``."""
    module: Any = prepared_py if request.param == "python" else compiled_twin(EXTENSIONS[3])
    twin_class: type[PreparedBatches] = module.PreparedBatches
    return twin_class


def row(position: int, size: int, base: int, last: int, stamp: int, **overrides: int) -> tuple[int, ...]:
    fields = dict.fromkeys(BATCH_COLUMNS, -1) | {
        "position": position,
        "size_bytes": size,
        "base_offset": base,
        "last_offset": last,
        "max_timestamp_ms": stamp,
        "record_count": last - base + 1,
        "attributes": 0,
    }
    return tuple((fields | overrides).values())


def table(*rows: tuple[int, ...], magic: int = 2) -> BatchTable:
    return BatchTable.from_rows(magic, rows, ScanStop.END, rows[-1][0] + rows[-1][1] if rows else 0)


THREE = table(row(0, 70, 5, 9, 30), row(70, 80, 12, 12, 50, producer_id=7), row(150, 61, 20, 24, 50))


def facts(batches: PreparedBatches) -> dict[str, object]:
    names = set(prepared_py.PreparedBatches.__slots__) - {"table", "data"}
    columns = [column.tolist() for column in batches.table.columns]
    return {name: getattr(batches, name) for name in names} | {"columns": columns, "data": bytes(batches.data)}


def test_the_sums_are_those_of_the_rows(twin: type[PreparedBatches]) -> None:
    batches = twin(THREE, bytearray(211))
    assert (batches.magic, batches.batch_count, batches.size_bytes) == (2, 3, 211)
    assert (batches.span, batches.last_offset) == (11, 24)
    assert (batches.largest_ms, batches.largest_offset) == (50, 12)
    assert (batches.has_producer, batches.is_control) == (True, False)
    assert list(batches.table) == list(THREE)


@pytest.mark.parametrize(("magic", "expected"), [(2, True), (1, False)])
def test_only_batches_of_magic_2_are_control_batches(
    twin: type[PreparedBatches], magic: int, *, expected: bool
) -> None:
    assert twin(table(row(0, 78, 0, 0, 1, attributes=CONTROL), magic=magic)).is_control is expected


def test_stored_batches_have_no_bytes(twin: type[PreparedBatches]) -> None:
    batches = twin(THREE)
    assert (bytes(batches.data), batches.size_bytes, batches.batch_count) == (b"", 0, 3)


def test_messages_take_an_offset_for_each_record(twin: type[PreparedBatches]) -> None:
    messages = twin(table(row(0, 40, 9, 9, 1, record_count=3), row(40, 34, 10, 10, 2), magic=1), bytearray(74))
    assert messages.span == 4


def test_no_batches_are_refused(twin: type[PreparedBatches]) -> None:
    with pytest.raises(ValueError, match="no batches"):
        twin(table())


def test_another_table_takes_the_place_of_the_first(twin: type[PreparedBatches]) -> None:
    """A scan does not know the record count of a compressed message. The count in the first table is kept."""
    batches = twin(table(row(0, 40, 9, 9, 1, record_count=3), row(40, 34, 10, 10, 2), magic=1), bytearray(74))
    batches.data.extend(b"..")
    batches.replace_table(table(row(0, 42, 102, 102, 5, record_count=-1), row(42, 34, 103, 103, 5), magic=1))
    assert (batches.span, batches.size_bytes, batches.last_offset) == (4, 76, 103)
    assert (batches.largest_ms, batches.largest_offset) == (5, 102)
    assert batches.table.record_count.tolist() == [3, 1]
    assert batches.table.position.tolist() == [0, 42]
    with pytest.raises(ValueError, match="1 batches cannot replace 2 batches"):
        batches.replace_table(table(row(0, 76, 1, 1, 1)))


@pytest.mark.parametrize(("magic", "count"), [(1, -1), (1, 2), (0, -1)])
def test_the_result_of_a_new_scan_is_kept(twin: type[PreparedBatches], magic: int, count: int) -> None:
    batches = twin(table(row(0, 40, 9, 9, 1, record_count=3), magic=1), bytearray(60))
    rows = [row(0, 42, 102, 102, 5, record_count=count)]
    batches.replace_table(BatchTable.from_rows(magic, rows, ScanStop.CORRUPT, 42, "the CRC does not match"))
    assert (batches.magic, batches.table.magic) == (magic, magic)
    assert (batches.table.stop, batches.table.stop_position) == (ScanStop.CORRUPT, 42)
    assert batches.table.reason == "the CRC does not match"


def test_pieces_are_joined_from_offset_0_on(twin: type[PreparedBatches]) -> None:
    combined = twin.joined(
        [twin(THREE, bytearray(b"a" * 211)), twin(table(row(0, 65, 3, 4, 90)), bytearray(b"b" * 65))]
    )
    assert bytes(combined.data) == b"a" * 211 + b"b" * 65
    assert combined.table.position.tolist() == [0, 70, 150, 211]
    assert combined.table.base_offset.tolist() == [0, 5, 6, 11]
    assert combined.table.last_offset.tolist() == [4, 5, 10, 12]
    assert (combined.span, combined.largest_ms, combined.largest_offset, combined.size_bytes) == (13, 90, 12, 276)


def test_one_piece_is_not_copied(twin: type[PreparedBatches]) -> None:
    piece = twin(THREE, bytearray(211))
    assert twin.joined([piece]) is piece


def test_joined_messages_have_their_last_offset(twin: type[PreparedBatches]) -> None:
    wrapper = twin(table(row(0, 40, 9, 9, 1, record_count=3), magic=1), bytearray(40))
    combined = twin.joined([wrapper, wrapper])
    assert combined.table.base_offset.tolist() == combined.table.last_offset.tolist() == [2, 5]


def test_pieces_have_one_magic(twin: type[PreparedBatches]) -> None:
    for pieces in ([twin(THREE), twin(table(row(0, 34, 0, 0, 1), magic=1))], []):
        with pytest.raises(ValueError, match="one magic"):
            twin.joined(pieces)


def test_the_twins_are_equal() -> None:
    compiled: Any = compiled_twin(EXTENSIONS[3]).PreparedBatches
    results = []
    for kind in (prepared_py.PreparedBatches, compiled):
        single, three = kind(table(row(0, 61, 0, 0, -1)), bytearray(61)), kind(THREE, bytearray(211))
        combined = kind.joined([three, single])
        results.append([facts(batches) for batches in (single, three, combined)])
    assert results[0] == results[1]
