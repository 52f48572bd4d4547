"""Segments with offsets that are 2^31 or more above their base offset, as Kafka before 2.0 wrote them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, DiskFullError, LogDirOfflineError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.names import LOG_SUFFIX, segment_file
from stratalog.model.records import Record
from stratalog.segment.framing import walk
from stratalog.spi.indexes import IndexRole
from stratalog.testing.faults import FaultyVfs, failing

SPAN = 1 << 31  # number of offsets that one segment can span
FAR = SPAN + 100
SUFFIXES = (LOG_SUFFIX, ".index", ".timeindex")
FORMATS = [(2, None), (2, "zstd"), (1, None), (1, "gzip"), (0, None), (0, "gzip")]


def records_at(offset: int, count: int) -> list[Record]:
    """Return records whose values contain their offsets. Some timestamps decrease."""
    return [
        Record(
            key=b"%d" % record_offset,
            value=b"value of %d" % record_offset,
            timestamp_ms=1_700_000_000_000 + record_offset % 1000,
        )
        for record_offset in range(offset, offset + count)
    ]


def batch(
    bed: LogBed, offset: int, count: int = 3, *, magic: int = 2, codec: str | None = None, epoch: int = 0
) -> bytes:
    return bed.batch(offset, records_at(offset, count), magic=magic, codec=codec, leader_epoch=epoch)


def legacy(
    bed: LogBed,
    starts: Sequence[int],
    following: int | None,
    *,
    base: int = 0,
    magic: int = 2,
    codec: str | None = None,
) -> list[bytes]:
    """Write a segment with batches at the offsets ``starts``, and return these batches.

    If ``following`` is not None, also write a segment that begins at this offset.
    """
    bed.topic = TopicConfig(index_interval_bytes=0)
    batches = [batch(bed, start, magic=magic, codec=codec) for start in starts]
    if magic < 2 and codec is None:  # each record is a separate entry
        assert all(
            len(bed.components.formats.of(magic, "", 0).scan(data, 0, len(data), check_crc=True)) == 3
            for data in batches
        )
    bed.write_segment(base, batches)
    if following is not None:
        bed.write_segment(following, [batch(bed, following, magic=magic, codec=codec)])
    return batches


def content(log: LogReader) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in log.records()]


def expected(*starts: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for start in starts for offset in range(start, start + 3)]


def logs_of(bed: LogBed) -> dict[int, bytes]:
    return {int(name[:20]): data for name, data in bed.contents().items() if name.endswith(LOG_SUFFIX)}


def assert_sound(bed: LogBed) -> None:
    """Check that each segment of the log spans less than 2^31 offsets and has the correct indexes."""
    loaded_log = bed.load(writable=False)
    assert loaded_log.damage is None
    for segment in loaded_log.segments:
        last = segment.base_offset
        for chunk in walk(segment, 0, bed.components):
            last = chunk.tables[-1].last_offset[-1]
        assert last - segment.base_offset < SPAN
        for role, index in bed.components.indexes.items():
            entries = segment.stored_entries(role)
            index.reader(entries, segment.base_offset).check(segment.end_offset, segment.size_bytes)
            assert entries or role is IndexRole.TRANSACTION or len(list(walk(segment, 0, bed.components))) <= 1
        segment.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_closed_segment_is_split_where_offsets_no_longer_fit(
    bed: LogBed, magic: int, codec: str | None, *, clean: bool
) -> None:
    starts = [0, 7, FAR, FAR + 9, 3 * SPAN]
    batches = legacy(bed, starts, 4 * SPAN, magic=magic, codec=codec)
    log = bed.open(clean=clean)
    assert [segment.base_offset for segment in log.segments()] == [0, FAR, 3 * SPAN, 4 * SPAN]
    assert content(log) == expected(*starts, 4 * SPAN)
    for start in (*starts, 4 * SPAN):
        assert log.fetch(start + 1).read()
        assert next(iter(log.records(start + 1))).offset == start + 1
    log.append([Record(key=b"%d" % (4 * SPAN + 3))])
    bed.close()
    files = logs_of(bed)
    assert [files[0], files[FAR], files[3 * SPAN]] == [batches[0] + batches[1], batches[2] + batches[3], batches[4]]
    assert_sound(bed)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_reader_sees_the_pieces_and_changes_nothing(
    bed: LogBed, magic: int, codec: str | None, *, clean: bool
) -> None:
    starts = [0, 7, FAR, FAR + 9, 3 * SPAN]
    legacy(bed, starts, 4 * SPAN, magic=magic, codec=codec)
    before = bed.contents()
    log = bed.open_reader(clean=clean)
    assert content(log) == expected(*starts, 4 * SPAN)
    assert log.to_arrow()["offset"].to_pylist() == [offset for offset, _ in expected(*starts, 4 * SPAN)]
    for start in starts:
        assert next(iter(log.records(start + 1))).offset == start + 1
        with log.fetch(start + 1, max_bytes=1) as fetched:
            assert fetched.read() == batch(bed, start, magic=magic, codec=codec) or magic < 2
    if magic:
        assert log.offset_for_timestamp(records_at(FAR + 9, 1)[0].timestamp_ms) == FAR + 9
    bed.close()
    assert bed.contents() == before


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_the_pieces_are_named_by_the_first_offset_in_them(bed: LogBed, magic: int, codec: str | None) -> None:
    """Kafka names them so too, even if compaction removed earlier records and the segment's base offset is lower."""
    starts = [50, SPAN + 20, SPAN + 60]  # the second batch still fits into a segment with base offset 50
    legacy(bed, starts, 4 * SPAN, magic=magic, codec=codec)
    log = bed.open()
    assert [segment.base_offset for segment in log.segments()] == [50, SPAN + 60, 4 * SPAN]
    assert content(log) == expected(*starts, 4 * SPAN)
    bed.close()
    assert_sound(bed)


