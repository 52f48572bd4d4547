from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from log_bed import LogBed, records
from stratalog.config.engine_settings import Limits
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import BatchTable, Buffer, ScanStop
from stratalog.segment.components import FormatTable
from stratalog.segment.framing import FRAME, FRAME_BYTES, EpochSetter, scan, walk
from stratalog.segment.segment import Segment
from stratalog.spi.formats import RecordFormat

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]


@pytest.fixture
def mixed(bed: LogBed) -> list[bytes]:
    """Return entries of all magics, uncompressed and compressed, with the offsets 0 to 24."""
    return [
        bed.batch(0, records(1), magic=0),
        bed.batch(1, records(3), magic=0, codec="gzip"),
        bed.batch(4, records(1), magic=1),
        bed.batch(5, records(4), magic=1, codec="snappy"),
        bed.batch(9, records(3, value_bytes=300), magic=2),
        bed.batch(12, records(5), magic=2, codec="zstd"),
        bed.batch(17, records(1), magic=1),
        bed.batch(18, records(5), magic=2),
        bed.batch(23, records(1), magic=2, codec="lz4"),
        bed.batch(24, records(1), magic=0),
    ]


LAST_OFFSETS = [0, 3, 4, 8, 11, 16, 17, 22, 23, 24]
MAGICS = [0, 0, 1, 1, 2, 2, 1, 2, 2, 0]


def starts(entries: Sequence[bytes]) -> list[int]:
    """Return the positions at which entries begin, and the end of the last entry."""
    return list(itertools.accumulate(map(len, entries), initial=0))


class CountedReads:
    """Segment that allows a limited number of reads, and then fails the test."""

    def __init__(self, segment: Segment, at_most: int) -> None:
        self._segment, self._left = segment, at_most

    def __call__(self, position: int, size_bytes: int) -> memoryview:
        assert self._left, "the walk does not get on"
        self._left -= 1
        return self._segment.read(position, size_bytes)


def walked(segment: Segment, bed: LogBed, read_bytes: int = 0, position: int = 0) -> list[tuple[int, int, int]]:
    """Return position, magic and last offset of each batch in a segment."""
    return [
        (chunk.position + batch.position, batch.magic, batch.last_offset)
        for chunk in walk(segment, position, bed.components, read_bytes=read_bytes)
        for batch in chunk.batches()
    ]


def walked_until_error(
    segment: Segment,
    bed: LogBed,
    read_bytes: int,
    below: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
) -> tuple[list[int], CorruptBatchError | None]:
    """Return the positions of the batches before the first invalid entry, and the error of this entry."""
    positions: list[int] = []
    try:
        for chunk in walk(segment, 0, bed.components, read_bytes=read_bytes, offset_limit=below, read=read):
            positions += [chunk.position + batch.position for batch in chunk.batches()]
    except CorruptBatchError as error:
        return positions, error
    return positions, None


@pytest.mark.parametrize("read_bytes", [1, 17, 18, 60, 100, 333, 0])
def test_entries_of_all_magics_are_walked_whatever_is_read_at_once(
    bed: LogBed, make_segment: MakeSegment, mixed: list[bytes], read_bytes: int
) -> None:
    segment = make_segment(mixed, 0, 25)
    expected = list(zip(starts(mixed), MAGICS, LAST_OFFSETS, strict=False))
    assert walked(segment, bed, read_bytes) == expected
    for index in range(len(mixed)):
        assert walked(segment, bed, read_bytes, starts(mixed)[index]) == expected[index:]
    assert walked(segment, bed, read_bytes, segment.size_bytes) == []


def test_chunks_are_adjacent(bed: LogBed, make_segment: MakeSegment, mixed: list[bytes]) -> None:
    segment = make_segment(mixed, 0, 25)
    data = b"".join(mixed)
    end = 0
    for chunk in walk(segment, 0, bed.components, read_bytes=400):
        assert chunk.position == end
        end = chunk.end_position
        for batch in chunk.batches():
            start = chunk.position + batch.position
            assert (
                bytes(chunk.data[batch.position : batch.position + batch.size_bytes])
                == data[start : start + batch.size_bytes]
            )
    assert end == len(data)


@pytest.mark.parametrize("read_bytes", [1, 0])
@pytest.mark.parametrize(
    ("base_offset", "order", "good"),
    [
        pytest.param(0, [1, 3, 4, 5, 3], 4, id="an old batch again"),
        pytest.param(0, [1, 4, 4], 2, id="a batch twice"),
        pytest.param(0, [1, 5, 2], 2, id="an old entry of V1"),
        pytest.param(10, [4], 0, id="below the segment's base offset"),
        pytest.param(12, [5, 6, 5], 2, id="V2 again after V1"),
    ],
)
def test_offsets_must_ascend_since_no_crc_covers_them(
    bed: LogBed,
    make_segment: MakeSegment,
    mixed: list[bytes],
    read_bytes: int,
    base_offset: int,
    order: list[int],
    good: int,
) -> None:
    entries = [mixed[index] for index in order]
    segment = make_segment(entries, base_offset, 25)
    positions, error = walked_until_error(segment, bed, read_bytes)
    assert positions == starts(entries)[:good]
    assert error is not None
    assert (error.position, error.file) == (starts(entries)[good], segment.label)


