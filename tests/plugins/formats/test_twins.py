"""Both implementations of each kernel, compiled and pure Python, do what its module describes, and agree."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import twins
from stratalog import Record, RecordColumns
from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.model.batches import BATCH_COLUMNS
from stratalog.model.prepared import PreparedBatches
from stratalog.spi import BatchTable, Fields, ScanStop
from stratalog_formats.kernels.dispatch import PYTHON, Kernels

RECORDS = (
    Record(timestamp_ms=1000, key=b"key", value=b"value"),
    Record(timestamp_ms=1003, value=b"", headers=(("h", b"v"), ("größe", None))),
    Record(timestamp_ms=900, key=b"", headers=(("h", b""),)),
    Record(timestamp_ms=-1, value=bytes(100)),
)
INT32, INT64 = Struct(">i"), Struct(">q")

names = st.text(max_size=5)
blobs = st.none() | st.binary(max_size=20) | st.integers(60, 9000).map(bytes)
pairs = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
stamps = st.integers(-1, (1 << 63) - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
any_records = st.lists(
    st.builds(Record, timestamp_ms=stamps, key=blobs, value=blobs, headers=pairs), min_size=1, max_size=8
)
alike = st.builds(
    lambda record, count, step: [record._replace(timestamp_ms=1000 + step * n) for n in range(count)],
    st.builds(Record, key=st.none() | st.binary(max_size=9), value=st.none() | st.binary(max_size=90)),
    st.integers(1, 40),
    st.integers(-20, 70_000),
)
mixed = st.tuples(alike, any_records, alike).map(lambda three: [record for records in three for record in records])
records_of_a_batch: st.SearchStrategy[list[Record]] = any_records | alike | mixed


@pytest.fixture(params=twins.TWINS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return twins.kernels_of(request.param)


@pytest.fixture(scope="module")  # scope "module", because all examples of a property share the fixture
def compiled() -> Kernels:
    return twins.kernels_of("compiled")


def batch(kernels: Kernels, records: Sequence[Record] = RECORDS) -> bytearray:
    body = kernels.encode_records(records)
    times = (body.base_timestamp_ms, body.max_timestamp_ms)
    kernels.seal_batch(body.buffer, 70, 4, 0, body.last_offset_delta, *times, 77, 2, 5, body.record_count)
    return body.buffer


def decoded(kernels: Kernels, data: bytes | bytearray, fields: Fields = Fields.ALL) -> RecordColumns:
    table = kernels.scan_batches(data, 0, len(data), True)
    assert table.stop is ScanStop.END
    return kernels.decode_batches(data, table, None, fields)


def table_as_lists(table: BatchTable) -> list[object]:
    head = [table.magic, table.stop, table.stop_position, table.reason, table.ascends]
    return [*head, *(column.tolist() for column in table.columns)]


# --- scan --------------------------------------------------------------------------------------------------------


def test_a_scan_reads_every_field_of_the_header(kernels: Kernels) -> None:
    data = batch(PYTHON)
    (row,) = kernels.scan_batches(data, 0, len(data), True)
    assert [getattr(row, name) for name in BATCH_COLUMNS] == [
        *(0, len(data), 70, 73, 1000, 1003, 4, 77, 2, 5, 4, 0),
        crc32c(bytes(data[21:])),
    ]


def test_a_scan_keeps_to_its_bounds(kernels: Kernels) -> None:
    data = bytes(batch(PYTHON))
    table = kernels.scan_batches(b"\xff" * 5 + 3 * data + b"\xff", 5, 5 + 2 * len(data) + 20, True)
    assert table.position.tolist() == [5, 5 + len(data)]
    assert (table.stop, table.stop_position) == (ScanStop.PARTIAL, 5 + 2 * len(data))


@pytest.mark.parametrize("bounds", [(-1, 10), (0, 11), (-5, -1)])
def test_a_range_that_is_not_inside_the_bytes_is_an_error(kernels: Kernels, bounds: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match="not inside"):
        kernels.scan_batches(bytes(10), *bounds, False)
    with pytest.raises(IndexError, match="not inside"):
        kernels.scan_messages(1, bytes(10), *bounds, False)


@pytest.mark.parametrize(
    ("position", "lie", "stop", "reason"),
    [
        (8, INT32.pack(13), ScanStop.CORRUPT, "an entry of size 13 is too small"),
        (8, INT32.pack(-(1 << 31)), ScanStop.CORRUPT, "an entry of size -2147483648 is too small"),
        (8, INT32.pack((1 << 31) - 1), ScanStop.PARTIAL, ""),
        (8, INT32.pack(14), ScanStop.CORRUPT, "a batch of 26 bytes is shorter than its header"),
        (8, INT32.pack(48), ScanStop.CORRUPT, "a batch of 60 bytes is shorter than its header"),
        (16, b"\1", ScanStop.OTHER_MAGIC, ""),
        (16, b"\xff", ScanStop.OTHER_MAGIC, ""),
        (17, bytes(4), ScanStop.CORRUPT, "the CRC does not match"),
        (0, INT64.pack((1 << 63) - 3), ScanStop.CORRUPT, "offset 9223372036854775805 + 3 overflows"),
    ],
)
def test_a_scan_stops_at_a_wrong_header(
    kernels: Kernels, position: int, lie: bytes, stop: ScanStop, reason: str
) -> None:
    first, data = bytes(batch(PYTHON)), batch(PYTHON)
    data[position : position + len(lie)] = lie
    table = kernels.scan_batches(first + data, 0, 2 * len(first), True)
    assert (table.stop, table.reason, table.stop_position, len(table)) == (stop, reason, len(first), 1)


@given(raw=st.binary(max_size=90), magic=st.integers(0, 2), size=st.integers(-1, 90), check=st.booleans())
def test_twins_scan_any_bytes_alike(compiled: Kernels, raw: bytes, magic: int, size: int, *, check: bool) -> None:
    data = bytearray(raw.ljust(17, b"\0"))
    data[16] = magic
    INT32.pack_into(data, 8, size)
    start = 0 if check else len(raw) % 5
    for kind in (0, 1):
        expected = PYTHON.scan_messages(kind, data, start, len(data), check)
        assert table_as_lists(compiled.scan_messages(kind, data, start, len(data), check)) == table_as_lists(expected)
    expected = PYTHON.scan_batches(data, start, len(data), check)
    assert table_as_lists(compiled.scan_batches(data, start, len(data), check)) == table_as_lists(expected)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 255, 256, 767, 768, 769, 6143, 6144, 6145, 20_000])
def test_a_sum_is_right_for_every_way_of_reading(kernels: Kernels, size: int) -> None:
    """The compiled CRC processes long inputs as three streams, and the rest by words and bytes."""
    data = batch(PYTHON, [Record(value=bytes(range(256)) * 80)])[: 61 + size]
    INT32.pack_into(data, 8, len(data) - 12)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    assert kernels.scan_batches(data, 0, len(data), True).stop is ScanStop.END
    data[-1] ^= 1
    assert kernels.scan_batches(data, 0, len(data), True).stop is ScanStop.CORRUPT


# --- decode ------------------------------------------------------------------------------------------------------


def test_records_come_back(kernels: Kernels) -> None:
    records = decoded(kernels, batch(kernels)).to_records()
    assert [record._replace(offset=-1, leader_epoch=-1) for record in records] == list(RECORDS)
    assert [(record.offset, record.leader_epoch) for record in records] == [(70 + n, 4) for n in range(4)]


@pytest.mark.parametrize("fields", [Fields(0), *Fields, Fields.KEY | Fields.HEADERS])
def test_only_the_fields_that_were_asked_for_are_filled(kernels: Kernels, fields: Fields) -> None:
    columns = decoded(kernels, batch(PYTHON), fields)
    assert columns.count == 4
    for field, names_of in {
        Fields.OFFSET: ("offset", "leader_epoch"),
        Fields.TIMESTAMP: ("timestamp_ms", "timestamp_type"),
        Fields.KEY: ("key_position", "key_size"),
        Fields.VALUE: ("value_position", "value_size"),
        Fields.HEADERS: ("header_first", "header_count"),
    }.items():
        assert {len(getattr(columns, name)) for name in names_of} == {4 if field in fields else 0}
    assert len(columns.header_key_size) == len(columns.header_value_position) == (3 if Fields.HEADERS in fields else 0)


def test_bounds_show_the_place_of_the_records(kernels: Kernels) -> None:
    data = batch(PYTHON)
    table = kernels.scan_batches(data, 0, len(data), True)
    arena = b"abc" + bytes(data[61:]) + b"d"
    columns = kernels.decode_batches(arena, table, memoryview(array("q", (3, len(arena) - 1))), Fields.ALL)
    assert columns.values() == [record.value for record in RECORDS]


@pytest.mark.parametrize("bounds", [(-1, 40), (10, 9), (0, 1 << 40)])
def test_bounds_outside_the_arena_are_an_error(kernels: Kernels, bounds: tuple[int, int]) -> None:
    data = batch(PYTHON)
    table = kernels.scan_batches(data, 0, len(data), True)
    with pytest.raises(IndexError, match="not inside"):
        kernels.decode_batches(bytes(100), table, memoryview(array("q", bounds)), Fields.ALL)


def test_the_batch_that_cannot_hold_its_records_is_named_before_those_that_hold_wrong_ones(kernels: Kernels) -> None:
    """Counts are compared with sizes before any batch is decoded.

    In an earlier release, one implementation did both for each batch, and named another batch.
    """
    data = bytes(batch(PYTHON))
    broken_data, lying_data = bytearray(data), bytearray(data)
    broken_data[61] ^= 0x40
    INT32.pack_into(lying_data, 57, 1 << 20)
    table = kernels.scan_batches(bytes(broken_data + lying_data), 0, 2 * len(data), False)
    with pytest.raises(CorruptBatchError, match="1048576 records") as caught:
        kernels.decode_batches(bytes(broken_data + lying_data), table, None, Fields.ALL)
    assert caught.value.position == len(data)


def test_a_record_without_headers_has_the_first_header_0(kernels: Kernels) -> None:
    """A count of zero headers may be encoded in several bytes.

    In an earlier release, one implementation then returned the start of the next headers.
    """
    with_headers = bytes(batch(PYTHON, RECORDS[1:3]))[61:]
    body = with_headers + b"\x12\0\0\x06\1\1\x80\x80\x80\0" + with_headers
    data = bytearray(bytes(batch(PYTHON, RECORDS[1:3]))[:61] + body)
    INT32.pack_into(data, 8, len(data) - 12)
    INT32.pack_into(data, 57, 5)
    table = kernels.scan_batches(data, 0, len(data), False)
    columns = kernels.decode_batches(data, table, None, Fields.ALL)
    assert columns.header_first.tolist() == [0, 2, 0, 3, 5]
    assert columns.header_count.tolist() == [2, 1, 0, 2, 1]


@given(records=records_of_a_batch)
def test_twins_decode_alike(compiled: Kernels, records: list[Record]) -> None:
    data = bytes(batch(PYTHON, records)) * 2
    expected = twins.columns_as_lists(decoded(PYTHON, data))
    assert twins.columns_as_lists(decoded(compiled, data)) == expected


@given(records=records_of_a_batch, data=st.data())
def test_twins_give_the_same_verdict_on_damaged_records(
    compiled: Kernels, records: list[Record], data: st.DataObject
) -> None:
    raw = batch(PYTHON, records)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(61, len(raw) - 1))] = data.draw(st.integers(0, 255))
    results = []
    for kernels in (PYTHON, compiled):
        table = kernels.scan_batches(raw, 0, len(raw), False)
        try:
            results.append(twins.columns_as_lists(kernels.decode_batches(raw, table, None, Fields.ALL)))
        except CorruptBatchError as error:
            results.append([error.position])
    assert results[0] == results[1]


# --- encode, seal, assign ----------------------------------------------------------------------------------------


@given(records=records_of_a_batch)
def test_twins_encode_alike_from_objects_and_from_columns(compiled: Kernels, records: list[Record]) -> None:
    expected = PYTHON.encode_records(records)
    assert compiled.encode_records(records) == expected
    data = batch(PYTHON, records)
    columns = decoded(PYTHON, data)
    for kernels in (PYTHON, compiled):
        for keep_offsets in (False, True):
            assert kernels.encode_columns(columns, keep_offsets) == expected


def test_gaps_between_offsets_are_kept_if_asked_for(kernels: Kernels) -> None:
    columns = decoded(PYTHON, batch(PYTHON)).take(0, 4)
    holes = RecordColumns(
        columns.arena,
        2,
        *(getattr(columns, name)[::2] for name in twins.COLUMN_NAMES[:10]),
        *(getattr(columns, name) for name in twins.COLUMN_NAMES[10:]),
    )
    body = kernels.encode_columns(_contiguous(holes), True)
    assert (body.record_count, body.last_offset_delta) == (2, 2)
    body = kernels.encode_columns(_contiguous(holes), False)
    assert (body.record_count, body.last_offset_delta) == (2, 1)


def test_a_column_with_gaps_in_memory_is_refused(compiled: Kernels) -> None:
    columns = RecordColumns.from_records(RECORDS)
    with pytest.raises(TypeError, match="must be a contiguous memoryview"):
        compiled.encode_columns(replace(columns, count=2, timestamp_ms=columns.timestamp_ms[::2]), False)


def _contiguous(columns: RecordColumns) -> RecordColumns:
    """Return a copy of the columns without gaps in memory, which kernels require."""
    parts = [getattr(columns, name) for name in twins.COLUMN_NAMES]
    return RecordColumns(columns.arena, columns.count, *(memoryview(array(p.format, p.tolist())) for p in parts))


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("offset", (5, 5), InvalidRecordError),
        ("offset", (5, 4), InvalidRecordError),
        ("offset", (0, 1 << 31), InvalidRecordError),
        ("timestamp_ms", (0, -2), InvalidRecordError),
        ("key_position", (0, 4), IndexError),
        ("key_position", (0, -1), IndexError),
        ("key_size", (0, 6), IndexError),
        ("value_position", (0, (1 << 31) - 1), IndexError),
        ("value_size", (0, (1 << 31) - 1), IndexError),
        ("header_first", (0, 2), IndexError),
        ("header_first", (0, -1), IndexError),
        ("header_count", (0, 3), IndexError),
        ("header_count", (0, -1), IndexError),
        ("header_key_position", (0, 5), IndexError),
        ("header_key_size", (0, -1), IndexError),
        ("header_value_position", (0, -1), IndexError),
        ("header_value_size", (0, 6), IndexError),
    ],
)
def test_inconsistent_columns_are_refused(
    kernels: Kernels, name: str, values: tuple[int, int], error: type[Exception]
) -> None:
    wide = {"offset": (0, 1), "timestamp_ms": (0, 0)}
    narrow = dict.fromkeys(twins.COLUMN_NAMES[2:], (0, 0)) | dict.fromkeys(
        ("key_size", "value_size", "header_key_size", "header_value_size"), (0, 2)
    )
    narrow["header_count"] = (0, 2)
    columns = {key: memoryview(array("q", pair)) for key, pair in wide.items()}
    columns |= {key: memoryview(array("i", pair)) for key, pair in narrow.items()}
    assert kernels.encode_columns(RecordColumns(b"abcde", 2, **columns), True).record_count == 2
    columns[name] = memoryview(array("q" if name in wide else "i", values))
    with pytest.raises(error) as caught:
        kernels.encode_columns(RecordColumns(b"abcde", 2, **columns), True)
    with pytest.raises(error) as expected:
        PYTHON.encode_columns(RecordColumns(b"abcde", 2, **columns), True)
    assert str(caught.value) == str(expected.value)
    if isinstance(caught.value, InvalidRecordError):
        assert [index for index, _ in caught.value.record_errors] == [1]


def test_no_records_are_no_batch(kernels: Kernels) -> None:
    with pytest.raises(InvalidRecordError, match="at least one"):
        kernels.encode_records([])
    with pytest.raises(InvalidRecordError, match="at least one"):
        kernels.encode_columns(RecordColumns(b"", 0), False)


@given(
    size=st.integers(61, 90),
    longs=st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 4),
    ints=st.tuples(*[st.integers(-(1 << 31), (1 << 31) - 1)] * 4),
    flags=st.integers(0, 127),
    epoch=st.integers(-(1 << 15), (1 << 15) - 1),
)
def test_twins_seal_alike(
    compiled: Kernels,
    size: int,
    longs: tuple[int, int, int, int],
    ints: tuple[int, int, int, int],
    flags: int,
    epoch: int,
) -> None:
    base, first_ms, max_ms, producer = longs
    leader_epoch, delta, sequence, count = ints
    sealed = []
    for kernels in (PYTHON, compiled):
        data = bytearray(range(size))
        kernels.seal_batch(data, base, leader_epoch, flags, delta, first_ms, max_ms, producer, epoch, sequence, count)
        sealed.append(data)
    assert sealed[0] == sealed[1]
    (row,) = PYTHON.scan_batches(sealed[0], 0, size, True) if -(1 << 63) <= base + delta < 1 << 63 else [None]
    if row is not None:
        assert (row.base_offset, row.leader_epoch, row.attributes, row.last_offset - base) == (
            *(base, leader_epoch, flags, delta),
        )


@given(
    lists=st.lists(records_of_a_batch, min_size=1, max_size=3),
    base_offset=st.integers(0, 1 << 60),
    epoch=st.integers(-1, (1 << 31) - 1),
    stamp_ms=st.none() | st.integers(-1, (1 << 63) - 1),
)
def test_twins_assign_alike(
    compiled: Kernels, lists: list[list[Record]], base_offset: int, epoch: int, stamp_ms: int | None
) -> None:
    encoded = b"".join(bytes(batch(PYTHON, records)) for records in lists)
    assigned = []
    for kernels in (PYTHON, compiled):
        data = bytearray(encoded)
        batches = PreparedBatches(kernels.scan_batches(data, 0, len(data), True), data)
        kernels.assign(batches, base_offset, epoch, stamp_ms)
        assert list(batches.table) == list(kernels.scan_batches(data, 0, len(data), True))
        assigned.append(data)
    assert assigned[0] == assigned[1]
    table = PYTHON.scan_batches(assigned[0], 0, len(encoded), True)
    assert (table.stop, table.base_offset[0], set(table.leader_epoch)) == (ScanStop.END, base_offset, {epoch})
    assert table.last_offset[-1] == base_offset + sum(map(len, lists)) - 1


def test_batches_that_are_not_inside_the_bytes_are_not_assigned(kernels: Kernels) -> None:
    """Earlier batches stay unchanged, too.

    In an earlier release, one implementation checked each batch only when it assigned it.
    """
    data = batch(PYTHON) * 2
    table = kernels.scan_batches(data, 0, len(data), True)
    short = data[:-1]
    with pytest.raises(IndexError, match="not inside"):
        kernels.assign(PreparedBatches(table, short), 5, 5, None)
    assert short == data[:-1]