def test_the_first_batch_may_be_too_far_above_the_base(bed: LogBed) -> None:
    legacy(bed, [FAR, FAR + 3], 4 * SPAN)
    assert content(bed.open_reader()) == expected(FAR, FAR + 3, 4 * SPAN)
    log = bed.open()
    assert [segment.base_offset for segment in log.segments()] == [FAR, 4 * SPAN]
    assert content(log) == expected(FAR, FAR + 3, 4 * SPAN)


def test_a_gap_after_a_segment_does_not_split_it(bed: LogBed) -> None:
    legacy(bed, [0, SPAN - 3], 4 * SPAN)
    log = bed.open()
    assert [segment.base_offset for segment in log.segments()] == [0, 4 * SPAN]
    assert content(log) == expected(0, SPAN - 3, 4 * SPAN)


# --- the last segment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_an_active_segment_is_split_as_well(bed: LogBed, *, clean: bool) -> None:
    legacy(bed, [0, FAR, FAR + 3], None)
    reader = bed.open_reader(clean=clean)
    assert content(reader) == expected(0, FAR, FAR + 3)
    bed.close()
    log = bed.open(clean=clean)
    assert [segment.base_offset for segment in log.segments()] == [0, FAR]
    assert log.append([Record(key=b"%d" % (FAR + 6))]).base_offset == FAR + 6
    assert content(log)[-1] == (FAR + 6, b"%d" % (FAR + 6))
    bed.close()
    assert_sound(bed)


@pytest.mark.parametrize("clean", [True, False])
def test_a_single_batch_far_ahead_at_the_end_is_believed_if_a_checkpoint_knows_of_it(
    bed: LogBed, *, clean: bool
) -> None:
    """No CRC covers the offset of a batch. The checkpoint is the only confirmation of a large last offset."""
    batches = legacy(bed, [0, FAR], None)
    damaged = bed.load(clean=True, writable=False)
    assert isinstance(damaged.damage, CorruptBatchError)
    assert damaged.damage.position == len(batches[0])
    for segment in damaged.segments:
        segment.close()
    bed.recovery_point = FAR + 3
    log = bed.open(clean=clean)
    assert [segment.base_offset for segment in log.segments()] == [0, FAR]
    assert content(log) == expected(0, FAR)


@pytest.mark.parametrize("following", [None, 4 * SPAN])
def test_a_batch_far_ahead_of_those_behind_it_is_damage(bed: LogBed, following: int | None) -> None:
    legacy(bed, [0, FAR, 7], following)
    bed.recovery_point = 4 * SPAN
    before = logs_of(bed)
    log = bed.open(clean=True)
    pairs = list[tuple[int, bytes | None]]()
    with pytest.raises(CorruptBatchError) as caught:
        pairs.extend((record.offset, record.key) for record in log.records())
    assert pairs == expected(0)
    assert caught.value.position == len(batch(bed, 0))
    bed.close()
    assert logs_of(bed) == before


# --- damage, and other files of the segment --------------------------------------------------------------------------


