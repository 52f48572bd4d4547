from __future__ import annotations

import pytest

from stratalog.model.batches import (
    BATCH_COLUMNS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchTable,
    RecordBatch,
    ScanStop,
    TimestampType,
)

CRC_MAX = (1 << 32) - 1


def row(base_offset: int, attributes: int = 0) -> tuple[int, ...]:
    values = {
        "position": base_offset * 100,
        "size_bytes": 90,
        "base_offset": base_offset,
        "last_offset": base_offset + 4,
        "base_timestamp_ms": 1_000,
        "max_timestamp_ms": 2_000,
        "leader_epoch": -1,
        "producer_id": (1 << 63) - 1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 5,
        "attributes": attributes,
        "crc": CRC_MAX,
    }
    return tuple(values[name] for name in BATCH_COLUMNS)


def table(*base_offsets: int, magic: int = 2) -> BatchTable:
    return BatchTable.from_rows(magic, map(row, base_offsets), ScanStop.CORRUPT, 777, "bad crc")


def test_rows_come_back_as_batches_with_each_field_in_its_place() -> None:
    (batch,) = table(10)
    assert batch.magic == 2
    assert tuple(getattr(batch, name) for name in BATCH_COLUMNS) == row(10)
    assert batch.next_offset == batch.last_offset + 1


def test_columns_have_a_name_each_and_hold_64_bits() -> None:
    batches = table(10, 20)
    assert [getattr(batches, name).tolist() for name in BATCH_COLUMNS] == [
        list(column) for column in zip(row(10), row(20), strict=True)
    ]
    assert {column.format for column in batches.columns} == {"q"}


@pytest.mark.parametrize(
    ("bounds", "ascends"),
    [
        ([], True),
        ([(5, 5)], True),
        ([(5, 4)], False),
        ([(0, 4), (5, 9)], True),
        ([(0, 4), (7, 9), (10, 10)], True),
        ([(0, 4), (4, 9)], False),
        ([(5, 9), (0, 4)], False),
        ([(0, 4), (9, 5), (10, 11)], False),
    ],
)
def test_offsets_ascend_if_no_batch_reaches_the_next(bounds: list[tuple[int, int]], *, ascends: bool) -> None:
    rows = [(*row(0)[:2], first, last, *row(0)[4:]) for first, last in bounds]
    assert BatchTable.from_rows(2, rows, ScanStop.END, 0).ascends is ascends


def test_a_part_of_a_table_may_ascend_though_the_whole_does_not() -> None:
    columns = table(30, 10, 20).columns
    batches = BatchTable(2, columns, ScanStop.END, 0, ascends=False)
    assert (batches.ascends, batches.take(1, 3).ascends, batches.take(0, 2).ascends) == (False, True, False)
    assert BatchTable(2, columns, ScanStop.END, 0).ascends is False
    assert BatchTable(2, table(10, 20).columns, ScanStop.END, 0, ascends=True).take(1, 2).ascends


@pytest.mark.parametrize("rows", [(), (10, 20, 30)])
def test_no_rows_have_empty_columns(rows: tuple[int, ...]) -> None:
    assert {len(column) for column in table(*rows).take(len(rows), len(rows)).columns} == {0}


def test_indexing_and_iterating_agree() -> None:
    batches = table(10, 20, 30)
    assert len(batches) == 3
    assert list(batches) == [batches[0], batches[1], batches[2]]
    assert batches[-1].base_offset == 30
    with pytest.raises(IndexError):
        batches[3]


def test_an_empty_table_has_the_reason_why_the_scan_stopped() -> None:
    batches = table()
    assert len(batches) == 0
    assert list(batches) == []
    assert (batches.stop, batches.stop_position, batches.reason) == (ScanStop.CORRUPT, 777, "bad crc")


def test_taking_rows_shares_memory_and_keeps_the_stop() -> None:
    batches = table(10, 20, 30)
    part = batches.take(1, 3)
    assert part.base_offset.tolist() == [20, 30]
    assert (part.magic, part.stop, part.stop_position, part.reason) == (2, ScanStop.CORRUPT, 777, "bad crc")
    batches.base_offset[1] = 21
    assert part[0].base_offset == 21


def test_keeping_rows_needs_a_word_for_each() -> None:
    batches = table(10, 20, 30)
    assert batches.keep([True, False, True]).base_offset.tolist() == [10, 30]
    assert len(batches.keep([False] * 3)) == 0
    with pytest.raises(ValueError, match="shorter"):
        batches.keep([True])


def a_batch(magic: int, attributes: int) -> RecordBatch:
    return BatchTable.from_rows(magic, [row(0, attributes)], ScanStop.END, 0)[0]


def test_attributes_of_the_newest_format() -> None:
    no_flags, all_flags = a_batch(2, 0), a_batch(2, 0x7F)
    assert no_flags.timestamp_type is TimestampType.CREATE_TIME
    assert (no_flags.codec_id, no_flags.is_transactional, no_flags.is_control, no_flags.delete_horizon_ms) == (
        0,
        False,
        False,
        None,
    )
    assert all_flags.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (all_flags.codec_id, all_flags.is_transactional, all_flags.is_control) == (7, True, True)
    assert all_flags.delete_horizon_ms == all_flags.base_timestamp_ms


@pytest.mark.parametrize(("bit", "field"), [(TRANSACTIONAL_BIT, "is_transactional"), (CONTROL_BIT, "is_control")])
def test_each_flag_has_a_bit_of_its_own(bit: int, field: str) -> None:
    assert getattr(a_batch(2, bit), field) is True
    assert getattr(a_batch(2, 0x7F & ~bit), field) is False


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_know_no_flags(magic: int) -> None:
    batch = a_batch(magic, TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT)
    assert (batch.is_transactional, batch.is_control, batch.delete_horizon_ms) == (False, False, None)


def test_the_oldest_format_has_no_timestamps() -> None:
    assert a_batch(0, TIMESTAMP_TYPE_BIT).timestamp_type is TimestampType.NONE
    assert a_batch(1, TIMESTAMP_TYPE_BIT).timestamp_type is TimestampType.LOG_APPEND_TIME


def test_timestamp_types_have_kafkas_numbers_and_names() -> None:
    """The numbers are stored in files: bit 3 of the attributes of a batch."""
    assert {int(kind): str(kind) for kind in TimestampType} == {
        -1: "NoTimestampType",
        0: "CreateTime",
        1: "LogAppendTime",
    }
