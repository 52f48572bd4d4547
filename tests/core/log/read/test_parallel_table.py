"""Arrow tables that several threads read in parts are equal to the table that one thread reads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from struct import Struct
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.env.helper_threads import HelperThreads
from stratalog.errors import CorruptBatchError
from stratalog.log.read import parallel_table
from stratalog.log.read.columns import read_arrow
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.read_plan import ReadPlan
from stratalog.log.read.view import LogView
from stratalog.model.messages.control import ControlType
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment

BATCHES = 60
SPAN = 5  # records in each batch
READ_BYTES = 1024
BASE_OFFSET = Struct(">q")


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[list[range]]:
    """Record the spans of each read that is split."""
    reads = list[list[range]]()

    def spans(plan: ReadPlan, components: Components, threads: int) -> list[range]:
        reads.append(original(plan, components, threads))
        return reads[-1]

    original = parallel_table.pieces_of
    monkeypatch.setattr(parallel_table, "pieces_of", spans)
    return reads


@pytest.fixture
def wide(bed: LogBed) -> LogBed:
    """Return a bed whose reads have a few batches each."""
    bed.limits = Limits(read_bytes=READ_BYTES, arrow_threads=2)
    bed.topic = TopicConfig(index_interval_bytes=0)
    return bed


def batches(bed: LogBed, codec: str | None = None) -> list[bytes]:
    return [
        bed.batch(SPAN * n, records(SPAN, start=SPAN * n, value_bytes=n % 7 * 40), codec=codec) for n in range(BATCHES)
    ]


def alone(log: LogReader, start: int, end: int | None, isolation: str) -> pa.Table:
    return pa.Table.from_batches(read_arrow(log.view, log.components, start, end, isolation, log.name.partition))


def same(log: LogReader, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> pa.Table:
    table = log.to_arrow(start, end, isolation)
    table.validate(full=True)
    assert table.equals(alone(log, start, end, isolation))
    return table


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_any_range_of_a_log(wide: LogBed, pieces: list[list[range]], codec: str | None, threads: int) -> None:
    wide.limits = Limits(read_bytes=READ_BYTES, arrow_threads=threads)
    wide.write_segment(0, batches(wide, codec))
    log, chance = wide.open(clean=False), random.Random(5)  # noqa: S311 - the same ranges in every run
    table = same(log)
    assert table.column("offset").to_pylist() == list(range(BATCHES * SPAN))
    assert codec or len(pieces[0]) > 2
    for spans in pieces:
        assert all(earlier.stop == later.start for earlier, later in pairwise(spans))
        assert all(span.start % SPAN == 0 for span in spans[1:])  # spans begin at the batches that the index has
    for _ in range(20):
        start, end = sorted(chance.choices(range(BATCHES * SPAN + 1), k=2))
        assert same(log, start, end).num_rows == end - start


def test_two_threads_read(wide: LogBed, monkeypatch: pytest.MonkeyPatch) -> None:
    wide.write_segment(0, batches(wide))
    log, meeting, readers = wide.open(clean=False), threading.Barrier(2, timeout=30), set[int]()
    results = HelperThreads.results

    def met(helpers: HelperThreads, items: list[range], work: Callable[[range], object], threads: int) -> list[object]:
        def meets(item: range) -> object:
            if threading.get_ident() not in readers:
                readers.add(threading.get_ident())
                meeting.wait()
            return work(item)

        return results(helpers, items, meets, threads)

    monkeypatch.setattr(HelperThreads, "results", met)
    same(log)
    assert len(readers) == 2


def test_pieces_reach_over_segments(wide: LogBed, pieces: list[list[range]]) -> None:
    encoded_batches = batches(wide)
    wide.write_segment(0, encoded_batches[:30])
    wide.write_segment(30 * SPAN, encoded_batches[30:50])
    wide.write_segment(50 * SPAN, encoded_batches[50:])
    log = wide.open(clean=False)
    assert same(log).num_rows == BATCHES * SPAN
    assert len(pieces[0]) > 2
    assert same(log, 17, 41 * SPAN + 2).num_rows == 41 * SPAN + 2 - 17


def test_a_short_range_is_read_by_the_caller_alone(wide: LogBed, pieces: list[list[range]]) -> None:
    wide.limits = Limits(arrow_threads=2)
    wide.write_segment(0, batches(wide))
    same(wide.open(clean=False))
    assert pieces == [[]]


def test_a_range_in_the_tier_is_read_by_the_caller_alone(wide: LogBed) -> None:
    """A reader of the tier has its own read-ahead."""

    class Far(LogView):
        def readable_from(self, offset: int) -> Iterator[ReadableSegment]:
            if offset < 10 * SPAN:
                yield cast("ReadableSegment", SimpleNamespace(base_offset=0, end_offset=10 * SPAN))
            yield from super().readable_from(max(offset, 10 * SPAN))

    wide.write_segment(0, batches(wide))
    log = wide.open(clean=False)
    for start, is_cut in ((0, False), (10 * SPAN, True)):
        plan = ReadPlan(Far(*log.view()), range(start, BATCHES * SPAN), (), meets_damage=False)
        assert bool(parallel_table.pieces_of(plan, log.components, 2)) is is_cut


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_more_threads_than_pieces_create_no_further_pieces(
    wide: LogBed, pieces: list[list[range]], threads: int
) -> None:
    wide.limits = Limits(read_bytes=READ_BYTES, arrow_threads=threads)
    wide.write_segment(0, batches(wide))
    log = wide.open(clean=False)
    same(log)
    min_pieces = -(-log.view().segments[0].size_bytes // (3 * READ_BYTES))
    assert min_pieces <= len(pieces[0]) < min_pieces + min(threads, min_pieces)


def test_small_segments_share_a_piece(wide: LogBed, pieces: list[list[range]]) -> None:
    for number, batch in enumerate(batches(wide)):
        wide.write_segment(number * SPAN, [batch])
    log = wide.open(clean=False)
    assert same(log).num_rows == BATCHES * SPAN
    assert 2 < len(pieces[0]) < BATCHES // 3


def test_one_thread_cuts_nothing(wide: LogBed, pieces: list[list[range]]) -> None:
    wide.limits = Limits(read_bytes=READ_BYTES, arrow_threads=1)
    wide.write_segment(0, batches(wide))
    same(wide.open(clean=False))
    assert pieces == []


@pytest.mark.parametrize("isolation", ["log_end", "read_uncommitted", "read_committed"])
def test_aborted_transactions_that_reach_over_pieces(wide: LogBed, pieces: list[list[range]], isolation: str) -> None:
    data, offset = list[bytes](), 0
    for turn in range(12):
        for producer in (1, 2, 1, 2):
            data.append(
                wide.batch(
                    offset,
                    records(3, start=offset, value_bytes=50),
                    producer=(producer, 0, -1),
                    transactional=True,
                )
            )
            offset += 3
        data.append(wide.marker(offset, 1, ControlType.ABORT if turn % 2 else ControlType.COMMIT))
        data.append(wide.marker(offset + 1, 2, ControlType.COMMIT))
        offset += 2
    wide.write_segment(0, data)
    log = wide.open(clean=False)
    table = same(log, 0, None, isolation)
    assert len(pieces[0]) > 2
    assert table.num_rows == 12 * 12 - (6 * 6 if isolation == "read_committed" else 0)
    assert table.column("offset").to_pylist() == [record.offset for record in log.records(0, None, isolation)]


@pytest.mark.parametrize("lie", [b"", b"\xff", b"\x00\x00\x00\x07"])
def test_a_wrong_index_costs_only_time(wide: LogBed, lie: bytes) -> None:
    wide.write_segment(0, batches(wide))
    wide.open(clean=False)
    wide.close()
    index = wide.path(0).with_suffix(".index")
    entries = bytearray(index.read_bytes())
    if lie:
        entries[: len(entries) // 2] = (lie * len(entries))[: len(entries) // 2]
    index.write_bytes(entries if lie else b"")
    reader = wide.open_reader()
    assert same(reader).column("offset").to_pylist() == list(range(BATCHES * SPAN))


def test_of_two_places_that_are_wrong_the_first_is_reported(wide: LogBed, pieces: list[list[range]]) -> None:
    encoded_batches = batches(wide)
    wide.write_segment(0, encoded_batches)
    log = wide.open(clean=False)
    log.roll()
    wide.close()
    damaged, places = bytearray(wide.path(0).read_bytes()), [sum(map(len, encoded_batches[:n])) for n in (35, 58)]
    for place in places:
        damaged[place + 70] ^= 1
    wide.path(0).write_bytes(damaged)
    reader = wide.open_reader()
    for _ in range(5):
        with pytest.raises(CorruptBatchError) as caught:
            reader.to_arrow()
        assert (caught.value.file, caught.value.position) == (str(wide.path(0)), places[0])
    assert len(pieces[0]) > 2
    assert same(reader, 0, 35 * SPAN).num_rows == 35 * SPAN


def test_damage_at_the_end_is_raised_when_a_reader_reaches_it(wide: LogBed, pieces: list[list[range]]) -> None:
    wide.write_segment(0, batches(wide))
    log, damage = wide.open(clean=False), CorruptBatchError("cut off", "f", 9)
    view = log.view()._replace(damage=damage)
    for end in (None, BATCHES * SPAN + 1):
        with pytest.raises(CorruptBatchError) as caught:
            parallel_table.read_table(lambda: view, log.components, 0, end, "log_end", 0)
        assert caught.value is damage
    assert len(pieces[-1]) > 2
    assert (
        parallel_table.read_table(lambda: view, log.components, 0, BATCHES * SPAN, "log_end", 0).num_rows
        == BATCHES * SPAN
    )


@pytest.mark.parametrize("offset", [0, 3 * SPAN, BATCHES * SPAN + 7])
def test_a_batch_with_a_wrong_offset_is_refused_wherever_pieces_end(wide: LogBed, offset: int) -> None:
    """No CRC covers the offset. One thread refuses such a log, and several threads must refuse it too."""
    encoded_batches = batches(wide)
    wide.write_segment(0, encoded_batches)
    log = wide.open(clean=False)
    log.roll()
    wide.close()
    data = wide.path(0).read_bytes()
    for number in range(20, 40):
        damaged, place = bytearray(data), sum(map(len, encoded_batches[:number]))
        BASE_OFFSET.pack_into(damaged, place, offset)
        wide.path(0).write_bytes(damaged)
        reader = wide.open_reader()
        with pytest.raises(CorruptBatchError):
            alone(reader, 0, None, "read_uncommitted")
        with pytest.raises(CorruptBatchError):
            reader.to_arrow()


def test_records_that_do_not_fit_are_reported_with_their_place(wide: LogBed) -> None:
    encoded_batches = batches(wide)
    damaged = bytearray(encoded_batches[41])
    damaged[61] = 0x7F
    seal(damaged)
    encoded_batches[41] = bytes(damaged)
    wide.write_segment(0, encoded_batches)
    with pytest.raises(CorruptBatchError) as caught:
        wide.open(clean=False).to_arrow()
    assert (caught.value.file, caught.value.position) == (str(wide.path(0)), sum(map(len, encoded_batches[:41])))
