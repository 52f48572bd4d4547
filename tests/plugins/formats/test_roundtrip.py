"""Any records, in any format and codec: written records are read back, before and after offsets are assigned."""

from __future__ import annotations

from struct import Struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog import Record, TimestampType
from stratalog.errors import StorageError
from stratalog.model.prepared import PreparedBatches
from stratalog.spi import BatchHeader, BatchTable, Codec, CodecTable, Fields, Headers, RecordFormat, ScanStop
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1

LIMIT_BYTES = 1 << 24
LAST_MS = (1 << 63) - 1
INT64 = Struct(">q")
CODECS: dict[str, Codec] = {"gzip": GzipCodec(), "snappy": SnappyCodec(), "lz4": Lz4Codec(), "zstd": ZstdCodec()}
TABLE = CodecTable(CODECS.items())
FORMATS: dict[int, RecordFormat] = {0: MessageFormatV0(TABLE), 1: MessageFormatV1(TABLE), 2: BatchFormat(TABLE)}
PAIRS = [(magic, name) for magic in FORMATS for name in (None, *CODECS) if magic == 2 or name != "zstd"]

names = st.text(max_size=5)
times = st.integers(-1, LAST_MS)
near_times = st.integers(1_700_000_000_000, 1_700_000_100_000)
blobs = st.none() | st.binary(max_size=20) | st.integers(60, 9000).map(bytes)
pairs = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
offsets = st.integers(0, 1 << 40)


def record_of(stamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
    """Return a record with exactly these fields; ``st.builds(Record)`` would draw the others at random."""
    return Record(timestamp_ms=stamp, key=key, value=value, headers=headers)


@st.composite
def record_lists(draw: st.DrawFn, magic: int) -> list[Record]:
    """Return records that the format supports: timestamps close to or far from each other, headers only in magic 2."""
    stamps = draw(st.sampled_from((times, near_times)))
    headers = pairs if magic == 2 else st.just(())
    return draw(st.lists(st.builds(record_of, stamps, blobs, blobs, headers), min_size=1, max_size=6))


def scanned(form: RecordFormat, data: bytes | bytearray) -> BatchTable:
    table = form.scan(data, 0, len(data), check_crc=True)
    assert table.stop is ScanStop.END
    return table


def read(form: RecordFormat, data: bytes | bytearray, table: BatchTable) -> list[Record]:
    chunks = form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES)
    return [record for columns in chunks for record in columns.to_records()]


def contents(records: list[Record], magic: int) -> list[tuple[object, ...]]:
    return [(r.timestamp_ms if magic else -1, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize(("magic", "name"), PAIRS)
@given(data=st.data())
@pytest.mark.long
def test_records_come_back_before_and_after_they_are_assigned(
    magic: int, name: str | None, data: st.DataObject
) -> None:
    form, codec = FORMATS[magic], CODECS[name] if name else None
    given_records = data.draw(record_lists(magic))
    first_base, assigned_base = data.draw(offsets), data.draw(offsets)
    encoded = form.encode(given_records, BatchHeader(base_offset=first_base), codec, None)
    expected = contents(given_records, magic)
    decoded_records = read(form, encoded, scanned(form, encoded))
    assert contents(decoded_records, magic) == expected
    assert [record.offset for record in decoded_records] == list(range(first_base, first_base + len(expected)))

    batches = PreparedBatches(scanned(form, encoded), encoded)
    form.assign(batches, assigned_base, 4, None)
    assert list(batches.table) == list(scanned(form, encoded))
    decoded_records = read(form, encoded, batches.table)
    assert contents(decoded_records, magic) == expected
    assert [record.offset for record in decoded_records] == list(range(assigned_base, assigned_base + len(expected)))
    assert {record.leader_epoch for record in decoded_records} == {4 if magic == 2 else -1}


@pytest.mark.parametrize(("magic", "name"), [pair for pair in PAIRS if pair[0]])
@given(data=st.data())
@pytest.mark.long
def test_append_time_replaces_every_time_and_nothing_else(magic: int, name: str | None, data: st.DataObject) -> None:
    form, codec = FORMATS[magic], CODECS[name] if name else None
    given_records = data.draw(record_lists(magic))
    append_ms = data.draw(st.integers(0, LAST_MS))
    encoded = form.encode(given_records, BatchHeader(), codec, None)
    batches = PreparedBatches(scanned(form, encoded), encoded)
    form.assign(batches, 0, 0, append_ms)
    decoded_records = read(form, encoded, batches.table)
    assert decoded_records == read(form, encoded, scanned(form, encoded))
    assert {(record.timestamp_ms, record.timestamp_type) for record in decoded_records} == {
        (append_ms, TimestampType.LOG_APPEND_TIME)
    }
    assert [row[1:] for row in contents(decoded_records, magic)] == [row[1:] for row in contents(given_records, magic)]


@pytest.mark.parametrize("magic", list(FORMATS))
@given(raw=st.binary(max_size=150), start=st.integers(0, 20), check_crc=st.booleans())
def test_any_bytes_are_scanned_and_decoded_or_refused_typed(
    magic: int, raw: bytes, start: int, *, check_crc: bool
) -> None:
    """Any bytes are decoded, or raise a typed error, also with a valid magic byte. A scan stops inside the bytes."""
    framed = bytearray(raw.ljust(17, b"\0"))
    framed[16] = magic
    INT64.pack_into(framed, 4, len(framed) - 12)  # the lower 4 bytes are the size
    for data, begin in ((raw, min(start, len(raw))), (bytes(framed), 0)):
        table = FORMATS[magic].scan(data, begin, len(data), check_crc=check_crc)
        assert begin <= table.stop_position <= len(data)
        assert bool(table.reason) is (table.stop is ScanStop.CORRUPT)
        try:
            read(FORMATS[magic], data, table)
        except StorageError as error:
            assert not error.retriable  # noqa: PT017 - records, or a typed error


@pytest.mark.parametrize("later_ms", [1, 63, 64, 200, 8191, 8192, 70_000, 1 << 40])
def test_a_time_past_64_bits_wraps_however_its_delta_is_written(later_ms: int) -> None:
    """Kafka adds Java longs, which wrap.

    In an earlier release, deltas of one or two bytes raised an error, and only longer ones wrapped.
    """
    form = FORMATS[2]
    data = form.encode([Record(timestamp_ms=1000), Record(timestamp_ms=1000 + later_ms)], BatchHeader(), None, None)
    INT64.pack_into(data, 27, LAST_MS)  # the base timestamp
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    timestamps = [record.timestamp_ms for record in read(form, data, scanned(form, data))]
    assert timestamps == [LAST_MS, LAST_MS + later_ms - (1 << 64)]