def test_damaged_bytes_stay_where_they_were(bed: LogBed) -> None:
    batches = legacy(bed, [0, FAR, FAR + 3, FAR + 6], 4 * SPAN)
    data = bytearray(b"".join(batches))
    data[len(data) - len(batches[3]) - 1] ^= 1  # in the last byte of the third batch
    bed.path(0).write_bytes(data)
    bed.recovery_point = 4 * SPAN
    log = bed.open()
    assert log.fetch(FAR, max_bytes=1).read() == batches[1]
    with pytest.raises(CorruptBatchError):
        content(log)
    bed.close()
    assert logs_of(bed)[FAR] == bytes(data[len(batches[0]) :])


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_aborted_transactions_belong_to_the_piece_with_their_marker(
    bed: LogBed, *, writable: bool, has_index: bool
) -> None:
    def data(offset: int, producer: int, sequence: int) -> bytes:
        return bed.batch(offset, records_at(offset, 2), producer=(producer, 0, sequence), transactional=True)

    bed.topic = TopicConfig(index_interval_bytes=0)
    bed.write_segment(0, [])
    batches = [
        data(0, 1, 0),
        data(2, 2, 0),
        bed.marker(4, 1, ControlType.ABORT),
        batch(bed, 5),
        data(FAR, 3, 0),
        bed.marker(FAR + 2, 2, ControlType.ABORT),
        bed.marker(FAR + 3, 3, ControlType.COMMIT),
        batch(bed, FAR + 4),
    ]
    bed.write_segment(0, batches)
    bed.write_segment(4 * SPAN, [batch(bed, 4 * SPAN)])
    if has_index:
        index = bed.components.indexes[IndexRole.TRANSACTION]
        loaded_log = bed.load(writable=False)
        entries = b"".join(bytes(piece.index_entries(IndexRole.TRANSACTION)) for piece in loaded_log.segments)
        for piece in loaded_log.segments:
            piece.close()
        bed.path(0, index.suffix).write_bytes(entries)
        bed.path(0, ".index").write_bytes(b"")
    log = bed.open() if writable else bed.open_reader()
    pairs = [(record.offset, record.key) for record in log.records(isolation="read_committed")]
    assert pairs == [*expected(5), *expected(FAR)[:2], *expected(FAR + 4, 4 * SPAN)]
    counts = [len(bytes(piece.index_entries(IndexRole.TRANSACTION))) for piece in log.view().segments]
    assert [count > 0 for count in counts] == [True, True, False]


def test_epochs_and_producers_are_those_of_the_whole(bed: LogBed) -> None:
    bed.topic = TopicConfig(index_interval_bytes=0)
    batches = [
        bed.batch(0, records_at(0, 3), producer=(7, 0, 0)),
        bed.batch(FAR, records_at(FAR, 3), producer=(7, 0, 3), leader_epoch=4),
        bed.batch(FAR + 3, records_at(FAR + 3, 3), producer=(8, 1, 0), leader_epoch=6),
    ]
    bed.write_segment(0, batches)
    bed.write_segment(4 * SPAN, [batch(bed, 4 * SPAN, epoch=6)])
    bed.path(0, ".snapshot").write_bytes(b"not one")
    log = bed.open(clean=False)
    assert [(entry.epoch, entry.start_offset) for entry in log.view().epochs.entries] == [
        (0, 0),
        (4, FAR),
        (6, FAR + 3),
    ]
    assert {entry.producer_id: entry.last_sequence for entry in log.producers()} == {7: 5, 8: 2}
    bed.close()
    bases = {0, FAR, 4 * SPAN, 4 * SPAN + 3}
    assert {int(name[:20]) for name in bed.names() if name.endswith(".snapshot")} <= bases


def test_files_of_the_pieces_have_the_time_of_the_segment(bed: LogBed) -> None:
    legacy(bed, [0, FAR], 4 * SPAN)
    os.utime(bed.path(0), (1_600_000_000, 1_600_000_000))
    bed.open().close()
    assert [bed.path(base).stat().st_mtime for base in (0, FAR)] == [1_600_000_000] * 2


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_segment_as_it_was(bed: LogBed) -> None:
    legacy(bed, [0, FAR], 4 * SPAN)
    before = bed.contents()
    files = bed.files_port = FaultyVfs()
    files.room_bytes = 30
    with pytest.raises(DiskFullError):
        bed.open()
    assert bed.contents() == before
    files.room_bytes = None
    assert content(bed.open()) == expected(0, FAR, 4 * SPAN)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync folder"])
@pytest.mark.parametrize("nth", range(6))
def test_the_next_opening_completes_a_split_that_failed_anywhere(bed: LogBed, operation: str, nth: int) -> None:
    starts = [0, FAR, 3 * SPAN]
    legacy(bed, starts, 4 * SPAN)
    files = bed.files_port = FaultyVfs()
    fails = failing(operation, errno.EIO)
    remaining = [nth]

    def rule(file_operation: str, path: str) -> None:
        if file_operation == operation and remaining[0] > 0:
            remaining[0] -= 1
        else:
            fails(file_operation, path)

    files.rule = rule
    try:
        log = bed.open()
    except LogDirOfflineError:
        files.rule = None
        bed.close()
        log = bed.open()
    assert content(log) == expected(*starts, 4 * SPAN)
    bed.close()
    assert sorted(logs_of(bed)) == [*starts, 4 * SPAN]
    assert segment_file(0, LOG_SUFFIX) in bed.names()
