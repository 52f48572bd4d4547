"""Records decoded directly into Arrow's buffers equal those decoded through columns; errors are the same, too."""

from __future__ import annotations

import sys
from array import array
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from stratalog import Record, TimestampType
from stratalog.errors import ConfigError, CorruptBatchError, PluginImportError
from stratalog.model.arrow import arrow_schema
from stratalog.spi import ArrowBuffers, BatchHeader, BatchTable, Fields, arrow_batches
from stratalog_formats.kernels.dispatch import PYTHON, Kernels
from stratalog_formats.records.batches import BatchFormat

LIMIT_BYTES = 1 << 20
LONG_MAX = (1 << 63) - 1
PLAIN = BatchFormat(twins.TABLE, PYTHON)

stamps = st.integers(-1, LONG_MAX) | st.integers(1_700_000_000_000, 1_700_000_100_000)
blobs = st.none() | st.binary(max_size=70) | st.sampled_from([31, 32, 33, 64, 2047, 2048, 9000]).map(bytes)
without_headers = st.lists(
    st.builds(Record, timestamp_ms=stamps, key=blobs, value=blobs, headers=st.just(())), min_size=1, max_size=20
)


@pytest.fixture(scope="module")
def compiled() -> Kernels:
    return twins.kernels_of("compiled")


def written(records: list[Record], codec: str | None = None, header: BatchHeader | None = None) -> bytearray:
    return PLAIN.encode(
        records, header or BatchHeader(base_offset=70, leader_epoch=4), twins.CODECS.get(codec or ""), None
    )


def scanned(data: bytes | bytearray) -> BatchTable:
    return PLAIN.scan(data, 0, len(data), check_crc=False)


def packed(kernels: Kernels, data: bytes | bytearray, bounds: memoryview | None = None) -> pa.RecordBatch | None:
    assert kernels.pack_batches is not None
    buffers = kernels.pack_batches(data, scanned(data), bounds, 3, ArrowBuffers.allocator(), Fields.ALL)
    return None if buffers is None else buffers.batch()


def by_columns(data: bytes | bytearray) -> pa.RecordBatch:
    (batch,) = arrow_batches(PYTHON.decode_batches(data, scanned(data), None, Fields.ALL), 3)
    return batch


def agrees(kernels: Kernels, data: bytes | bytearray) -> pa.RecordBatch:
    batch = packed(kernels, data)
    assert batch is not None
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema())
    assert batch.equals(by_columns(data))
    return batch


def data_bytes(batch: pa.RecordBatch, name: str) -> int:
    buffer = batch.column(name).buffers()[2]
    return 0 if buffer is None else buffer.size


def address_of(batch: pa.RecordBatch, name: str) -> int:
    buffer = batch.column(name).buffers()[1]
    assert buffer is not None
    return buffer.address


@given(first=without_headers, second=without_headers)
def test_records_of_any_shape_are_those_of_the_columns(
    compiled: Kernels, first: list[Record], second: list[Record]
) -> None:
    agrees(compiled, written(first) + written(second, header=BatchHeader(base_offset=1 << 40)))


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 300])
def test_a_column_of_nulls_alone_has_no_bytes(compiled: Kernels, field: str, count: int) -> None:
    record = Record(value=b"v") if field == "key" else Record(key=b"k")
    batch = agrees(compiled, written([record] * count))
    assert batch.column(field).null_count == count
    assert data_bytes(batch, field) == 0


def test_buffers_are_as_large_as_what_is_in_them(compiled: Kernels) -> None:
    batch = agrees(compiled, written([Record(key=b"key", value=b"value", timestamp_ms=5)] * 100))
    assert [data_bytes(batch, name) for name in ("key", "value")] == [300, 500]
    assert [batch.column(name).buffers()[0] for name in ("key", "value", "timestamp")] == [None] * 3


