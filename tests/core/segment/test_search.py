from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import accumulate
from struct import pack

import pytest

from log_bed import LogBed
from stored_batches import added, stored_batch
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.log.read.batch_lookup import find_batches
from stratalog.model.batches import BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Record
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.appender import Appender
from stratalog.segment.framing import walk
from stratalog.segment.search import (
    aborted_transactions,
    batch_at,
    find_batch,
    start_position,
)
from stratalog.segment.segment import Segment
from stratalog.segment.time_search import find_timestamp, largest_timestamp
from stratalog.spi.indexes import IndexRole
from stratalog_formats.kernels.dispatch import KERNELS

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]

BASE = 100
# magic, codec, and timestamps of the records; offsets are consecutive, except for gaps at the end of a batch
Layout = Sequence[tuple[int, str | None, list[int]]]
RISING: Layout = [(2, None, [1000 + 10 * n, 1005 + 10 * n]) for n in range(20)]
MIXED: Layout = [
    (1, None, [500]),
    (1, "gzip", [700, 600, 650]),
    (0, None, [-1]),
    (2, None, [900, 100]),
    (2, "zstd", [800, 850, 820]),
    (2, None, [900]),
    (2, None, [-1, -1]),
    (1, "lz4", [300, 1200]),
    (0, "gzip", [-1, -1]),
    (2, None, [1200, 1100]),
    (2, None, [50]),
    (2, None, [1500, 1400, 1300]),
    (1, None, [1450]),
]
# some batches are much larger than the interval of index entries
UNEVEN: Layout = [
    (2, None, [7000, 7001]),
    (2, None, [7002]),
    (2, None, [100, 101]),
    (2, None, [102]),
    (1, None, [7003]),
    (2, None, [7004, 104]),
    (2, None, [105]),
    (2, None, [7005]),
    (2, None, [106]),
]
LARGE_MS, LARGE_BYTES = 7000, 12_000  # size of the values of records with this timestamp
LAYOUTS = {"rising": RISING, "mixed": MIXED, "uneven": UNEVEN}


def value_of(stamp_ms: int) -> bytes:
    return bytes(LARGE_BYTES) if stamp_ms >= LARGE_MS else b"some value"


class Made:
    """A segment, and its expected contents."""

    def __init__(self, bed: LogBed, make: MakeSegment, layout: Layout) -> None:
        self.records: list[tuple[int, int]] = []  # offset, timestamp
        self.lasts: list[int] = []
        self.batches: list[bytes] = []
        offset = BASE
        for magic, codec, stamps in layout:
            batch_records = [Record(timestamp_ms=stamp, key=b"k", value=value_of(stamp)) for stamp in stamps]
            self.batches.append(bed.batch(offset, batch_records, magic=magic, codec=codec))
            self.records += [(offset + index, stamp) for index, stamp in enumerate(stamps)]
            offset += len(stamps)
            self.lasts.append(offset - 1)
        self.end = offset
        self.segment = make(self.batches, BASE, offset)
        self.components = bed.components

    def batch_of(self, offset: int) -> int | None:
        """Return the index of the first batch whose last offset is at or above ``offset``; None if there is none."""
        return next((index for index, last in enumerate(self.lasts) if last >= offset), None)

    def position(self, index: int) -> int:
        return sum(map(len, self.batches[:index]))

    def check_offsets(self) -> None:
        """Check that a search finds every offset at the batch that a scan from the start finds."""
        for offset in range(BASE - 2, self.end + 3):
            result, index = find_batch(self.segment, offset, self.components), self.batch_of(offset)
            assert (None if result is None else result[0]) == (None if index is None else self.position(index)), offset
            for max_bytes in (1, 300):
                for is_whole in (True, False):
                    self.check_read(offset, max_bytes, whole=is_whole)

    def check_read(self, offset: int, max_bytes: int, *, whole: bool = True) -> None:
        """Check a read: whole batches from the requested one on, as many as fit, and at least one."""
        index = self.batch_of(offset)
        result = find_batches(
            self.segment,
            offset,
            self.components,
            max_bytes=max_bytes,
            bound=self.end,
            needs_data=whole,
            check_crc=whole,
        )
        if result is None:
            assert index is None, offset
            return
        assert index is not None, offset
        position, end_position, last_offset, data, _ = result
        sizes = list(accumulate(map(len, self.batches[index:])))
        count = max(1, bisect_right(sizes, max_bytes))
        expected = b"".join(self.batches[index : index + count])
        assert (data or self.segment.read(position, end_position - position)) == expected, offset
        assert (position, end_position - position) == (self.position(index), len(expected))
        assert (last_offset, data is not None) == (self.lasts[index + count - 1], whole)

    def check_timestamps(self, min_offsets: Sequence[int]) -> None:
        """Check that a search finds every timestamp at the record that a scan from the start finds."""
        stamps = {stamp + step for _, stamp in self.records for step in (-1, 0, 1)} | {0, 10_000}
        for stamp in sorted(stamps):
            for min_offset in min_offsets:
                expected = next(
                    (TimestampOffset(t, o) for o, t in self.records if t >= stamp and o >= min_offset), None
                )
                assert find_timestamp(self.segment, stamp, min_offset, self.components) == expected, (stamp, min_offset)


