"""A builder writes the files of an unpublished segment, and deletes them if the segment is not published."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import OffsetsOutOfOrderError, StorageError, StoreTimeoutError
from stratalog.model.batches import Buffer
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.records import Record
from stratalog.segment.build import BuiltSegment, RollingBuilder, SegmentBuilder, copy_batches
from stratalog.spi.indexes import IndexRole

DENSE = TopicConfig(index_interval_bytes=0)


def batch(bed: LogBed, offset: int, count: int = 2) -> Buffer:
    return bed.batch(offset, [Record(timestamp_ms=1_000 + offset + row, value=b"v%d" % row) for row in range(count)])


def built(bed: LogBed, *, upload: bool = False) -> BuiltSegment:
    """Return a segment of three batches with the offsets 10 to 15. Its end offset is 20."""
    make = SegmentBuilder.for_upload if upload else SegmentBuilder
    with make(bed.files(), 10, bed.components, DENSE) as builder:
        for offset in (10, 12, 14):
            builder.append(batch(bed, offset))
        return builder.finish(20, 5_000)


def test_a_finished_segment_has_its_files_under_names_that_no_reader_opens(bed: LogBed) -> None:
    built_segment = built(bed)
    assert set(bed.names()) >= set(built_segment.names.values())
    assert all(name.endswith(".cleaned") for name in built_segment.names.values())
    assert len(built_segment.names) == 3, "an empty transaction index has no file"
    assert (built_segment.base_offset, built_segment.end_offset, built_segment.modified_ms) == (10, 20, 5_000)
    assert (built_segment.largest.timestamp_ms, built_segment.largest.offset) == (1_015, 15)
    assert bed.files().open_segment(built_segment.names[LOG_SUFFIX]).modified_ms == 5_000


def test_a_segment_for_an_upload_is_one_file_and_its_indexes_stay_in_memory(bed: LogBed) -> None:
    uploaded, durable = built(bed, upload=True), built(bed)
    assert list(uploaded.names) == [LOG_SUFFIX]
    assert uploaded.entries == durable.entries
    assert (
        uploaded.sha256()
        == durable.sha256()
        == hashlib.sha256(b"".join(bytes(p) for p in uploaded.chunks(7))).hexdigest()
    )


def test_a_segment_is_read_before_it_is_published_with_the_entries_that_its_batches_make(bed: LogBed) -> None:
    built_segment = built(bed)
    segment = built_segment.reader()
    try:
        assert (segment.size_bytes, segment.end_offset) == (built_segment.size_bytes, 20)
        for role in (IndexRole.OFFSET, IndexRole.TIME):
            assert bytes(segment.index_entries(role)) == built_segment.entries[role]
        assert built_segment.entries[IndexRole.OFFSET]
    finally:
        segment.close()


def test_an_error_removes_what_was_written(bed: LogBed) -> None:
    bed.folder.mkdir(parents=True, exist_ok=True)
    before = bed.names()

    def fail() -> None:
        with SegmentBuilder(bed.files(), 10, bed.components, DENSE) as builder:
            builder.append(batch(bed, 10))
            assert bed.names() != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    built(bed).discard()
    assert bed.names() == before


def rolling(bed: LogBed, built_segments: list[BuiltSegment], limit_bytes: int) -> RollingBuilder:
    def begin(base_offset: int) -> SegmentBuilder:
        return SegmentBuilder(bed.files(), base_offset, bed.components, DENSE)

    return RollingBuilder(begin, built_segments.append, bed.clock, 0, limit_bytes)


def bounds(built_segments: list[BuiltSegment]) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.end_offset) for segment in built_segments]


def test_a_segment_ends_before_the_batch_that_would_make_it_too_large(bed: LogBed) -> None:
    built_segments: list[BuiltSegment] = []
    size_bytes = len(bytes(batch(bed, 0)))
    segments = rolling(bed, built_segments, 2 * size_bytes)
    for offset in (0, 2, 4, 10):
        segments.append(batch(bed, offset), offset, offset + 1)
    assert bounds(built_segments) == [(0, 4)]
    segments.finish(15)
    assert bounds(built_segments) == [(0, 4), (4, 15)]
    segments.finish(15)
    assert len(built_segments) == 2, "there is no segment without offsets"


def test_a_segment_holds_no_offset_that_its_indexes_cannot_store(bed: LogBed) -> None:
    built_segments: list[BuiltSegment] = []
    segments = rolling(bed, built_segments, 1 << 20)
    far = 1 << 31
    for offset in (0, far):
        segments.append(batch(bed, offset), offset, offset + 1)
    segments.finish()
    assert bounds(built_segments) == [(0, far), (far, far + 2)]


def test_offsets_ascend_and_a_discarded_batch_can_be_repeated(bed: LogBed) -> None:
    built_segments: list[BuiltSegment] = []
    segments = rolling(bed, built_segments, 1 << 20)
    segments.append(batch(bed, 0), 0, 1)
    with pytest.raises(OffsetsOutOfOrderError, match="offset 1 comes after offset 1"):
        segments.append(batch(bed, 1), 1, 2)
    with pytest.raises(OffsetsOutOfOrderError, match="the end offset 1 is not above"):
        segments.finish(1)
    segments.discard()
    assert not [name for name in bed.names() if name.endswith(".cleaned")]
    segments.append(batch(bed, 0), 0, 1)
    segments.finish()
    assert bounds(built_segments) == [(0, 2)]


def test_no_segment_follows_one_that_was_not_stored(bed: LogBed) -> None:
    built_segments: list[BuiltSegment] = []
    failures = [StoreTimeoutError("no answer", "key")]

    def store(segment: BuiltSegment) -> None:
        if failures:
            raise failures.pop()
        built_segments.append(segment)

    segments = RollingBuilder(
        partial(SegmentBuilder, bed.files(), components=bed.components, config=DENSE), store, bed.clock, 0, 1
    )
    segments.append(batch(bed, 0), 0, 1)
    with pytest.raises(StoreTimeoutError):
        segments.append(batch(bed, 2), 2, 3)
    message = "segment from offset 0 on could not be finished"
    with pytest.raises(StorageError, match=message):
        segments.append(batch(bed, 2), 2, 3)
    with pytest.raises(StorageError, match=message):
        segments.finish()
    assert not built_segments
    assert not [name for name in bed.names() if name.endswith(".cleaned")], "the builder removes what is not stored"
    segments.discard()
    for offset in (0, 2):
        segments.append(batch(bed, offset), offset, offset + 1)
    segments.finish()
    assert bounds(built_segments) == [(0, 2), (2, 4)]


def test_a_copy_has_the_bytes_that_its_transform_returns(bed: LogBed) -> None:
    segment = built(bed).reader()
    try:
        with SegmentBuilder.for_upload(bed.files(), 10, bed.components, DENSE) as builder:
            counts = copy_batches(segment, builder, bed.components)
            same = builder.finish(20, 0)
        assert (counts.records, counts.bytes_read) == (6, segment.size_bytes)
        assert b"".join(bytes(piece) for piece in same.chunks(1 << 20)) == bytes(segment.read(0, segment.size_bytes))
        with SegmentBuilder.for_upload(bed.files(), 10, bed.components, DENSE) as builder:
            copy_batches(segment, builder, bed.components, lambda chunk, table: [chunk.data[: table.size_bytes[0]]])
            assert builder.finish(20, 0).size_bytes == segment.size_bytes // 3
    finally:
        segment.close()


@pytest.mark.parametrize("magic", [0, 1])
def test_a_copy_counts_the_records_in_compressed_messages(bed: LogBed, magic: int) -> None:
    batches = [
        bed.batch(0, records(3), magic=magic, codec="gzip"),
        bed.batch(3, records(1), magic=magic),
        bed.batch(4, records(2), magic=magic, codec="gzip"),
        bed.batch(6, records(2)),
    ]
    bed.write_segment(0, batches)
    log = bed.open(clean=False)
    log.roll()
    with SegmentBuilder.for_upload(bed.files(), 0, bed.components, DENSE) as builder:
        counts = copy_batches(log.view().segments[0], builder, bed.components)
        built_segment = builder.finish(8, 0)
    assert (counts.records, counts.bytes_read) == (8, sum(map(len, batches)))
    built_segment.discard()