@pytest.mark.parametrize("sizes", [(10, 100), (None, 5), (300, None), (0, 0)])
def test_only_used_memory_is_held(compiled: Kernels, sizes: tuple[int | None, int | None]) -> None:
    """During decoding, each column reserves memory for all bytes, because its size is not known before."""
    key, value = (None if size is None else bytes(size) for size in sizes)
    data = written([Record(key=key, value=value, timestamp_ms=5)] * 4000)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    assert compiled.pack_batches is not None
    buffers = compiled.pack_batches(
        data, scanned(data), None, 3, partial(pa.allocate_buffer, memory_pool=pool), Fields.ALL
    )
    assert buffers is not None
    # Memory for absent columns, and Arrow's alignment.
    assert pool.bytes_allocated() <= buffers.batch().nbytes + 64 * 16
    del buffers


@pytest.mark.parametrize("append_time_ms", [5, -1, LONG_MAX])
def test_append_time_is_every_rows_time(compiled: Kernels, append_time_ms: int) -> None:
    header = BatchHeader(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=append_time_ms)
    batch = agrees(compiled, written([Record(timestamp_ms=9), Record(timestamp_ms=-1)], header=header))
    assert batch.column("timestamp_type").to_pylist() == [1, 1]
    assert batch.column("timestamp").null_count == (0 if append_time_ms == 5 else 2)


def test_each_batch_has_its_epoch_and_kind_of_time(compiled: Kernels) -> None:
    stamped_header = BatchHeader(leader_epoch=9, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=8)
    data = written([Record(value=b"v")] * 3) + written([Record(value=b"w")] * 2, header=stamped_header)
    batch = agrees(compiled, data)
    assert batch.column("leader_epoch").to_pylist() == [4, 4, 4, 9, 9]
    assert batch.column("timestamp_type").to_pylist() == [0, 0, 0, 1, 1]


def test_a_value_that_all_rows_share_is_in_memory_once(compiled: Kernels) -> None:
    data = written([Record(value=b"v")] * 5000)
    batches = [agrees(compiled, data), agrees(compiled, data)]
    addresses = [
        {address_of(batch, name) for name in ("partition", "leader_epoch", "timestamp_type")} for batch in batches
    ]
    assert addresses[0] == addresses[1]
    assert len(addresses[0]) == 3


@pytest.mark.parametrize("end", range(1, 40))
def test_nothing_behind_the_bytes_is_read_into_the_columns(compiled: Kernels, end: int) -> None:
    """Copies of several bytes at a time must not read past the end of the last records."""
    records = [Record(key=b"k" * (n % 3), value=bytes([n]) * (n % end), timestamp_ms=n) for n in range(40)]
    agrees(compiled, written(records))


def test_headers_are_packed_through_columns(compiled: Kernels) -> None:
    data = written([Record(value=b"v")] * 5 + [Record(headers=(("h", b"x"),))]) + written([Record(value=b"w")])
    assert packed(compiled, data) is None
    batches = BatchFormat(twins.TABLE, compiled).decode_arrow(data, scanned(data), partition=3, limit_bytes=LIMIT_BYTES)
    assert list(batches) == [by_columns(data)]


@pytest.mark.parametrize("twin", twins.TWINS)
def test_each_arena_is_a_batch_compressed_or_not(twin: str) -> None:
    records = [Record(key=b"k", value=bytes(200), timestamp_ms=n) for n in range(900)]
    form = BatchFormat(twins.TABLE, twins.kernels_of(twin))
    data = b"".join(bytes(written(records, codec)) for codec in (None, None, *twins.CODECS, "zstd", None))
    table = scanned(data)
    batches = list(form.decode_arrow(data, table, partition=3, limit_bytes=LIMIT_BYTES))
    chunks = list(form.decode(data, table, limit_bytes=LIMIT_BYTES))
    assert [batch.num_rows for batch in batches] == [columns.count for columns in chunks]
    assert len(batches) > 3
    for batch, columns in zip(batches, chunks, strict=True):
        assert [batch] == list(arrow_batches(columns, 3))