@pytest.fixture(params=LAYOUTS)
def made(request: pytest.FixtureRequest, bed: LogBed, make_segment: MakeSegment) -> Made:
    return Made(bed, make_segment, LAYOUTS[request.param])


def honest(sample: Made, role: IndexRole, interval_bytes: int) -> bytes:
    """Return the index entries that an appender would have written."""
    config = TopicConfig(index_interval_bytes=interval_bytes)
    builder = sample.components.indexes[role].builder(BASE, config)
    entries = []
    for chunk in walk(sample.segment, 0, sample.components):
        for batch in chunk.batches():
            start, last = chunk.position + batch.position, batch.last_offset
            entries.append(added(builder, stored_batch(start, batch.size_bytes, last, last, batch.max_timestamp_ms)))
    return b"".join([*entries, builder.finish()])


# --- correct indexes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_bytes", [0, 1, 150, 1 << 20])
def test_honest_indexes_find_what_a_scan_finds(made: Made, interval_bytes: int) -> None:
    for role in (IndexRole.OFFSET, IndexRole.TIME):
        made.segment.hold_entries(role, honest(made, role, interval_bytes))
    made.check_offsets()
    made.check_timestamps([BASE, BASE + 7, made.end])


def test_an_honest_index_saves_reading(made: Made) -> None:
    made.segment.hold_entries(IndexRole.OFFSET, honest(made, IndexRole.OFFSET, 0))
    positions = [start_position(made.segment, offset, made.components) for offset in range(BASE, made.end)]
    assert positions == sorted(positions)
    assert positions[-1] == made.position(len(made.batches) - 1)


