"""The one call that reads or writes a plain batch says what the long way says, or nothing at all."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import twins
from drawn_batches import NOW_MS, PLAIN, records
from stratalog import Record
from stratalog.model.records import survey
from stratalog.spi import BatchHeader, PlainBatch, ScanStop
from stratalog_formats.records.batches import BatchFormat

OVERHEAD_BYTES = 30
CRC_POSITION, CHECKED_FROM = 17, 21


@pytest.fixture(scope="module")
def form() -> BatchFormat:
    return BatchFormat(twins.TABLE, twins.kernels_of("compiled"))


def written(rows: list[Record]) -> bytearray:
    return PLAIN.encode(rows, BatchHeader(base_offset=5, leader_epoch=1), None, None)


def sealed(data: bytearray) -> bytearray:
    """``data`` with the CRC that belongs to it."""
    data[CRC_POSITION:CHECKED_FROM] = crc32c(data[CHECKED_FROM:]).to_bytes(4)
    return data


def expected(form: BatchFormat, data: bytearray) -> PlainBatch | None:
    """What scanning and surveying say, of one whole batch without flags and producer."""
    table = form.scan(data, 0, len(data), check_crc=True)
    if table.stop is not ScanStop.END or len(table) != 1 or table.attributes[0] or table.producer_id[0] >= 0:
        return None
    seen = form.survey(data, table)
    if seen is None or not seen.is_stamped:
        return None
    return PlainBatch(data, table.record_count[0], seen.least_ms, table.max_timestamp_ms[0], seen.has_null_key)


@given(records)
def test_it_says_what_a_scan_and_a_survey_say(form: BatchFormat, rows: list[Record]) -> None:
    data = written(rows)
    found = form.plain_batch(bytes(data))
    assert found is not None
    assert found == expected(form, data)


def test_whatever_is_wrong_is_left_to_the_long_way(form: BatchFormat) -> None:
    """Every byte is changed, with the CRC made right again and without."""
    chance = random.Random(5)  # noqa: S311 - the same bytes in every run
    good = written(
        [Record(timestamp_ms=NOW_MS + at, key=b"k", value=b"v" * at, headers=(("h", b"x"),)) for at in range(3)]
    )
    passed = refused = 0
    for position in range(len(good)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)} - {good[position]}:
            data = bytearray(good)
            data[position] = value
            for changed in (data, sealed(bytearray(data))):
                found = form.plain_batch(changed)
                assert found == expected(form, changed), (position, value)
                passed, refused = passed + (found is not None), refused + (found is None)
    assert passed > 100
    assert refused > 500


def test_bytes_that_do_not_lie_behind_each_other_are_left_to_the_long_way(form: BatchFormat) -> None:
    assert form.plain_batch(memoryview(bytes(400))[::2]) is None


@pytest.mark.parametrize("size", [0, 1, 17, 60, 61, 62])
def test_what_is_no_batch_is_none(form: BatchFormat, size: int) -> None:
    assert form.plain_batch(bytes(size)) is None
    assert form.plain_batch(written([Record(value=b"x")])[:size]) is None


@given(records, st.integers(0, 2000))
def test_records_are_encoded_as_the_long_way_does(form: BatchFormat, rows: list[Record], limit_bytes: int) -> None:
    stamped = [row if row.timestamp_ms >= 0 else row._replace(timestamp_ms=NOW_MS) for row in rows]
    found = form.encode_plain(rows, NOW_MS, limit_bytes=limit_bytes, overhead_bytes=OVERHEAD_BYTES)
    seen = survey(stamped, 0, limit_bytes, OVERHEAD_BYTES)
    if seen.end < len(rows):
        assert found is None
        return
    data = PLAIN.encode(stamped, BatchHeader(), None, None)
    assert found == PlainBatch(data, len(rows), seen.least_ms, seen.largest_ms, seen.null_key)


@pytest.mark.parametrize("count", [1, 2, 1000, 20_000])
@pytest.mark.parametrize("sizes", [(1, 100_000), (100_000, 1), (0, 0)])
def test_the_buffer_grows_with_what_is_written(form: BatchFormat, count: int, sizes: tuple[int, int]) -> None:
    """Records may be larger or smaller than those before them."""
    first, other = sizes
    rows = [Record(timestamp_ms=NOW_MS, value=bytes(first))]
    rows += [Record(timestamp_ms=NOW_MS, value=bytes(other if number % 400 == 0 else 9)) for number in range(1, count)]
    found = form.encode_plain(tuple(rows), NOW_MS, limit_bytes=1 << 30, overhead_bytes=0)
    assert found is not None
    assert found.data == PLAIN.encode(rows, BatchHeader(), None, None)


@pytest.mark.parametrize(
    "wrong",
    [Record(timestamp_ms=-2), Record(headers=(("\ud800", b""),)), (1, 2), None],
    ids=["time", "name", "tuple", "None"],
)
def test_records_that_cannot_be_written_are_left_to_the_long_way(form: BatchFormat, wrong: Record) -> None:
    rows = [Record(timestamp_ms=NOW_MS, value=b"x"), wrong]
    assert form.encode_plain(rows, NOW_MS, limit_bytes=1 << 20, overhead_bytes=0) is None


def test_without_the_kernels_nothing_is_said() -> None:
    rows = [Record(timestamp_ms=NOW_MS, value=b"x")]
    assert PLAIN.plain_batch(written(rows)) is None
    assert PLAIN.encode_plain(rows, NOW_MS, limit_bytes=1 << 20, overhead_bytes=0) is None
