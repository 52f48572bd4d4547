"""Segments as Parquet files: the engine reads back the exact bytes of any log, and other programs read the records."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import twins
from drawn_batches import NOW_MS, records
from stratalog import Record, TimestampType
from stratalog.errors import CorruptObjectError, InvalidRecordError, StorageError
from stratalog.spi import BatchHeader, CodecTable, FileKind, StoredSegment, TierLayout, Verdict
from stratalog.testing.contracts import TierLayoutContract
from stratalog.testing.contracts.made_segments import MemoryObjects
from stratalog.testing.contracts.tier_layout import a_segment, joined
from stratalog_formats.kernels.dispatch import PYTHON, Kernels
from stratalog_formats.layouts.parquet import ParquetLayout
from stratalog_formats.layouts.parquet_rows import RowMaker, row_buffers
from stratalog_formats.layouts.sections import ParquetSection

GROUP_BYTES = 16 << 10
LIMIT_BYTES = 1 << 24
FORMATS = twins.formats(PYTHON)
V2 = FORMATS["v2"]


class TestParquet(TierLayoutContract):
    @pytest.fixture
    def layout(self) -> TierLayout:
        return made_layout()

    def test_discovery_is_not_skipped(self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
        assert list(layout.discover(objects.infos(), objects.fetch)) == [
            dataclasses.replace(stored, layout="parquet@1")
        ]


def made_layout(kernels: Kernels = PYTHON, group_bytes: int = GROUP_BYTES) -> ParquetLayout:
    return ParquetLayout(twins.TABLE, LIMIT_BYTES, ParquetSection(row_group_bytes=group_bytes), kernels)


def some(count: int, first: int = 0) -> list[Record]:
    return [
        Record(timestamp_ms=NOW_MS + n, key=b"k%d" % (n % 7), value=b"v%d" % n, headers=(("h", b"%d" % n),))
        for n in range(first, first + count)
    ]


def a_batch(base_offset: int, count: int = 10, codec: str = "", **header: Any) -> bytes:
    batch_header = BatchHeader(base_offset=base_offset, leader_epoch=3, **header)
    return bytes(V2.encode(some(count, base_offset), batch_header, twins.CODECS.get(codec), None))


def marker(base_offset: int) -> bytes:
    header = BatchHeader(base_offset=base_offset, producer_id=9, producer_epoch=0, transactional=True, control=True)
    return bytes(V2.encode([Record(timestamp_ms=NOW_MS, key=bytes(4), value=bytes(6))], header, None, None))


def parquet_of(objects: MemoryObjects) -> bytes:
    (data,) = (data for key, data in objects.objects.items() if key.endswith(".parquet"))
    return data


def stored_rows(data: bytes, **options: Any) -> pa.Table:
    objects = MemoryObjects()
    made_layout(**options).write(a_segment(data=data), objects, None)
    return pq.read_table(io.BytesIO(parquet_of(objects)))


# --- reads return the exact bytes of any log -------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn, base_offset: int) -> tuple[bytes, int]:
    """Return a batch, or a set of messages, in any format and codec, possibly compacted, and the offset after it."""
    name = draw(st.sampled_from(["v2", "v2", "v2", "v0", "v1"]))
    form = FORMATS[name]
    codec = draw(st.sampled_from([None, None, *twins.codecs_of(name)]))
    drawn = draw(records)
    if name != "v2":
        drawn = [record._replace(headers=()) for record in drawn]
    header = BatchHeader(base_offset=base_offset)
    if name == "v2":
        has_producer = draw(st.booleans())
        header = BatchHeader(
            base_offset=base_offset,
            leader_epoch=draw(st.integers(-1, 5)),
            timestamp_type=draw(st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])),
            append_time_ms=draw(st.integers(0, NOW_MS)),
            producer_id=draw(st.integers(0, 1 << 40)) if has_producer else -1,
            producer_epoch=draw(st.integers(0, 9)) if has_producer else -1,
            base_sequence=draw(st.integers(0, 99)) if has_producer else -1,
            transactional=has_producer and draw(st.booleans()),
            control=draw(st.integers(0, 9)) == 0,
        )
    data = bytes(form.encode(drawn, header, codec, None))
    if name == "v2" and draw(st.integers(0, 2)) == 0:
        words = draw(st.lists(st.sampled_from(list(Verdict)), min_size=len(drawn), max_size=len(drawn)))
        table = form.scan(data, 0, len(data), check_crc=True)
        horizon_ms = draw(st.sampled_from([None, NOW_MS]))
        kept_batches = form.retain(
            data, table, [bytes(words)], horizon_ms, retain_empty=[True], limit_bytes=LIMIT_BYTES
        )
        data = b"".join(map(bytes, kept_batches))
    return data, base_offset + len(drawn)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    offset, parts = draw(st.integers(0, 1 << 40)), list[bytes]()
    for _ in range(draw(st.integers(0, 5))):
        with suppress(InvalidRecordError):  # the format does not support these records
            data, offset = draw(batches(offset))
            parts.append(data)
        offset += draw(st.integers(0, 3))
    parts.append(draw(st.just(b"") | st.binary(max_size=40)))
    return b"".join(parts)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(log=logs(), data=st.data())
@settings(max_examples=10, suppress_health_check=SLOW)
def test_any_log_comes_back_byte_for_byte(log: bytes, data: st.DataObject) -> None:
    check_log_comes_back(log, data)


@pytest.mark.long
@given(log=logs(), data=st.data())
@settings(max_examples=150, suppress_health_check=SLOW)
def test_any_of_many_logs_comes_back_byte_for_byte(log: bytes, data: st.DataObject) -> None:
    check_log_comes_back(log, data)


def check_log_comes_back(log: bytes, data: st.DataObject) -> None:
    for kernels in twins.twins():
        layout, objects = made_layout(kernels, group_bytes=4096), MemoryObjects()
        entry = layout.write(a_segment(data=log), objects, None)
        assert joined(layout.read(entry, 0, len(log), objects.fetch)) == log
        start = data.draw(st.integers(0, len(log)))
        end = data.draw(st.integers(start, len(log)))
        assert joined(layout.read(entry, start, end, objects.fetch)) == log[start:end]


@pytest.mark.parametrize("version", ["v0", "v1", "v2"])
@pytest.mark.parametrize("codec", ["", "gzip", "lz4"])
def test_rows_are_the_records_of_every_format_and_codec(version: str, codec: str) -> None:
    given_records = [record._replace(headers=()) for record in some(20)]
    data = bytes(FORMATS[version].encode(given_records, BatchHeader(base_offset=50), twins.CODECS.get(codec), None))
    rows = stored_rows(data)
    assert rows["offset"].to_pylist() == list(range(50, 70))
    assert rows["key"].to_pylist() == [record.key for record in given_records]
    assert rows["value"].to_pylist() == [record.value for record in given_records]
    assert rows["timestamp_type"].to_pylist() == [-1 if version == "v0" else 0] * 20


def frames_bytes(data: bytes) -> int:
    maker = RowMaker(twins.TABLE, LIMIT_BYTES, PYTHON)
    tables, _ = maker.scan_whole_batches(data)
    return len(maker.group(data, tables, 0).frames)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"producer_id": 5, "producer_epoch": 1, "base_sequence": 7, "transactional": True},
        {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": NOW_MS + 5_000},
    ],
)
def test_an_uncompressed_batch_is_stored_as_rows_alone(header: dict[str, Any]) -> None:
    """If records were stored both as rows and as bytes, the object would be twice as large."""
    assert frames_bytes(a_batch(40, **header)) == 1 + 61


def test_a_compacted_batch_is_stored_as_rows_alone() -> None:
    data = a_batch(40)
    words = [bytes([Verdict.DROP, Verdict.DROP, *[Verdict.KEEP] * 5, Verdict.DROP, Verdict.KEEP, Verdict.DROP])]
    table = V2.scan(data, 0, len(data), check_crc=True)
    compacted = b"".join(map(bytes, V2.retain(data, table, words, None, limit_bytes=LIMIT_BYTES)))
    assert frames_bytes(compacted) == 1 + 61
    assert stored_rows(compacted)["offset"].to_pylist() == [42, 43, 44, 45, 46, 48]


def test_one_unusual_batch_leaves_the_others_rows() -> None:
    unusual = bytearray(a_batch(10, 1))
    unusual[61:62] = bytes((unusual[61] | 0x80, 0))  # the length of the record, with one more byte than it needs
    unusual[8:12] = (len(unusual) - 12).to_bytes(4, "big")
    unusual[17:21] = crc32c(unusual[21:]).to_bytes(4, "big")
    data = a_batch(0) + bytes(unusual) + a_batch(20)
    assert frames_bytes(data) == 2 * (1 + 61) + 9 + len(unusual)
    assert stored_rows(data)["offset"].to_pylist() == [*range(11), *range(20, 30)]


@pytest.mark.parametrize("codec", ["", "lz4"])
def test_a_damaged_batch_has_no_rows(codec: str) -> None:
    """Rows have no CRC: other programs, and reads of columns, would not detect the damage."""
    damaged, layout, objects = bytearray(a_batch(10, codec=codec)), made_layout(), MemoryObjects()
    damaged[17] ^= 1  # the CRC
    data = a_batch(0) + bytes(damaged) + a_batch(20)
    assert frames_bytes(data) == 2 * (1 + 61) + 9 + len(damaged)
    assert stored_rows(data)["offset"].to_pylist() == [*range(10), *range(20, 30)]
    entry = layout.write(a_segment(data=data), objects, None)
    assert layout.read_arrow(entry, 0, 30, None, objects.fetch) is None


def test_a_batch_that_cannot_be_decoded_has_no_rows() -> None:
    cut_batch = bytearray(a_batch(10)[:-1])
    cut_batch[8:12] = (len(cut_batch) - 12).to_bytes(4, "big")
    data = a_batch(0) + bytes(cut_batch) + a_batch(20)
    assert frames_bytes(data) == 2 * (1 + 61) + 9 + len(cut_batch)
    assert stored_rows(data)["offset"].to_pylist() == [*range(10), *range(20, 30)]


def test_log_append_time_is_the_timestamp_and_the_producers_is_kept() -> None:
    rows = stored_rows(a_batch(0, 3, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW_MS + 9))
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [NOW_MS + 9] * 3
    assert rows["producer_timestamp"].cast(pa.int64()).to_pylist() == [NOW_MS, NOW_MS + 1, NOW_MS + 2]


def test_markers_are_no_rows_and_transactions_are_marked() -> None:
    transactional = a_batch(0, 2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    rows = stored_rows(transactional + marker(2) + a_batch(3, 1))
    assert rows["offset"].to_pylist() == [0, 1, 3]
    assert rows["transactional"].to_pylist() == [True, True, False]


def test_a_batch_whose_codec_is_missing_comes_back_without_rows() -> None:
    layout, objects, data = ParquetLayout(CodecTable(), LIMIT_BYTES), MemoryObjects(), a_batch(0, codec="zstd")
    entry = layout.write(a_segment(data=data), objects, None)
    assert joined(layout.read(entry, 0, len(data), objects.fetch)) == data
    assert pq.read_metadata(io.BytesIO(parquet_of(objects))).num_rows == 0


@pytest.mark.parametrize("codec", ["", "zstd"])
def test_batches_whose_rows_would_exceed_2_gib_have_no_rows(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """A column above 2 GiB is several Arrow arrays, from which the log could not be rebuilt."""
    monkeypatch.setattr("stratalog_formats.layouts.parquet_rows._MAX_ROW_BYTES", 3_000)
    layout, objects = made_layout(), MemoryObjects()
    data = b"".join(a_batch(base, codec=codec) for base in range(0, 50, 10))
    entry = layout.write(a_segment(data=data), objects, None)
    rows = pq.read_table(io.BytesIO(parquet_of(objects)))
    assert 10 <= rows.num_rows < 50
    assert rows["offset"].to_pylist() == list(range(rows.num_rows))
    assert joined(layout.read(entry, 0, len(data), objects.fetch)) == data
    assert layout.read_arrow(entry, 0, 50, None, objects.fetch) is None


def test_a_large_log_has_larger_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers refuse a directory above 64 MiB, so the number of groups must not grow with the size of the log."""
    monkeypatch.setattr("stratalog_formats.layouts.parquet._MOST_GROUPS", 4)
    layout, objects = made_layout(group_bytes=4096), MemoryObjects()
    data = b"".join(a_batch(base, 100) for base in range(0, 4000, 100))
    entry = layout.write(a_segment(data=data), objects, None)
    assert len(data) > 20 * 4096
    assert 4 <= pq.read_metadata(io.BytesIO(parquet_of(objects))).num_row_groups <= 5
    assert joined(layout.read(entry, 0, len(data), objects.fetch)) == data


