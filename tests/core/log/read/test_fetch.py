from __future__ import annotations

import heapq
import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from log_bed import LogBed, records
from stored_batches import batches_in
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.env.posix_vfs import PosixVfs
from stratalog.errors import ClosedError, ConfigError, CorruptBatchError, OffsetOutOfRangeError
from stratalog.log.log import Log
from stratalog.log.read.fetch import Fetched
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.segment.segment import Segment

COUNT = 30


@pytest.fixture
def log(bed: LogBed) -> LogReader:
    """Return a log with thirty records in batches of one to four, in several segments. Its log start is 5."""
    bed.topic = TopicConfig(segment_bytes=700)
    new_log = bed.open()
    record_count = 0
    while record_count < COUNT:
        size = min(1 + record_count % 4, COUNT - record_count)
        new_log.append(records(size, start=record_count))
        record_count += size
    new_log.delete_records(5)
    return new_log


def batches(fetched: Fetched, bed: LogBed) -> list[tuple[int, int]]:
    """Return base offset and last offset of each fetched batch."""
    return [(batch.base_offset, batch.last_offset) for batch, _ in batches_in(fetched.read(), bed.components)]


# --- raw batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 100, 200, 1 << 20])
def test_every_offset_is_fetched_with_the_batch_that_holds_it(bed: LogBed, log: LogReader, max_bytes: int) -> None:
    for offset in range(5, COUNT):
        with log.fetch(offset, max_bytes=max_bytes) as fetched:
            ranges = batches(fetched, bed)
            assert ranges[0][0] <= offset <= ranges[0][1]
            assert fetched.next_offset == ranges[-1][1] + 1
            assert fetched.size_bytes <= max(max_bytes, 0) or len(ranges) == 1
            assert fetched.offsets == log.offsets()


def test_a_log_is_read_fetch_by_fetch(bed: LogBed, log: LogReader) -> None:
    offset, ranges = 5, list[tuple[int, int]]()
    while True:
        with log.fetch(offset, max_bytes=300) as fetched:
            if not fetched.slices:
                break
            ranges += batches(fetched, bed)
            offset = fetched.next_offset
    assert offset == COUNT
    assert ranges[0][0] <= 5
    assert [base for base, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]


def test_at_the_end_nothing_is_fetched(log: LogReader) -> None:
    for isolation in ("log_end", "read_uncommitted", "read_committed"):
        with log.fetch(COUNT, isolation=isolation) as fetched:
            assert (fetched.slices, fetched.next_offset, fetched.read()) == ((), COUNT, b"")


def test_a_caller_may_release_the_bytes_of_an_empty_fetch(log: LogReader) -> None:
    for _ in range(2):
        with log.fetch(COUNT).data as data:
            assert not data