@pytest.mark.parametrize("twin", twins.TWINS)
def test_no_batches_and_emptied_ones_have_no_rows(twin: str) -> None:
    form = BatchFormat(twins.TABLE, twins.kernels_of(twin))
    data = written([Record(value=b"v")])
    data[57:61] = bytes(4)
    for rows in (scanned(data).take(0, 0), scanned(data)):
        assert list(form.decode_arrow(data, rows, partition=0, limit_bytes=LIMIT_BYTES)) == []


@pytest.mark.parametrize("lie", [0, 2, 1 << 20])
def test_bytes_that_are_wrong_are_refused_as_by_decode(compiled: Kernels, lie: int) -> None:
    valid_batch, damaged_batch = written([Record(value=b"v")]), written([Record(value=b"v")])
    damaged_batch[57:61] = lie.to_bytes(4, "big") if lie else b"\0\0\0\1"
    if not lie:
        damaged_batch[61] = 0x7F  # the length of the record
    data = valid_batch + damaged_batch
    form = BatchFormat(twins.TABLE, compiled)
    assert packed(compiled, data) is None
    with pytest.raises(CorruptBatchError) as caught:
        list(form.decode_arrow(data, scanned(data), partition=0, limit_bytes=LIMIT_BYTES))
    with pytest.raises(CorruptBatchError) as expected:
        list(form.decode(data, scanned(data), limit_bytes=LIMIT_BYTES))
    assert (str(caught.value), caught.value.position) == (str(expected.value), len(valid_batch))


@pytest.mark.parametrize("bounds", [(-1, 10), (0, 1 << 20), (70, 69)])
def test_bounds_outside_the_arena_are_an_error(compiled: Kernels, bounds: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match="not inside"):
        packed(compiled, written([Record(value=b"v")]), memoryview(array("q", bounds)))


def test_batches_that_share_their_bytes_find_room(compiled: Kernels) -> None:
    data = written([Record(key=bytes(600), value=bytes(600))])
    bounds = memoryview(array("q", [61, len(data)] * 2))
    assert compiled.pack_batches is not None
    buffers = compiled.pack_batches(data, scanned(data + data), bounds, 3, ArrowBuffers.allocator(), Fields.ALL)
    assert buffers is not None
    batch = buffers.batch()
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == batch.column("value").to_pylist() == [bytes(600)] * 2


def test_the_bytes_may_be_used_again_at_once(compiled: Kernels) -> None:
    data = written([Record(key=b"key", value=bytes(700))] * 20)
    expected = by_columns(bytes(data))
    (batch,) = BatchFormat(twins.TABLE, compiled).decode_arrow(
        data, scanned(data), partition=3, limit_bytes=LIMIT_BYTES
    )
    data[:] = b"\xff" * len(data)
    data.clear()  # raises BufferError if a view exists
    assert batch.equals(expected)


CHOICES = [
    ["value"],
    ["key"],
    ["timestamp", "offset"],
    ["headers", "key"],
    ["offset"],
    ["leader_epoch", "partition", "timestamp_type"],
    ["partition"],
    [],
]


@pytest.mark.parametrize("columns", CHOICES, ids=" ".join)
@pytest.mark.parametrize("headers", [(), (("h", b"x"), ("n", None))], ids=["plain", "headers"])
@pytest.mark.parametrize("form", ["v0", "v1", "v2"])
@pytest.mark.parametrize("twin", twins.TWINS)
def test_chosen_columns_are_those_of_all(
    twin: str, form: str, headers: tuple[tuple[str, bytes | None], ...], columns: list[str]
) -> None:
    if headers and form != "v2":
        pytest.skip("messages have no headers")
    record_format = twins.formats(twins.kernels_of(twin))[form]
    records = [
        Record(
            key=None if n % 7 == 3 else b"k" * n,
            value=None if n % 5 == 2 else b"v" * n,
            timestamp_ms=n,
            headers=headers,
        )
        for n in range(90)
    ]
    data = b"".join(
        bytes(record_format.encode(records, BatchHeader(base_offset=90 * n, leader_epoch=n), codec, None))
        for n, codec in enumerate((None, twins.CODECS["gzip"], None))
    )
    table = record_format.scan(data, 0, len(data), check_crc=True)
    all_columns = pa.Table.from_batches(record_format.decode_arrow(data, table, partition=3, limit_bytes=LIMIT_BYTES))
    chosen_columns = pa.Table.from_batches(
        record_format.decode_arrow(data, table, partition=3, limit_bytes=LIMIT_BYTES, columns=columns),
        arrow_schema(columns),
    )
    chosen_columns.validate(full=True)
    assert chosen_columns.num_rows == 270
    assert chosen_columns.equals(all_columns.select(columns))