# --- other programs -----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Any) -> str:
    objects = MemoryObjects()
    data = b"".join(a_batch(base, 100) for base in range(0, 3000, 100))
    made_layout(group_bytes=GROUP_BYTES).write(a_segment(data=data), objects, None)
    path = tmp_path / "segment.parquet"
    path.write_bytes(parquet_of(objects))
    return str(path)


def test_duckdb_and_polars_read_the_object(file: str) -> None:
    query = 'SELECT key, count(*), max("offset") FROM read_parquet(?) GROUP BY key ORDER BY key'
    rows = duckdb.execute(query, [file]).fetchall()
    assert len(rows) == 7
    assert (rows[0][0], sum(row[1] for row in rows), max(row[2] for row in rows)) == (b"k0", 3000, 2999)
    frame = pl.read_parquet(file)
    assert frame["offset"].to_list() == list(range(3000))
    assert frame["value"][2999] == b"v2999"


def test_offsets_and_timestamps_have_statistics_and_page_indexes(file: str) -> None:
    metadata = pq.read_metadata(file)
    assert metadata.num_row_groups > 2
    columns: dict[str, Any] = {
        metadata.row_group(1).column(n).path_in_schema: metadata.row_group(1).column(n) for n in range(10)
    }
    for name in ("offset", "timestamp"):
        assert columns[name].has_column_index
        assert columns[name].has_offset_index
        assert columns[name].statistics.has_min_max
        assert columns[name].compression == "ZSTD"
    before: Any = metadata.row_group(0).column(1).statistics
    assert before.max < columns["offset"].statistics.min
    assert metadata.row_group(0).sorting_columns[0].column_index == 1


