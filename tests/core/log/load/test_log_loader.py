from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import CorruptBatchError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.offsets import EpochEntry

BATCHES, EACH = 6, 3
COUNT = BATCHES * EACH


def second_batch(bed: LogBed, base_offset: int) -> int:
    """Return the position of the second batch in a segment, which is the only entry of the index."""
    return int.from_bytes(bed.path(base_offset, ".index").read_bytes()[4:8], "big")


# --- clean -------------------------------------------------------------------------------------------------------


def test_a_log_opens_as_it_was_closed(small: LogBed) -> None:
    small.recovery_point = 18
    log = small.open()
    bounds = log.offsets()
    assert offsets_in(log) == list(range(COUNT))
    assert (bounds.log_start, bounds.log_end, bounds.recovery_point) == (0, COUNT, COUNT)
    assert log.view().epochs.entries == (EpochEntry(0, 0),)
    assert log.append(records(1, start=COUNT)).base_offset == COUNT


def test_opening_and_closing_changes_nothing(small: LogBed) -> None:
    before = small.contents()
    for _ in range(3):
        small.open()
        small.close()
        assert small.contents() == before


def test_an_empty_log_stays_empty(bed: LogBed) -> None:
    bed.open()
    bed.close()
    before = bed.contents()
    assert bed.open().offsets().log_end == 0
    bed.close()
    assert bed.contents() == before


def test_reading_changes_nothing(small: LogBed) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in small.folder.iterdir()}
    for clean in (True, False):
        log = small.open_reader(clean=clean)
        assert offsets_in(log) == list(range(COUNT))
        log.close()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in small.folder.iterdir()} == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda data: data[:0],
        lambda data: data[:-1],
        lambda data: bytes(len(data) + 100),
        lambda data: data + bytes(4096),
        lambda data: b"\x7f" * len(data),
        lambda data: data[: len(data) // 2] + b"\xff" * (len(data) - len(data) // 2),
    ],
    ids=["missing", "empty", "cut", "zeros", "reserved space", "high", "half"],
)
@pytest.mark.long
def test_damaged_indexes_change_no_answer(
    small: LogBed, suffix: str, damage: Callable[[bytes], bytes] | None, *, writable: bool, clean: bool
) -> None:
    for base in (0, 6, 12):
        path = small.path(base, suffix)
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(path.read_bytes()))
    log: LogReader = small.open(clean=clean) if writable else small.open_reader(clean=clean)
    assert offsets_in(log) == list(range(COUNT))
    for record in records(COUNT):
        assert log.offset_for_timestamp(record.timestamp_ms) == int((record.key or b"")[1:])
    for offset in range(COUNT):
        assert next(iter(log.records(offset))).offset == offset


def test_the_segments_that_are_there_make_the_log(small: LogBed) -> None:
    small.path(0).unlink()
    log = small.open()
    assert offsets_in(log) == list(range(6, COUNT))
    assert log.offsets().log_start == 6
    assert not small.path(0, ".index").exists()


def test_an_index_entry_from_the_future_does_not_stop_appends(small: LogBed) -> None:
    """Loading compares the entry with the log end. Otherwise no later offset could follow it in the index."""
    path = small.path(12, ".index")
    path.write_bytes((1000).to_bytes(4, "big") + path.read_bytes()[4:8])
    small.topic = TopicConfig(segment_bytes=4000, index_interval_bytes=0)
    log = small.open()
    for offset in range(COUNT, COUNT + 3):
        log.append(records(1, start=offset))
    assert offsets_in(log) == list(range(COUNT + 3))


# --- records are missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writable", [True, False])
def test_an_end_below_the_high_watermark_is_reported(small: LogBed, *, writable: bool) -> None:
    small.path(12).unlink()
    log: LogReader = small.open(high_watermark=18) if writable else small.open_reader(high_watermark=18)
    assert [record.offset for record in log.records(0, 12)] == list(range(12))
    with pytest.raises(CorruptBatchError, match="high watermark was 18"):
        list(log.records())


@pytest.mark.parametrize("writable", [True, False])
def test_a_log_without_files_that_had_records_is_reported(small: LogBed, *, writable: bool) -> None:
    """A log whose checkpoints show records once began again at offset 0 if its files were missing."""
    for path in small.folder.iterdir():
        path.unlink()
    log: LogReader = small.open(high_watermark=18) if writable else small.open_reader(high_watermark=18)
    with pytest.raises(CorruptBatchError, match="records are missing"):
        list(log.records())


def test_a_log_that_ends_below_its_start_begins_again(small: LogBed) -> None:
    small.log_start = 30
    log = small.open()
    bounds = log.offsets()
    assert (bounds.log_start, bounds.log_end) == (30, 30)
    assert log.append(records(1)).base_offset == 30
    assert log.view().epochs.entries == (EpochEntry(0, 30),)
    small.close()
    assert offsets_after(small.open()) == [30]


def offsets_after(log: LogReader) -> list[int]:
    return [record.offset for record in log.records()]


def test_the_log_start_is_remembered(small: LogBed) -> None:
    small.log_start = 7
    assert offsets_after(small.open_reader()) == list(range(7, COUNT))
    assert offsets_after(small.open()) == list(range(7, COUNT))
    assert small.open().view().epochs.entries == (EpochEntry(0, 7),)