@pytest.mark.parametrize("offset", [-1, 0, 4, COUNT + 1, 1 << 62])
def test_offsets_outside_the_log_are_out_of_range(log: LogReader, offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.fetch(offset)
    assert (caught.value.offset, caught.value.log_start, caught.value.log_end) == (offset, 5, COUNT)
    if offset:  # ``records`` accepts 0 for "the log start"
        with pytest.raises(OffsetOutOfRangeError):
            list(log.records(offset))


def test_a_fetch_that_a_close_interrupts_says_that_the_reader_is_closed(
    bed: LogBed, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.close()
    reader, read = bed.open_reader(), Segment.read

    def close_and_read(segment: Segment, position: int, size_bytes: int) -> memoryview:
        reader.close()
        return read(segment, position, size_bytes)

    monkeypatch.setattr(Segment, "read", close_and_read)
    with pytest.raises(ClosedError):
        reader.fetch(5)


def test_an_unknown_isolation_is_named(log: LogReader) -> None:
    with pytest.raises(ConfigError, match="read_committed"):
        log.fetch(5, isolation="dirty")
    with pytest.raises(ConfigError, match="read_committed"):
        list(log.records(isolation="dirty"))


def test_one_read_gets_the_bytes_of_one_record_and_no_more_of_its_neighbours_than_the_index_needs(
    bed: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.topic = TopicConfig(index_interval_bytes=0)
    log, read = bed.open(), list[int]()
    for index in range(40):
        log.append(records(10, start=index * 10, value_bytes=2000))
    with log.fetch(205, max_bytes=1) as expected:
        data = expected.read()

    def counted(descriptor: int, position: int, size_bytes: int) -> bytes:
        read.append(size_bytes)
        return os.pread(descriptor, size_bytes, position)

    monkeypatch.setattr(bed.components.env.files, "read", counted)
    with log.fetch(205, max_bytes=1) as fetched:
        assert (fetched.next_offset, fetched.size_bytes) == (210, len(data))
        assert fetched.read() == fetched.read() == data
        assert len(read) == 1
        assert sum(read) <= len(data)


def test_the_bytes_of_a_fetch_outlive_their_segment_a_truncation_and_the_log(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=700, file_delete_delay_ms=0)
    log = bed.open()
    for index in range(20):
        log.append(records(1, start=index, value_bytes=100))
    last = log.segments()[-1].base_offset
    data = [log.fetch(offset, 1).read() for offset in (0, last)]
    with log.fetch(0, 1) as deleted, log.fetch(last, 1) as truncated:
        log.delete_records(last)
        log.maintenance.evict(last)
        log.maintenance.delete_expired()
        assert deleted.read() == data[0]
        log.truncate_to(last)
        log.append(records(1, start=99, value_bytes=100))
        assert log.fetch(last, 1).read() != data[1]
        log.close()
        assert (deleted.read(), truncated.read()) == (data[0], data[1])


# --- records -----------------------------------------------------------------------------------------------------


def test_any_range_of_records(log: LogReader) -> None:
    for start in range(5, COUNT + 1):
        for end in (*range(start, COUNT + 3), None):
            expected = list(range(start, COUNT if end is None else min(end, COUNT)))
            assert [record.offset for record in log.records(start, end)] == expected


def test_zero_is_the_log_start(log: LogReader) -> None:
    assert next(iter(log.records())).offset == 5
    assert next(iter(log.records(0, 7))).offset == 5
    assert list(log.records(0, 5)) == []


def test_arrow_holds_the_same(log: LogReader) -> None:
    table = log.to_arrow(7, 20)
    read = list(log.records(7, 20))
    assert table.column("offset").to_pylist() == [record.offset for record in read]
    assert table.column("key").to_pylist() == [record.key for record in read]
    assert table.column("value").to_pylist() == [record.value for record in read]
    assert log.to_arrow(20, 20).num_rows == 0


@pytest.mark.parametrize("read_bytes", [1024, 1 << 20])
def test_any_range_as_arrow(bed: LogBed, read_bytes: int) -> None:
    """Batches of three records, several in each read: a batch at the end of a range is sliced, or copied in part."""
    bed.limits, bed.topic = Limits(read_bytes=read_bytes), TopicConfig(index_interval_bytes=150)
    log = bed.open()
    for start in range(0, 120, 3):
        log.append(records(3, start=start))
    for start in range(0, 121, 7):
        for end in (*range(start, 121, 5), 120, None):
            expected = list(range(start, 120 if end is None else end))
            assert log.to_arrow(start, end).column("offset").to_pylist() == expected
            assert [record.offset for record in log.records(start, end)] == expected


def test_a_range_reads_little_more_than_itself(bed: LogBed) -> None:
    read = list[int]()

    class Counted(PosixVfs):
        def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
            read.append(len(into))
            return super().read_into(descriptor, position, into)

    bed.files_port, bed.topic = Counted(), TopicConfig(index_interval_bytes=0)
    log = bed.open()
    sizes = []
    for start in range(0, 100, 5):
        before = log.segments()[-1].size_bytes
        log.append(records(5, start=start, value_bytes=1000))
        sizes.append(log.segments()[-1].size_bytes - before)
    assert log.to_arrow(20, 40).num_rows == 20
    assert 4 * sizes[0] <= sum(read) <= 6 * sizes[0]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_wrappers_of_old_messages_are_cut_to_the_range(bed: LogBed, codec: str) -> None:
    data = [bed.batch(3 * n, records(3, start=3 * n), magic=n % 2, codec=codec) for n in range(6)]
    bed.write_segment(0, data)
    log = bed.open_reader(clean=False)
    for start in range(19):
        for end in range(start, 19):
            assert [record.offset for record in log.records(start, end)] == list(range(start, end))
        with log.fetch(start, max_bytes=1) as fetched:
            assert fetched.next_offset == (start if start == 18 else start // 3 * 3 + 3)


def damaged_log(bed: LogBed, *, rolled: bool) -> list[bytes]:
    """Write a log of five batches of two records and close it cleanly. Damage the second batch; return all batches."""
    bed.topic = TopicConfig(index_interval_bytes=0)
    data = [bed.batch(2 * n, records(2, start=2 * n)) for n in range(5)]
    bed.write_segment(0, data)
    log = bed.open(clean=False)
    if rolled:
        log.roll()
    bed.close()
    damaged = bytearray(bed.path(0).read_bytes())
    damaged[len(data[0]) + len(data[1]) - 1] ^= 1
    bed.path(0).write_bytes(damaged)
    return data


def test_all_good_records_come_before_a_damaged_batch(bed: LogBed) -> None:
    data = damaged_log(bed, rolled=True)
    log = bed.open_reader()
    read = log.records()
    assert [next(read).offset, next(read).offset] == [0, 1]
    with pytest.raises(CorruptBatchError) as caught:
        next(read)
    assert (caught.value.file, caught.value.position) == (str(bed.path(0)), len(data[0]))
    assert [record.offset for record in log.records(0, 2)] == [0, 1]
    assert [record.offset for record in log.records(6)] == [6, 7, 8, 9]


@pytest.mark.parametrize("writable", [True, False])
def test_a_log_that_is_damaged_in_its_last_segment_ends_there(bed: LogBed, *, writable: bool) -> None:
    """This holds even after a clean shutdown: bytes after the damage are not trusted, and no append follows them."""
    data = [bed.batch(2 * n, records(2, start=2 * n)) for n in range(2)]
    bed.write_segment(0, data[:1])
    bed.open(clean=False)
    bed.close()
    torn = data[0] + data[1][:-1]
    bed.path(0).write_bytes(torn)
    log: LogReader = bed.open() if writable else bed.open_reader()
    assert log.offsets().log_end == 2
    read = log.records()
    assert [next(read).offset, next(read).offset] == [0, 1]
    with pytest.raises(CorruptBatchError) as caught:
        next(read)
    assert (caught.value.file, caught.value.position) == (str(bed.path(0)), len(data[0]))
    assert [record.offset for record in log.records(0, 2)] == [0, 1]
    with pytest.raises(CorruptBatchError):
        log.fetch(2)
    if isinstance(log, Log):
        assert not log.healthy
        with pytest.raises(CorruptBatchError):
            log.append(records(1))
        assert log.close() is False
    assert bed.path(0).read_bytes() == torn


# --- transactions ------------------------------------------------------------------------------------------------

PLAIN, DATA, COMMIT, ABORT = "plain", "data", "commit", "abort"
Step = tuple[str, int, int]  # kind of batch, producer, number of records

KAFKAS_EXAMPLE: list[Step] = [
    (PLAIN, 0, 1), (DATA, 1, 1), (DATA, 2, 1), (DATA, 1, 1), (ABORT, 1, 1), (DATA, 2, 1), (COMMIT, 2, 1),
]  # fmt: skip


class History:
    """Batches of several producers, and the records that a reader must return."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.written: list[tuple[int, Step, int]] = []  # first offset, step, base sequence
        self.committed: set[int] = set()
        self.open: dict[int, list[int]] = {}
        self.ended: list[tuple[int, int, int]] = []  # producer, first offset, marker offset of aborted transactions
        sequences: dict[int, int] = {}
        self.end = 0
        for step in steps:
            kind, producer, count = step
            offsets = range(self.end, self.end + (count if kind in {PLAIN, DATA} else 1))
            self.written.append((self.end, step, sequences.get(producer, 0)))
            self.end = offsets.stop
            if kind == PLAIN:
                self.committed.update(offsets)
            elif kind == DATA:
                sequences[producer] = sequences.get(producer, 0) + count
                self.open.setdefault(producer, []).extend(offsets)
            else:
                open_offsets = self.open.pop(producer, [])
                if kind == COMMIT:
                    self.committed.update(open_offsets)
                elif open_offsets:
                    self.ended.append((producer, open_offsets[0], offsets.start))
        self.last_stable = min((open_offsets[0] for open_offsets in self.open.values()), default=self.end)

    @property
    def data(self) -> list[int]:
        """Return the offsets of all data records."""
        return [
            offset
            for first, (kind, _, count), _ in self.written
            if kind in {PLAIN, DATA}
            for offset in range(first, first + count)
        ]

    def visible(self, start: int = 0) -> list[int]:
        return [offset for offset in self.data if start <= offset < self.last_stable and offset in self.committed]

    def write(self, bed: LogBed, cuts: Sequence[int]) -> None:
        """Write the batches. A new segment begins before each batch whose number is in ``cuts``."""
        groups: dict[int, list[bytes]] = {}
        base = 0
        for number, (first, (kind, producer, count), sequence) in enumerate(self.written):
            base = first if number in cuts or number == 0 else base
            groups.setdefault(base, []).append(encoded(bed, first, kind, producer, count, sequence))
        for base_offset, data in groups.items():
            bed.write_segment(base_offset, data)


def encoded(bed: LogBed, first: int, kind: str, producer: int, count: int, sequence: int) -> bytes:
    if kind == PLAIN:
        return bed.batch(first, records(count, start=first))
    if kind == DATA:
        return bed.batch(first, records(count, start=first), producer=(producer, 0, sequence), transactional=True)
    return bed.marker(first, producer, ControlType.COMMIT if kind == COMMIT else ControlType.ABORT)


def consumed(log: LogReader, bed: LogBed, start: int, max_bytes: int) -> list[int]:
    """Return the offsets of the records that Kafka's consumer would return under read_committed, fetch by fetch."""
    position, delivered = start, list[int]()
    while True:
        with log.fetch(position, max_bytes=max_bytes, isolation="read_committed") as fetched:
            if not fetched.slices:
                return delivered
            waiting = [
                (transaction.first_offset, transaction.producer_id) for transaction in fetched.aborted_transactions
            ]
            heapq.heapify(waiting)
            aborted: set[int] = set()
            for batch, _ in batches_in(fetched.read(), bed.components):
                while waiting and waiting[0][0] <= batch.last_offset:
                    aborted.add(heapq.heappop(waiting)[1])
                if batch.is_control:
                    aborted.discard(batch.producer_id)
                elif not (batch.is_transactional and batch.producer_id in aborted):
                    delivered += [o for o in range(batch.base_offset, batch.last_offset + 1) if o >= position]
            position = fetched.next_offset


def check(log: LogReader, bed: LogBed, history: History) -> None:
    bounds = log.offsets()
    assert (bounds.log_end, bounds.high_watermark, bounds.last_stable) == (
        history.end,
        history.end,
        history.last_stable,
    )
    assert [record.offset for record in log.records()] == history.data
    for start in range(history.end + 1):
        assert [record.offset for record in log.records(start, isolation="read_committed")] == [
            offset for offset in history.visible() if offset >= start
        ]
        assert consumed(log, bed, start, max_bytes=1 << 20) == history.visible(start)
    assert consumed(log, bed, 0, max_bytes=1) == history.visible()


def test_kafkas_example(bed: LogBed) -> None:
    history = History(KAFKAS_EXAMPLE)
    assert history.visible() == [0, 2, 5]
    history.write(bed, cuts=[])
    log = bed.open(clean=False)
    check(log, bed, history)
    entry = bed.path(0, ".txnindex").read_bytes()
    assert [int.from_bytes(entry[position : position + 8], "big") for position in range(2, 34, 8)] == [1, 1, 4, 2]


steps = st.lists(
    st.tuples(st.sampled_from([PLAIN, DATA, DATA, DATA, COMMIT, ABORT, ABORT]), st.integers(1, 3), st.integers(1, 2)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60)
@given(steps, st.sets(st.integers(1, 13), max_size=3))
@example(KAFKAS_EXAMPLE, {3})
@example([(DATA, 1, 1), (PLAIN, 1, 1), (ABORT, 1, 1)], {1, 2})
@example([(DATA, 1, 1), (DATA, 2, 1), (ABORT, 2, 1), (DATA, 2, 1), (ABORT, 1, 1), (ABORT, 2, 1)], {2, 3, 5})
@pytest.mark.long
def test_committed_readers_see_what_was_committed(history_steps: list[Step], cuts: set[int]) -> None:
    """The log is recovered by a writer, recovered by a reader, and read from the indexes after a clean shutdown."""
    history = History(history_steps)
    with TemporaryDirectory() as folder, LogBed(Path(folder) / "data", Registry.load()) as bed:
        history.write(bed, sorted(cuts))
        before = bed.contents()
        check(bed.open_reader(clean=False), bed, history)
        assert bed.contents() == before
        check(bed.open(clean=False), bed, history)
        check(bed.open(), bed, history)
        check(bed.open_reader(), bed, history)


@settings(max_examples=25)
@given(steps, st.sets(st.integers(1, 13), max_size=3), st.randoms(use_true_random=False))
@pytest.mark.long
def test_a_damaged_transaction_index_changes_no_answer(
    history_steps: list[Step], cuts: set[int], chance: random.Random
) -> None:
    """A segment alone is not enough to rebuild its transaction index, so loading also uses the previous segments."""
    history = History(history_steps)
    with TemporaryDirectory() as folder, LogBed(Path(folder) / "data", Registry.load()) as bed:
        history.write(bed, sorted(cuts))
        bed.open(clean=False)
        bed.close()
        for path in bed.folder.glob("*.txnindex"):
            data = path.read_bytes()
            path.write_bytes(chance.choice([data[:-1], b"\xff" * len(data), data + data, data + bytes(5)]))
        before = bed.contents()
        check(bed.open_reader(), bed, history)
        assert bed.contents() == before
        check(bed.open(), bed, history)
        bed.close()
        check(bed.open_reader(), bed, history)


def test_a_pending_transaction_holds_readers_back_until_its_marker(bed: LogBed) -> None:
    log = bed.open()
    log.append([Record(value=b"0")])
    log.append_as_leader(bed.batch(0, records(1), producer=(5, 0, 0), transactional=True))
    log.append([Record(value=b"2")])
    assert log.offsets().last_stable == 1
    assert [record.offset for record in log.records(isolation="read_committed")] == [0]
    assert [record.offset for record in log.records()] == [0, 1, 2]
    with pytest.raises(OffsetOutOfRangeError):
        log.fetch(4, isolation="read_committed")
    with log.fetch(2, isolation="read_committed") as fetched:
        assert (fetched.slices, fetched.next_offset) == ((), 2)
    bed.crash()
    end = bed.path(0).stat().st_size
    with bed.path(0).open("ab") as file:
        file.write(bed.marker(3, 5, ControlType.COMMIT))
    assert bed.path(0).stat().st_size > end
    log = bed.open(clean=False)
    assert log.offsets().last_stable == 4
    assert [record.offset for record in log.records(isolation="read_committed")] == [0, 1, 2]