def test_an_offset_too_far_above_the_base_offset_is_corrupt(bed: LogBed, make_segment: MakeSegment) -> None:
    near_batch, far_batch = (bed.batch(offset, records(1)) for offset in ((1 << 31) - 1, 1 << 31))
    assert len(walked(make_segment([near_batch], 0, 1 << 31), bed)) == 1
    with pytest.raises(CorruptBatchError, match="are not between"):
        walked(make_segment([far_batch], 0, 1 << 32), bed)


@pytest.mark.parametrize("read_bytes", [1, 0])
def test_no_batch_reaches_past_the_end_of_a_closed_segment(
    bed: LogBed, make_segment: MakeSegment, mixed: list[bytes], read_bytes: int
) -> None:
    segment = make_segment(mixed, 0, 25)
    assert walked_until_error(segment, bed, read_bytes, below=25) == (starts(mixed)[:-1], None)
    positions, error = walked_until_error(segment, bed, read_bytes, below=16)
    assert positions == starts(mixed)[:5]
    assert error is not None
    assert (error.position, error.file) == (starts(mixed)[5], segment.label)


@pytest.mark.parametrize("read_bytes", [1, 0])
@pytest.mark.long
def test_a_log_cut_at_any_byte_gives_its_whole_entries_and_then_an_error(
    bed: LogBed, make_segment: MakeSegment, mixed: list[bytes], read_bytes: int
) -> None:
    entries = [mixed[0], mixed[3], mixed[4], mixed[6]]
    data, bounds = b"".join(entries), starts(entries)
    for size in range(len(data) + 1):
        segment = make_segment([data[:size]], 0, 25)
        entry_count = sum(bound <= size for bound in bounds) - 1
        positions, error = walked_until_error(segment, bed, read_bytes)
        assert positions == bounds[:entry_count]
        assert (error is None) is (size in bounds)
        assert error is None or (error.position, error.file) == (bounds[entry_count], str(bed.path(0)))


@pytest.mark.parametrize("read_bytes", [1, 100, 0])
def test_a_file_that_is_cut_after_it_was_opened_gives_its_whole_entries_and_then_an_error(
    bed: LogBed, make_segment: MakeSegment, mixed: list[bytes], read_bytes: int
) -> None:
    """The walk over a truncated file once read the same empty range for ever."""
    entries = [mixed[0], mixed[3], mixed[4], mixed[6]]
    bounds = starts(entries)
    for size in sorted({*range(0, bounds[-1], 29), *bounds[:-1], *(bound - 1 for bound in bounds[1:])}):
        segment = make_segment(entries, 0, 25)
        assert segment.size_bytes == bounds[-1]
        os.truncate(bed.path(0), size)
        reads = CountedReads(segment, 4 * bounds[-1])
        positions, error = walked_until_error(segment, bed, read_bytes, read=reads)
        entry_count = sum(bound <= size for bound in bounds)
        assert positions == bounds[: entry_count - 1]
        assert error is not None
        assert (error.position, error.file) == (bounds[entry_count - 1], str(bed.path(0)))


def test_a_format_that_makes_no_progress_is_an_error(
    bed: LogBed, make_segment: MakeSegment, mixed: list[bytes]
) -> None:
    """Formats can be plugins. A format that reports a wrong end, or moves back, must not cause an endless loop."""
    segment = make_segment(mixed[4:5], 0, 25)

    class Still:
        magic = 2
        answer = ScanStop.END, 0

        def scan(self, _data: Buffer, _start: int, _end: int, *, check_crc: bool) -> BatchTable:
            del check_crc
            return BatchTable.from_rows(2, [], *self.answer)

    still = Still()
    components = dataclasses.replace(bed.components, formats=FormatTable([cast(RecordFormat, still)]))
    for still.answer in (
        (ScanStop.END, 0),
        (ScanStop.PARTIAL, 0),
        (ScanStop.OTHER_MAGIC, 0),
        (ScanStop.OTHER_MAGIC, -5),
    ):
        with pytest.raises(CorruptBatchError, match="the record format refuses"):
            list(walk(segment, 0, components, read=CountedReads(segment, 10)))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_bit_that_a_crc_covers_is_checked(bed: LogBed, magic: int) -> None:
    first = bed.batch(0, records(1), magic=magic)
    second = bed.batch(1, records(2), magic=magic, codec="gzip")
    # no CRC covers offset and size, nor a V2 batch's leader epoch
    covered = range(17, len(second)) if magic == 2 else range(12, len(second))
    for position, bit in itertools.product(covered, range(8)):
        flipped = bytearray(first + second)
        flipped[len(first) + position] ^= 1 << bit
        result = scan(bed.components.formats, flipped, 0, len(flipped), check_crc=True)
        assert (result.stop, result.stop_position, sum(map(len, result.tables))) == (ScanStop.CORRUPT, len(first), 1)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 13])