# --- reads --------------------------------------------------------------------------------------------------------


def test_a_small_range_fetches_one_group() -> None:
    layout, objects = made_layout(), MemoryObjects()
    data = b"".join(a_batch(base, 100) for base in range(0, 3000, 100))
    entry = layout.write(a_segment(data=data), objects, None)
    joined(layout.read(entry, 0, 10, objects.fetch))
    objects.reads.clear()
    assert joined(layout.read(entry, 40_000, 40_010, objects.fetch)) == data[40_000:40_010]
    assert len(objects.reads) == 2, "a row group and its frames; the directory is known"
    assert sum(end - start for _, start, end in objects.reads) < entry.slices[FileKind.LOG].size_bytes / 2


def test_damage_is_found_in_a_group_that_was_read_before() -> None:
    """A repeated read must not use a cached group, so that a check of the bucket finds the damage."""
    layout, objects, data = made_layout(), MemoryObjects(), a_batch(0, 100)
    entry = layout.write(a_segment(data=data), objects, None)
    assert joined(layout.read(entry, 5, 50, objects.fetch)) == data[5:50]
    ((key, contents),) = objects.objects.items()
    objects.objects[key] = contents[:30] + bytes([contents[30] ^ 1]) + contents[31:]
    with pytest.raises(CorruptObjectError, match="hash of a part"):
        joined(layout.read(entry, 5, 50, objects.fetch))