def test_one_read_finds_the_first_batch_though_no_index_entry_names_it(
    bed: LogBed, make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Made(bed, make_segment, UNEVEN)
    sample.segment.hold_entries(IndexRole.OFFSET, honest(sample, IndexRole.OFFSET, 4096))
    read, positions = Segment.read, list[int]()

    def counted(segment: Segment, position: int, size_bytes: int) -> memoryview:
        positions.append(position)
        return read(segment, position, size_bytes)

    monkeypatch.setattr(Segment, "read", counted)
    assert (
        find_batches(sample.segment, BASE + 1, sample.components, max_bytes=1, bound=sample.end, needs_data=True)
        is not None
    )
    assert positions == [0]


def test_a_search_by_timestamp_reads_large_batches_up_to_the_index_entry_after_the_batch(
    bed: LogBed, make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Made(bed, make_segment, RISING)
    for role in (IndexRole.OFFSET, IndexRole.TIME):
        sample.segment.hold_entries(role, honest(sample, role, 0))
    read, reads = Segment.read, list[tuple[int, int]]()

    def counted(segment: Segment, position: int, size_bytes: int) -> memoryview:
        reads.append((position, size_bytes))
        return read(segment, position, size_bytes)

    monkeypatch.setattr("stratalog.segment.time_search.WINDOW_BYTES", 1)  # all batches are larger
    monkeypatch.setattr(Segment, "read", counted)
    wanted = find_timestamp(sample.segment, 1050, BASE, sample.components)
    assert wanted == TimestampOffset(1050, BASE + 10)
    assert reads[0] == (sample.position(4), sample.position(6) - sample.position(4))
    if KERNELS.select is not None:  # without the kernel, a walk follows
        assert len(reads) == 1


def test_an_appender_writes_honest_indexes(bed: LogBed, made: Made) -> None:
    empty = Segment(
        bed.files(), 10_000, 10_000, bed.components, bed.files().open_segment(bed.path(10_000).name, create=True)
    )
    appender = Appender(empty, bed.components, TopicConfig(index_interval_bytes=100))
    try:
        for chunk in walk(made.segment, 0, bed.components):
            for batch in chunk.batches():
                data = chunk.data[batch.position : batch.position + batch.size_bytes]
                table = BatchTable.from_rows(batch.magic, [astuple(moved(batch, 10_000 - BASE))[1:]], ScanStop.END, 0)
                appender.append(PreparedBatches(table, bytearray(data)))
        for role in (IndexRole.OFFSET, IndexRole.TIME):
            reader = bed.components.indexes[role].reader(empty.index_entries(role), 10_000)
            reader.check(empty.end_offset, empty.size_bytes)
            assert len(reader)
        assert empty.end_offset - 10_000 == made.end - BASE
    finally:
        empty.close()


def moved(batch: RecordBatch, shift: int) -> RecordBatch:
    return replace(batch, position=0, base_offset=batch.base_offset + shift, last_offset=batch.last_offset + shift)


# --- wrong indexes -----------------------------------------------------------------------------------------------


def lies(entries: bytes, size: int, seed: int) -> Iterator[bytes]:
    """Yield wrong contents of an index."""
    chance = random.Random(seed)  # noqa: S311 - the same lies in every run
    items = [entries[start : start + size] for start in range(0, len(entries), size)]
    yield b""
    yield bytes(len(entries))
    yield b"\xff" * len(entries)
    yield bytes(10 * size)
    yield entries + bytes(5 * size)
    yield entries[: len(entries) // 2 // size * size]
    yield entries[: len(entries) // 2 + 1]
    yield b"".join(reversed(items))
    yield b"".join(items[1:] + items[:1])
    for _ in range(12):
        chance.shuffle(items)
        yield b"".join(items)
        yield chance.randbytes(len(entries))
    for _ in range(80):
        flipped = bytearray(entries)
        flipped[chance.randrange(len(entries))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


def test_no_offset_index_changes_an_answer(made: Made) -> None:
    entries = honest(made, IndexRole.OFFSET, 0)
    for lie in lies(entries, 8, seed=1):
        made.segment.hold_entries(IndexRole.OFFSET, lie)
        made.check_offsets()


@pytest.mark.long
def test_an_offset_index_that_points_past_its_target_is_found_out(made: Made) -> None:
    for index in range(1, len(made.batches)):
        for relative in range(made.end - BASE):
            made.segment.hold_entries(IndexRole.OFFSET, pack(">ii", relative, made.position(index)))
            made.check_offsets()


def test_an_offset_index_that_points_into_a_batch_is_found_out(made: Made) -> None:
    for position in (
        1,
        12,
        17,
        61,
        made.position(3) + 5,
        made.segment.size_bytes,
        made.segment.size_bytes + 1,
        1 << 30,
    ):
        made.segment.hold_entries(IndexRole.OFFSET, pack(">ii", 0, position))
        made.check_offsets()


def test_no_time_index_changes_an_answer(made: Made) -> None:
    made.segment.hold_entries(IndexRole.OFFSET, honest(made, IndexRole.OFFSET, 0))
    entries = honest(made, IndexRole.TIME, 0)
    for lie in lies(entries, 12, seed=2):
        made.segment.hold_entries(IndexRole.TIME, lie)
        made.check_timestamps([BASE])


def test_two_batches_of_one_timestamp(bed: LogBed, make_segment: MakeSegment) -> None:
    """An entry that refers to the later of two batches with one largest timestamp must not hide the earlier one."""
    sample = Made(bed, make_segment, [(2, None, [1000]), (2, None, [2000]), (2, None, [2000]), (2, None, [3000])])
    for relative in range(4):
        sample.segment.hold_entries(IndexRole.TIME, pack(">qiqi", 1000, 0, 2000, relative))
        sample.check_timestamps([BASE])


# --- the largest timestamp ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_bytes", [0, 150, 1 << 20])
def test_the_largest_timestamp(made: Made, interval_bytes: int) -> None:
    top = max(stamp for _, stamp in made.records)
    offset = next(o for o, t in made.records if t == top)
    expected = TimestampOffset(top, made.lasts[made.batch_of(offset) or 0])
    made.segment.hold_entries(IndexRole.TIME, honest(made, IndexRole.TIME, interval_bytes))
    assert largest_timestamp(made.segment, made.components) == expected
    made.segment.hold_entries(IndexRole.TIME, b"")
    assert largest_timestamp(made.segment, made.components) == expected
    made.segment.hold_entries(IndexRole.TIME, pack(">qi", top + 1, 0))
    assert largest_timestamp(made.segment, made.components) == expected


def test_without_timestamps_there_is_no_largest(bed: LogBed, make_segment: MakeSegment) -> None:
    sample = Made(bed, make_segment, [(0, None, [-1]), (2, None, [-1, -1])])
    assert largest_timestamp(sample.segment, sample.components) == TimestampOffset(-1, BASE)
    assert sample.segment.max_timestamp_ms == -1
    assert sample.segment.age_from_ms == sample.segment.file.modified_ms > 0
    assert find_timestamp(sample.segment, 0, BASE, sample.components) is None


# --- single batches ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_is_taken_only_where_one_starts(made: Made) -> None:
    begins = {made.position(index): last for index, last in enumerate(made.lasts)}
    for position in range(-2, made.segment.size_bytes + 3):
        batch = batch_at(made.segment, position, made.components)
        assert (None if batch is None else batch.last_offset) == begins.get(position)


def test_a_damaged_batch_is_no_batch(bed: LogBed, make_segment: MakeSegment) -> None:
    first, second = bed.batch(0, [Record(value=b"one")]), bytearray(bed.batch(1, [Record(value=b"two")]))
    second[-1] ^= 1
    segment = make_segment([first, second], 0, 2)
    assert batch_at(segment, 0, bed.components) is not None
    assert batch_at(segment, len(first), bed.components) is None
    segment.hold_entries(IndexRole.OFFSET, pack(">ii", 1, len(first)))
    assert start_position(segment, 1, bed.components) == 0
    with pytest.raises(CorruptBatchError) as caught:
        list(walk(segment, 0, bed.components))
    assert caught.value.position == len(first)


# --- aborted transactions ----------------------------------------------------------------------------------------


def entry(producer: int, first: int, last: int, stable: int) -> bytes:
    return pack(">hqqqq", 0, producer, first, last, stable)


def test_aborted_transactions_of_a_range(bed: LogBed, make_segment: MakeSegment) -> None:
    """The expected transactions have a marker at or above the start, and a first record below the end.

    The search stops at an entry whose last stable offset is at or above the end.
    """
    transactions = [
        AbortedTransaction(1, 3, 10, 5),
        AbortedTransaction(2, 5, 20, 21),
        AbortedTransaction(1, 30, 40, 41),
    ]
    first, second = make_segment([], 0, 25), make_segment([], 25, 50)
    first.hold_entries(IndexRole.TRANSACTION, entry(1, 3, 10, 5) + entry(2, 5, 20, 21))
    second.hold_entries(IndexRole.TRANSACTION, entry(1, 30, 40, 41))
    for start in range(50):
        for end in range(start, 51):
            segments = [segment for segment in (first, second) if segment.end_offset > start]
            result = aborted_transactions(segments, start, end, bed.components)
            expected = [
                transaction
                for transaction in transactions
                if transaction.last_offset >= start and transaction.first_offset < end
            ]
            assert list(result) == expected


# --- consecutive reads ----------------------------------------------------------------------------------------------


def test_a_fetch_continues_where_the_last_one_ended(bed: LogBed, make_segment: MakeSegment) -> None:
    """The segment notes the end of the last read. The result must not depend on this note or on an index."""
    sample = Made(bed, make_segment, [(2, None, [7000 + 2 * n, 7001 + 2 * n]) for n in range(12)])
    sample.segment.hold_entries(IndexRole.OFFSET, b"")
    offset, max_bytes = BASE, len(sample.batches[0]) * 2
    while offset < sample.end:
        sample.check_read(offset, max_bytes)
        offset += 4
        assert sample.segment.next_read == OffsetPosition(offset, sample.position((offset - BASE) // 2))
    for noted in range(BASE, sample.end):
        for position in (0, 1, sample.position(3), sample.position(5) + 61, sample.segment.size_bytes, 1 << 40):
            sample.segment.next_read = OffsetPosition(noted, position)
            sample.check_read(noted, 1)