def test_impossible_sizes_are_corrupt_not_partial(bed: LogBed, magic: int, size: int) -> None:
    first = bed.batch(0, records(1), magic=magic)
    second = FRAME.pack(1, size, 0, magic) + bytes(100)
    result = scan(bed.components.formats, first + second, 0, len(first + second), check_crc=True)
    assert (result.stop, result.stop_position) == (ScanStop.CORRUPT, len(first))


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_an_unknown_magic_is_corrupt(bed: LogBed, make_segment: MakeSegment, magic: int) -> None:
    batch = bed.batch(0, records(1))
    segment = make_segment([batch, FRAME.pack(1, 40, 0, magic), bytes(35)], 0, 2)
    chunks = walk(segment, 0, bed.components)
    assert len(list(next(chunks).batches())) == 1
    with pytest.raises(CorruptBatchError, match=f"magic {magic}") as caught:
        next(chunks)
    assert caught.value.position == len(batch)


def test_zeros_after_the_last_entry_are_corrupt(bed: LogBed, make_segment: MakeSegment) -> None:
    batch = bed.batch(0, records(1))
    for zeros in (1, 16, 17, 4096):
        segment = make_segment([batch, bytes(zeros)], 0, 1)
        with pytest.raises(CorruptBatchError) as caught:
            list(walk(segment, 0, bed.components))
        assert caught.value.position == len(batch)


def test_an_entry_above_the_limit_is_refused_before_it_is_read(bed: LogBed, make_segment: MakeSegment) -> None:
    bed.limits = Limits(batch_bytes=500, read_bytes=1024)
    small, large = bed.batch(0, records(1)), bed.batch(1, records(1, value_bytes=2000))
    segment = make_segment([small, large], 0, 2)
    with pytest.raises(CorruptBatchError, match=r"limits\.batch\.bytes=500") as caught:
        list(walk(segment, 0, bed.components))
    assert caught.value.position == len(small)


def test_a_lying_size_is_not_read(bed: LogBed, make_segment: MakeSegment) -> None:
    batch = bed.batch(0, records(1))
    segment = make_segment([batch, FRAME.pack(1, (1 << 31) - 1, 0, 2), bytes(100)], 0, 2)
    with pytest.raises(CorruptBatchError, match="cut off"):
        list(walk(segment, 0, bed.components))


def test_nothing_in_an_empty_range(bed: LogBed, mixed: list[bytes]) -> None:
    result = scan(bed.components.formats, b"".join(mixed), 5, 5, check_crc=True)
    assert (result.tables, result.stop, result.stop_position) == ((), ScanStop.END, 5)


@pytest.mark.parametrize("size", range(1, FRAME_BYTES))
def test_a_few_bytes_are_a_partial_entry(bed: LogBed, mixed: list[bytes], size: int) -> None:
    result = scan(bed.components.formats, mixed[0], 0, size, check_crc=True)
    assert (result.tables, result.stop, result.stop_position) == ((), ScanStop.PARTIAL, 0)


# --- leader epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece_bytes", [1, 3, 16, 17, 40, 1000, 1 << 20])
def test_batches_get_another_epoch_in_whatever_pieces_they_come(
    mixed: list[bytes], bed: LogBed, piece_bytes: int
) -> None:
    data = b"".join(mixed)
    setter = EpochSetter(7)
    pieces = [setter.feed(data[start : start + piece_bytes]) for start in range(0, len(data), piece_bytes)]
    changed = b"".join([*pieces, setter.rest()])
    result = scan(bed.components.formats, changed, 0, len(changed), check_crc=True)
    assert (result.stop, len(changed)) == (ScanStop.END, len(data))
    epochs = [batch.leader_epoch for table in result.tables for batch in table]
    assert epochs == [7 if magic == 2 else -1 for magic in MAGICS]
    back = EpochSetter(0)
    assert bytes(back.feed(changed) + back.rest()) == data


@pytest.mark.parametrize("size", [-1, 0, 13, (1 << 31) - 1])
def test_bytes_that_are_no_batch_are_kept(mixed: list[bytes], size: int) -> None:
    data = mixed[-3] + FRAME.pack(1, size, 5, 2) + bytes(100)
    setter = EpochSetter(7)
    changed = bytes(setter.feed(data) + setter.rest())
    assert len(changed) == len(data)
    assert changed[len(mixed[-3]) + FRAME_BYTES :] == bytes(100)