def test_a_check_finds_damage_of_the_footer_that_other_programs_read() -> None:
    layout, objects = made_layout(), MemoryObjects()
    entry = layout.write(a_segment(data=a_batch(0, 100)), objects, None)
    ((key, contents),) = objects.objects.items()
    layout.check(entry, objects.fetch)
    for position in (-1, -9, -8 - int.from_bytes(contents[-8:-4], "little")):
        damaged = bytearray(contents)
        damaged[position] ^= 1
        objects.objects[key] = bytes(damaged)
        with pytest.raises(CorruptObjectError, match="Parquet's footer is damaged"):
            layout.check(entry, objects.fetch)


# --- twins --------------------------------------------------------------------------------------------------------


def rebuilt(frames: bytes, log_bytes: int, first_row: int = 0, **changed: Any) -> Iterator[object]:
    """Yield the result of each kernel for frames and three rows: bytes, or the text of its error."""
    maker = RowMaker(twins.TABLE, LIMIT_BYTES, PYTHON)
    data = a_batch(0, 3)
    group = maker.group(data, maker.scan_whole_batches(data)[0], 0)
    rows = row_buffers(group.rows)._replace(**changed)
    for kernels in twins.twins():
        try:
            yield bytes(kernels.rebuild_pieces(frames or group.frames, rows, first_row, log_bytes))
        except ValueError as error:
            yield str(error)