# --- unclean -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery_point", [0, 5, 6, 11, 12, 17, 18, 99])
def test_a_crash_loses_nothing_that_was_written(small: LogBed, recovery_point: int) -> None:
    small.topic = TopicConfig(segment_bytes=4000, index_interval_bytes=0)
    log = small.open()
    log.append(records(1, start=COUNT))
    log.append(records(1, start=COUNT + 1))
    small.crash()
    # the index file has reserved space, whose zeros look like entries
    assert small.path(12, ".index").stat().st_size > 100
    small.recovery_point = recovery_point
    assert offsets_in(small.open_reader(clean=False)) == list(range(COUNT + 2))
    loaded_log = small.load(clean=False)
    for segment in loaded_log.segments:
        segment.close()
    assert loaded_log.recovered_segments == sum(end > recovery_point for end in (6, 12)) + 1
    assert loaded_log.recovery_point == min(recovery_point, COUNT + 2)
    assert loaded_log.truncated_bytes == 0
    assert small.path(12, ".index").stat().st_size == 3 * 8
    assert offsets_in(small.open()) == list(range(COUNT + 2))


@pytest.mark.parametrize("as_reader", [True, False])
@pytest.mark.long
def test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch(small: LogBed, *, as_reader: bool) -> None:
    data, contents = small.path(12).read_bytes(), small.contents()
    start = second_batch(small, 12)
    small.recovery_point = 12
    for size in range(start, len(data) + 1):
        small.write({**contents, small.path(12).name: data[:size]})
        before = small.contents()
        expected = COUNT if size == len(data) else COUNT - EACH
        log: LogReader = small.open_reader(clean=False) if as_reader else small.open(clean=False)
        assert log.offsets().log_end == expected
        assert offsets_in(log) == list(range(expected))
        if as_reader:
            assert small.contents() == before
        else:
            assert small.path(12).stat().st_size == (len(data) if size == len(data) else start)
            small.close()


@pytest.mark.parametrize("flipped", [0, 3, 9, 16, 17, 60, 100, 150])
def test_damage_in_the_middle_cuts_what_follows(small: LogBed, flipped: int) -> None:
    data = bytearray(small.path(6).read_bytes())
    second = second_batch(small, 6)
    data[second + flipped] ^= 0x40
    small.path(6).write_bytes(data)
    assert small.open_reader(clean=False).offsets().log_end == 9
    log = small.open(clean=False)
    assert log.offsets().log_end == 9
    assert offsets_in(log) == list(range(9))
    assert [segment.base_offset for segment in log.segments()] == [0, 6]
    assert small.path(6).stat().st_size == second
    assert log.append(records(1, start=9)).base_offset == 9
    small.close()
    assert offsets_in(small.open()) == list(range(10))


@pytest.mark.parametrize("writable", [True, False])
def test_a_batch_with_an_offset_past_its_segment_is_reported_and_no_later_record_is_lost(
    small: LogBed, *, writable: bool
) -> None:
    """No CRC covers a base offset. The segments after the wrong offset are whole, so recovery keeps them."""
    data = bytearray(small.path(6).read_bytes())
    second = second_batch(small, 6)
    data[second + 5] ^= 0x40
    small.path(6).write_bytes(data)
    log: LogReader = small.open(clean=False) if writable else small.open_reader(clean=False)
    assert log.offsets().log_end == COUNT
    assert [record.offset for record in log.records(0, 9)] == list(range(9))
    assert [record.offset for record in log.records(12)] == list(range(12, COUNT))
    with pytest.raises(CorruptBatchError) as caught:
        list(log.records())
    assert (caught.value.file, caught.value.position) == (str(small.path(6)), second)


def test_segments_behind_a_cut_are_set_aside_and_then_removed(small: LogBed) -> None:
    data = bytearray(small.path(0).read_bytes())
    data[30] ^= 1
    small.path(0).write_bytes(data)
    log = small.open(clean=False)
    assert log.offsets().log_end == 0
    assert {name for name in small.names() if name.endswith(".deleted")} >= {
        small.path(6).name + ".deleted",
        small.path(12).name + ".deleted",
    }
    small.close()
    small.open()
    assert not [name for name in small.names() if name.endswith(".deleted")]


def test_recovery_twice_is_recovery_once(small: LogBed) -> None:
    torn = small.path(12).read_bytes()[:-7]
    small.path(12).write_bytes(torn)
    small.open(clean=False)
    small.crash()
    once = small.contents()
    small.open(clean=False)
    small.crash()
    assert small.contents() == once


def test_a_crash_between_the_log_and_its_indexes(small: LogBed) -> None:
    """A roll creates the log file first."""
    small.path(18).write_bytes(b"")
    log = small.open(clean=False)
    assert offsets_in(log) == list(range(COUNT))
    assert [segment.base_offset for segment in log.segments()] == [0, 6, 12, 18]
    assert log.append(records(1, start=COUNT)).base_offset == COUNT


def test_the_read_only_view_of_a_crash_is_what_recovery_gives(small: LogBed) -> None:
    contents = small.contents()
    for size in range(0, len(contents[small.path(12).name]), 13):
        small.write({**contents, small.path(12).name: contents[small.path(12).name][:size]})
        reader = small.open_reader(clean=False)
        reader_state = (reader.offsets().log_end, offsets_in(reader), reader.view().epochs.entries)
        log = small.open(clean=False)
        assert reader_state == (log.offsets().log_end, offsets_in(log), log.view().epochs.entries)
        small.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no space is taken ahead elsewhere")
def test_recovery_frees_the_space_that_a_crash_left_behind_the_end(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    log.close()
    files, path = PosixVfs(), bed.path(0)
    size_bytes = path.stat().st_size
    descriptor = files.open(str(path), write=True)
    files.reserve(descriptor, size_bytes, 1 << 20)
    files.close(descriptor)
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert bed.open(clean=False).offsets().log_end == 3
    assert path.stat().st_blocks * 512 < 1 << 20
    assert path.stat().st_size == size_bytes
