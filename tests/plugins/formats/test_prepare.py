"""One call that prepares batches or records for an append has the result of several separate calls, or None."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import twins
from drawn_batches import NOW_MS, PLAIN, records
from stratalog import Record
from stratalog.errors import CorruptBatchError
from stratalog.model.records import survey
from stratalog.spi import BatchHeader, BatchTable, PreparedBatches, Rules, ScanStop
from stratalog_formats.records.batches import BatchFormat

OVERHEAD_BYTES = 30
CRC_POSITION, CHECKED_FROM = 17, 21
CREATE_TIME, UNUSUAL = 0x00, 0x6F  # attributes
EVER = (1 << 63) - 1


@pytest.fixture(scope="module")
def form() -> BatchFormat:
    return BatchFormat(twins.TABLE, twins.kernels_of("compiled"))


def rules(
    *, limit_bytes: int = 1 << 30, overhead_bytes: int = OVERHEAD_BYTES, before_ms: int = EVER, keeps_times: bool = True
) -> Rules:
    return Rules(
        max_batch_bytes=1 << 30,
        before_ms=before_ms,
        after_ms=EVER,
        needs_keys=False,
        keeps_times=keeps_times,
        limit_bytes=limit_bytes,
        overhead_bytes=overhead_bytes,
    )


def written(*batches: list[Record], codec: str = "", producer: tuple[int, int, int] = (-1, -1, -1)) -> bytearray:
    data, base = bytearray(), 5
    for rows in batches:
        producer_id, epoch, sequence = producer
        header = BatchHeader(
            base_offset=base, leader_epoch=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        data += PLAIN.encode(rows, header, twins.CODECS.get(codec), None)
        base += len(rows)
    return data


def sealed(data: bytearray) -> bytearray:
    """Return ``data``, which is one batch, with its correct CRC."""
    data[CRC_POSITION:CHECKED_FROM] = crc32c(data[CHECKED_FROM:]).to_bytes(4)
    return data


def scanned(data: bytearray) -> BatchTable:
    return PLAIN.scan(data, 0, len(data), check_crc=True)


def expected(data: bytearray) -> bool:
    """Return True if scanning and decoding find complete batches that a leader may write unchanged."""
    table = scanned(data)
    if table.stop is not ScanStop.END or not len(table):
        return False
    for row, batch in enumerate(table):
        if batch.attributes & UNUSUAL or (batch.producer_id > -1 and batch.base_sequence < 0):
            return False
        try:
            (columns,) = PLAIN.decode(data, table.take(row, row + 1), limit_bytes=1 << 20)
        except CorruptBatchError:
            return False
        if not columns.count or batch.last_offset - batch.base_offset + 1 != columns.count:
            return False
        if columns.offset.tolist() != list(range(batch.base_offset, batch.last_offset + 1)):
            return False
        if batch.max_timestamp_ms != max(*columns.timestamp_ms, -1):
            return False
    return True


def check(prepared_batches: PreparedBatches | None, data: bytearray) -> bool:
    """Compare prepared batches with a scan of ``data``. Return True if batches were prepared."""
    assert (prepared_batches is not None) == expected(data)
    if prepared_batches is None:
        return False
    assert prepared_batches.data == data
    assert prepared_batches.data is not data
    assert list(prepared_batches.table) == list(scanned(data))
    assert vars_of(prepared_batches) == vars_of(PreparedBatches(scanned(data), data))
    return True


def vars_of(batches: PreparedBatches) -> list[object]:
    names = ("magic", "size_bytes", "batch_count", "span", "last_offset", "largest_ms", "largest_offset")
    return [getattr(batches, name) for name in (*names, "has_producer", "is_control")]


@given(st.lists(records, min_size=1, max_size=3))
def test_batches_are_prepared_as_a_scan_and_decoding_find_them(form: BatchFormat, batches: list[list[Record]]) -> None:
    data = written(*batches)
    assert check(form.prepare_batches(bytes(data), rules(), NOW_MS), data)


def test_batches_of_a_producer_need_a_sequence(form: BatchFormat) -> None:
    rows = [Record(timestamp_ms=NOW_MS, value=b"x")]
    valid_data, invalid_data = written(rows, rows, producer=(7, 0, 3)), written(rows, producer=(7, 0, -1))
    prepared_batches = form.prepare_batches(valid_data, rules(), NOW_MS)
    assert check(prepared_batches, valid_data)
    assert prepared_batches is not None
    assert prepared_batches.has_producer
    assert form.prepare_batches(invalid_data, rules(), NOW_MS) is None


def test_compressed_batches_and_none_at_all_take_a_closer_look(form: BatchFormat) -> None:
    assert form.prepare_batches(written([Record(value=b"x" * 100)], codec="gzip"), rules(), NOW_MS) is None
    assert form.prepare_batches(b"", rules(), NOW_MS) is None


def test_a_wrong_largest_timestamp_matters_if_times_are_kept(form: BatchFormat) -> None:
    data = written([Record(timestamp_ms=NOW_MS, value=b"x")])
    data[35:43] = (NOW_MS + 1).to_bytes(8, "big")
    sealed(data)
    assert form.prepare_batches(data, rules(), NOW_MS) is None
    assert form.prepare_batches(data, rules(keeps_times=False), NOW_MS) is not None


def test_times_are_compared_without_overflow(form: BatchFormat) -> None:
    last = (1 << 63) - 1
    for stamp, before_ms, is_prepared in ((0, NOW_MS, True), (0, NOW_MS - 1, False), (last, last, True)):
        rows = [Record(timestamp_ms=stamp, value=b"x")]
        assert (form.prepare_records(rows, rules(before_ms=before_ms), NOW_MS) is not None) is is_prepared
        assert (form.prepare_batches(written(rows), rules(before_ms=before_ms), NOW_MS) is not None) is is_prepared


def test_a_wrong_batch_is_left_to_the_slow_path(form: BatchFormat) -> None:
    """Each byte is changed, with and without a corrected CRC, in a single batch and in a batch after a good one."""
    chance = random.Random(5)  # noqa: S311 - the same bytes in every run
    valid_data = written(
        [Record(timestamp_ms=NOW_MS + n, key=b"k", value=b"v" * n, headers=(("h", b"x"),)) for n in range(3)]
    )
    passed_count = refused_count = 0
    for position in range(len(valid_data)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)} - {valid_data[position]}:
            data = bytearray(valid_data)
            data[position] = value
            for changed_data in (
                data,
                sealed(bytearray(data)),
                valid_data + data,
                valid_data + sealed(bytearray(data)),
            ):
                is_prepared = check(form.prepare_batches(changed_data, rules(), NOW_MS), changed_data)
                passed_count, refused_count = passed_count + is_prepared, refused_count + (not is_prepared)
    assert passed_count > 200
    assert refused_count > 1000


def test_bytes_that_are_not_adjacent_use_the_general_path(form: BatchFormat) -> None:
    assert form.prepare_batches(memoryview(bytes(400))[::2], rules(), NOW_MS) is None


@pytest.mark.parametrize("size", [0, 1, 17, 60, 61, 62])
def test_bytes_that_are_no_batch_give_none(form: BatchFormat, size: int) -> None:
    valid_data = written([Record(value=b"x")])
    for data in (bytes(size), valid_data[:size], valid_data + valid_data[:size]):
        if data != valid_data:
            assert form.prepare_batches(data, rules(), NOW_MS) is None


@given(records, st.integers(0, 2000))
def test_records_are_encoded_as_the_long_way_does(form: BatchFormat, rows: list[Record], limit_bytes: int) -> None:
    stamped_rows = [row if row.timestamp_ms >= 0 else row._replace(timestamp_ms=NOW_MS) for row in rows]
    prepared_batches = form.prepare_records(rows, rules(limit_bytes=limit_bytes), NOW_MS)
    if survey(stamped_rows, 0, limit_bytes, OVERHEAD_BYTES).end < len(rows):
        assert prepared_batches is None
        return
    assert prepared_batches is not None
    data = PLAIN.encode(stamped_rows, BatchHeader(), None, None)
    assert prepared_batches.data == data
    assert vars_of(prepared_batches) == vars_of(PreparedBatches(scanned(data), data))
    assert list(prepared_batches.table) == list(scanned(data))


@pytest.mark.parametrize("count", [1, 2, 1000, 20_000])
@pytest.mark.parametrize("sizes", [(1, 100_000), (100_000, 1), (0, 0)])
def test_the_buffer_grows_with_what_is_written(form: BatchFormat, count: int, sizes: tuple[int, int]) -> None:
    """Later records may be larger or smaller than earlier ones."""
    first_bytes, later_bytes = sizes
    rows = [Record(timestamp_ms=NOW_MS, value=bytes(first_bytes))]
    rows += [
        Record(timestamp_ms=NOW_MS, value=bytes(later_bytes if number % 400 == 0 else 9)) for number in range(1, count)
    ]
    prepared_batches = form.prepare_records(tuple(rows), rules(overhead_bytes=0), NOW_MS)
    assert prepared_batches is not None
    assert prepared_batches.data == PLAIN.encode(rows, BatchHeader(), None, None)


@pytest.mark.parametrize(
    "wrong",
    [Record(timestamp_ms=-2), Record(headers=(("\ud800", b""),)), (1, 2), None],
    ids=["time", "name", "tuple", "None"],
)
def test_records_that_cannot_be_written_are_left_to_the_long_way(form: BatchFormat, wrong: Record) -> None:
    rows = [Record(timestamp_ms=NOW_MS, value=b"x"), wrong]
    assert form.prepare_records(rows, rules(), NOW_MS) is None


def test_without_the_kernels_nothing_is_prepared() -> None:
    rows = [Record(timestamp_ms=NOW_MS, value=b"x")]
    assert PLAIN.prepare_batches(written(rows), rules(), NOW_MS) is None
    assert PLAIN.prepare_records(rows, rules(), NOW_MS) is None