@pytest.mark.parametrize(
    ("frames", "log_bytes", "changed"),
    [
        (b"", len(a_batch(0, 3)) - 1, {}),
        (b"", len(a_batch(0, 3)) + 1, {}),
        (b"\x02", 10, {}),
        (b"\x00" * 20, 10, {}),
        (b"\x01\x05\x00\x00\x00\x00\x00\x00\x00abc", 5, {}),
        (b"\x01\x03\x00\x00\x00\x09\x00\x00\x00abc", 3, {}),
        (b"\x00" + bytes(57) + b"\x00\x00\x00\x04", 400, {}),
        (b"\x00" + bytes(61), 400, {}),
        (b"", len(a_batch(0, 3)), {"key_data": b"k"}),
        (b"", len(a_batch(0, 3)), {"name_data": b""}),
        (b"", len(a_batch(0, 3)), {"offsets": b""}),
        (b"", len(a_batch(0, 3)), {"key_ends": b""}),
        (b"", len(a_batch(0, 3)), {"key_bits": b""}),
        (b"", len(a_batch(0, 3)), {"name_ends": b""}),
        (b"", len(a_batch(0, 3)), {"first_row": 4}),
        (b"", -1, {}),
        (b"", len(a_batch(0, 3)) + len(b"\x02h\x021"), {"header_ends": array("i", (0, 2, 1, 3)).tobytes()}),
    ],
)
def test_frames_that_do_not_fit_their_rows_are_refused(frames: bytes, log_bytes: int, changed: dict[str, Any]) -> None:
    (text,) = set(rebuilt(frames, log_bytes, **changed))
    assert isinstance(text, str)


def test_bytes_between_batches_are_copied_by_both_twins() -> None:
    frames = b"\x01\x03\x00\x00\x00\x02\x00\x00\x00abc" + b"\x01\x01\x00\x00\x00\x01\x00\x00\x00d"
    assert set(rebuilt(frames, 4)) == {b"abcd"}


def test_the_hash_of_the_log_is_checked_when_all_of_it_is_read() -> None:
    layout, objects, data = made_layout(), MemoryObjects(), a_batch(0, 10)
    entry = layout.write(a_segment(data=data), objects, None)
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    with pytest.raises(StorageError, match="hash of the log"):
        joined(layout.read(dataclasses.replace(entry, sha256="0" * 64), 0, len(data), objects.fetch))