def test_offsets_alone_need_no_record(compiled: Kernels) -> None:
    """The bytes of the records are not read or decompressed."""
    data = written([Record(value=b"v")] * 20, "zstd") + written([Record(value=b"w")] * 2)
    data[70:90] = bytes(20)
    data[-8:] = bytes(8)
    form = BatchFormat(twins.TABLE, compiled)
    batches = form.decode_arrow(
        data, scanned(data), partition=3, limit_bytes=LIMIT_BYTES, columns=["offset", "partition"]
    )
    (batch,) = batches
    assert batch.column("offset").to_pylist() == [*range(70, 90), 70, 71]
    with pytest.raises(CorruptBatchError):
        list(form.decode_arrow(data, scanned(data), partition=3, limit_bytes=LIMIT_BYTES, columns=["offset", "key"]))


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_offsets_of_a_batch_that_lost_records_are_those_of_its_records(compiled: Kernels, codec: str | None) -> None:
    form = BatchFormat(twins.TABLE, compiled)
    data = written([Record(key=b"%d" % n) for n in range(10)], codec)
    verdicts = [bytes([0, 1, 0, 0, 1, 0, 0, 0, 0, 1])]
    kept_data = b"".join(map(bytes, form.retain(data, scanned(data), verdicts, None, limit_bytes=LIMIT_BYTES)))
    (batch,) = form.decode_arrow(
        kept_data, scanned(kept_data), partition=3, limit_bytes=LIMIT_BYTES, columns=["offset"]
    )
    assert batch.column("offset").to_pylist() == [70, 72, 73, 75, 76, 77, 78]


def test_a_count_that_the_bytes_cannot_hold_is_refused_for_offsets_too(compiled: Kernels) -> None:
    """The two fields of the header agree on the number of records."""
    data = written([Record(value=b"v")])
    data[23:27], data[57:61] = (9_999).to_bytes(4, "big"), (10_000).to_bytes(4, "big")
    form = BatchFormat(twins.TABLE, compiled)
    with pytest.raises(CorruptBatchError, match="10000 records do not fit"):
        list(form.decode_arrow(data, scanned(data), partition=0, limit_bytes=LIMIT_BYTES, columns=["offset"]))


@pytest.mark.parametrize("twin", twins.TWINS)
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["vale"], "did you mean 'value'"),
        ("value", r"\['value'\]"),
        (["key", "key"], "named twice"),
        (["topic"], "the columns are"),
    ],
)
def test_columns_that_do_not_exist_are_refused(twin: str, columns: list[str] | str, text: str) -> None:
    form, data = BatchFormat(twins.TABLE, twins.kernels_of(twin)), written([Record(value=b"v")])
    with pytest.raises(ConfigError, match=text):
        list(form.decode_arrow(data, scanned(data), partition=0, limit_bytes=LIMIT_BYTES, columns=columns))


@pytest.mark.parametrize("twin", twins.TWINS)
def test_without_pyarrow_the_extra_is_named(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, data = BatchFormat(twins.TABLE, twins.kernels_of(twin)), written([Record(value=b"v")])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginImportError, match=r"stratalog\[arrow\]"):
        list(form.decode_arrow(data, scanned(data), partition=0, limit_bytes=LIMIT_BYTES))
