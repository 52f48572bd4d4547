from __future__ import annotations

from typing import Any

import pytest

from log_bed import LogBed, records
from stored_batches import records_in
from stratalog.errors import CorruptBatchError, DecompressedSizeError, UnsupportedCompressionError
from stratalog.log.read.down_convert import Converted, convert
from stratalog.model.batches import TimestampType
from stratalog.model.messages.control import ControlType
from stratalog.model.records import Record
from stratalog.segment.framing import scan
from vectors import VECTORS

CASES = {case["name"]: case for case in VECTORS["down_conversion"]}
LIMIT_BYTES = 1 << 24


def converted(bed: LogBed, data: bytes, magic: int, first_offset: int = 0) -> Converted:
    components = bed.components
    return convert(
        data, components.formats, components.codecs, magic, first_offset=first_offset, limit_bytes=LIMIT_BYTES
    )


def plain(decoded: list[Record]) -> list[dict[str, Any]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": None if record.key is None else record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
        }
        for record in decoded
    ]


def test_there_are_vectors_of_both_outcomes() -> None:
    assert len(CASES) == 13
    assert {case["expect"] for case in CASES.values()} == {"accept", "reject"}


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case["expect"] == "accept"))
def test_an_old_consumer_gets_what_kafka_gives_it(bed: LogBed, name: str) -> None:
    case = CASES[name]
    expected = bytes.fromhex(case["result_hex"])
    result = converted(bed, bytes.fromhex(case["hex"]), case["to_magic"], case["first_offset"])
    assert result.records_converted == case["records_converted"]
    assert plain(records_in(result.data, bed.components)) == case["records"]
    if case["byte_exact"]:
        assert result.data == expected
        return
    (our_table,), (kafka_table,) = (
        scan(bed.components.formats, data, 0, len(data), check_crc=True).tables for data in (result.data, expected)
    )
    assert [(b.last_offset, b.max_timestamp_ms, b.attributes) for b in our_table] == [
        (b.last_offset, b.max_timestamp_ms, b.attributes) for b in kafka_table
    ]
    form = bed.components.formats.of(case["to_magic"], "", 0)
    (our_columns,) = form.decode(result.data, our_table, limit_bytes=LIMIT_BYTES)
    (kafka_columns,) = form.decode(expected, kafka_table, limit_bytes=LIMIT_BYTES)
    assert bytes(our_columns.arena) == bytes(kafka_columns.arena)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case["expect"] == "reject"))
def test_an_old_consumer_gets_no_records_that_cannot_be_converted(bed: LogBed, name: str) -> None:
    case = CASES[name]
    assert case["error"] == "UnsupportedCompressionTypeException"
    with pytest.raises(UnsupportedCompressionError):
        converted(bed, bytes.fromhex(case["hex"]), case["to_magic"], case["first_offset"])


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_headers_are_lost_and_nothing_else_that_the_magic_has(bed: LogBed, magic: int, codec: str | None) -> None:
    originals = [record._replace(headers=(("h", b"x"),)) for record in records(5)]
    result = converted(bed, bed.batch(70, originals, codec=codec, producer=(9, 1, 4), transactional=True), magic)
    expected = [
        (offset, record.timestamp_ms if magic else -1, record.key, record.value, ())
        for offset, record in enumerate(originals, 70)
    ]
    assert [record[:2] + record[3:6] for record in records_in(result.data, bed.components)] == expected
    assert result.records_converted == 5


def test_each_batch_is_converted_or_copied_by_its_own_magic(bed: LogBed) -> None:
    pieces = [
        bed.batch(0, records(2), magic=0),
        bed.batch(2, records(2), magic=1),
        bed.batch(4, records(2)),
        bed.marker(6, 9, ControlType.COMMIT),
        bed.batch(7, records(2), codec="gzip", timestamp_type=TimestampType.LOG_APPEND_TIME),
    ]
    result = converted(bed, b"".join(pieces), 1, first_offset=5)
    assert result.data.startswith(pieces[0] + pieces[1])
    assert [record.offset for record in records_in(result.data, bed.components)] == [0, 1, 2, 3, 5, 7, 8]
    assert result.records_converted == 3
    assert records_in(result.data, bed.components)[-1].timestamp_type is TimestampType.LOG_APPEND_TIME
    data = b"".join(pieces)
    assert converted(bed, data, 2) == Converted(data, 0)
    assert converted(bed, data + pieces[0][:20], 2) == Converted(data, 0)


def test_a_set_of_which_nothing_is_left_is_empty(bed: LogBed) -> None:
    assert converted(bed, b"", 0) == Converted(b"", 0)
    assert converted(bed, bed.marker(6, 9, ControlType.ABORT), 1) == Converted(b"", 0)
    assert converted(bed, bed.batch(0, records(3)), 1, first_offset=3) == Converted(b"", 0)


def test_conversion_is_bounded_and_names_what_is_wrong(bed: LogBed) -> None:
    first = bed.batch(0, records(2))
    zeros = bed.batch(2, [Record(value=bytes(1 << 20))], codec="gzip")
    with pytest.raises(DecompressedSizeError):
        convert(zeros, bed.components.formats, bed.components.codecs, 1, limit_bytes=1000)
    lying = bytearray(bed.batch(2, records(1)))
    lying[61] ^= 0x40
    with pytest.raises(CorruptBatchError) as caught:
        converted(bed, first + lying, 1)
    assert caught.value.position == len(first)
    small = bytearray(first)
    small[8:12] = bytes(4)
    with pytest.raises(CorruptBatchError) as caught:
        converted(bed, first + small, 1)
    assert caught.value.position == len(first)


def test_records_that_no_old_message_can_hold_are_corrupt(bed: LogBed) -> None:
    """A broker would not have stored a timestamp below -1. Kafka's conversion also fails for it."""
    name = next(case["hex"] for case in VECTORS["malformed"] if case["name"] == "v1_record_timestamp_minus_2")
    with pytest.raises(CorruptBatchError):
        converted(bed, bed.batch(0, records(1)) + bytes.fromhex(name), 0)
