"""Rules for the files of every log, checked with code that is independent of the library."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import InvalidProducerEpochError, InvalidRecordError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.offsets import LogOffsets, Watermark
from stratalog.model.records import Record
from stratalog.registry.registry import Registry

START_MS = 1_700_000_000_000
ISOLATIONS = ("read_uncommitted", "read_committed")
SEGMENT_BYTES = 1_000


class Batch(NamedTuple):
    """Fields of a batch in a file."""

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int


def batches_in(path: Path) -> list[Batch]:
    """Return the batches of a ``.log`` file, decoded by hand."""
    data, position, batches = path.read_bytes(), 0, list[Batch]()
    while position < len(data):
        base, size, epoch = struct.unpack_from(">qii", data, position)
        (delta,), (largest,) = (
            struct.unpack_from(">i", data, position + 23),
            struct.unpack_from(">q", data, position + 35),
        )
        batches.append(Batch(position, base, base + delta, epoch, largest))
        position += 12 + size
    return batches


def fill(bed: LogBed, log: Log, seed: int) -> dict[int, int]:
    """Append batches of several producers with unordered timestamps, aborted transactions and leader epochs.

    Return the leader epoch of each batch by its base offset.
    """
    chance = random.Random(seed)  # noqa: S311 - a seed repeats it
    epochs, sequences, open_producers = dict[int, int](), dict.fromkeys((5, 6), 0), set[int]()
    for _ in range(120):
        epochs[log.offsets().log_end] = log.leader_epoch
        draw, producer = chance.random(), chance.choice((5, 6))
        count = chance.randrange(1, 4)
        times = [START_MS + chance.randrange(5_000) for _ in range(count)]
        batch_records = [Record(timestamp_ms=time, value=chance.randbytes(chance.randrange(60))) for time in times]
        if draw < 0.05:
            log.lead(log.leader_epoch + 1)
            del epochs[max(epochs)]
        elif draw < 0.25 and producer in open_producers:
            log.end_transaction(producer, 0, commit=chance.random() < 0.5, coordinator_epoch=0)
            open_producers.discard(producer)
        elif draw < 0.6:
            producer_fields = (producer, 0, sequences[producer])
            log.append_as_leader(bed.batch(0, batch_records, producer=producer_fields, transactional=True))
            sequences[producer] += count
            open_producers.add(producer)
        else:
            log.append(batch_records)
    for producer in sorted(open_producers):
        epochs[log.offsets().log_end] = log.leader_epoch
        log.end_transaction(producer, 0, commit=False, coordinator_epoch=0)
    return epochs


@pytest.fixture(params=[0, 150], ids=["every batch", "some batches"])
def filled(
    request: pytest.FixtureRequest, tmp_path: Path, installed: Registry
) -> Iterator[tuple[LogBed, dict[int, int]]]:
    """Yield a filled log that was closed cleanly, and the leader epochs of its batches."""
    topic = TopicConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=request.param)
    with LogBed(tmp_path / "data", installed, topic=topic) as bed:
        log = bed.open()
        epochs = fill(bed, log, request.param)
        log.close()
        yield bed, epochs


def bases(bed: LogBed) -> list[int]:
    return [int(name[:20]) for name in bed.names() if name.endswith(".log")]


def test_segments_contain_their_own_offsets_and_at_most_the_allowed_bytes(
    filled: tuple[LogBed, dict[int, int]],
) -> None:
    bed, epochs = filled
    assert len(bases(bed)) > 5
    before = -1
    for base, following in pairwise([*bases(bed), 1 << 62]):
        batches = batches_in(bed.path(base))
        assert bed.path(base).stat().st_size <= SEGMENT_BYTES
        for batch in batches:
            assert before < batch.base_offset <= batch.last_offset < following
            assert base <= batch.base_offset
            before = batch.last_offset
    everything = [batch for base in bases(bed) for batch in batches_in(bed.path(base))]
    assert {batch.base_offset: batch.leader_epoch for batch in everything} == epochs
    assert [batch.leader_epoch for batch in everything] == sorted(batch.leader_epoch for batch in everything)


def test_index_entries_match_the_batches(filled: tuple[LogBed, dict[int, int]]) -> None:
    """An entry of an offset index has the position of a batch; its offset is in that batch or a later one.

    An entry of a time index has a timestamp that is at least as large as all before it.
    """
    bed, _ = filled
    entries = 0
    for number, base in enumerate(bases(bed)):
        batches = batches_in(bed.path(base))
        starts = {batch.position for batch in batches}
        for relative, position in struct.iter_unpack(">ii", bed.path(base, ".index").read_bytes()):
            assert position in starts
            assert any(batch.last_offset >= base + relative for batch in batches if batch.position >= position)
            assert all(batch.base_offset <= base + relative for batch in batches if batch.position <= position)
            entries += 1
        times = list(struct.iter_unpack(">qi", bed.path(base, ".timeindex").read_bytes()))
        for time, relative in times:
            assert all(batch.max_timestamp_ms <= time for batch in batches if batch.last_offset <= base + relative)
        if batches and number < len(bases(bed)) - 1:
            assert times[-1][0] == max(batch.max_timestamp_ms for batch in batches)
    assert entries > 20


def answers(log: LogReader) -> list[object]:
    """Return a log's results of reads, searches by time and fetches, for each isolation level."""
    results: list[object] = []
    for isolation in ISOLATIONS:
        results.append([(record.offset, record.value) for record in log.records(isolation=isolation)])
        results.append([log.offset_for_timestamp(START_MS + time, isolation) for time in range(0, 5_000, 50)])
        for offset in range(log.offsets().log_end):
            with log.fetch(offset, 400, isolation) as fetched:
                results.append((fetched.read(), fetched.next_offset, fetched.aborted_transactions))
    return results


def test_without_index_files_every_answer_is_the_same(filled: tuple[LogBed, dict[int, int]]) -> None:
    bed, _ = filled
    expected = answers(bed.open_reader())
    assert any(isinstance(answer, tuple) and answer[2] for answer in expected), "some transactions were aborted"
    bed.close()
    for path in bed.folder.iterdir():
        if path.suffix in {".index", ".timeindex", ".txnindex"}:
            path.unlink()
    assert answers(bed.open_reader()) == expected
    assert answers(bed.open()) == expected


def test_producers_are_the_same_from_snapshots_and_from_all_batches(filled: tuple[LogBed, dict[int, int]]) -> None:
    bed, _ = filled
    contents = bed.contents()
    producers = []
    for newest in (1 << 62, bases(bed)[3], -1):
        bed.write(
            {
                name: data
                for name, data in contents.items()
                if not name.endswith(".snapshot") or int(name[:20]) <= newest
            }
        )
        producers.append(bed.open(clean=False).producers())
        bed.crash()
    assert producers[0] == producers[1] == producers[2]
    assert {entry.producer_id for entry in producers[0]} == {5, 6}


def test_a_log_with_gaps_returns_the_next_batch(tmp_path: Path, installed: Registry) -> None:
    with LogBed(tmp_path / "data", installed, topic=TopicConfig(segment_bytes=200, index_interval_bytes=0)) as bed:
        log = bed.open()
        log.follow(0)
        ranges = [(3, 4), (5, 5), (9, 11), (40, 41), (42, 42), (90, 92)]
        for first, last in ranges:
            log.append_as_follower(bed.batch(first, records(last - first + 1, start=first)), last + 1, 0)
        assert len(log.segments()) > 2
        for offset in range(93):
            expected = next(first for first, last in ranges if last >= offset)
            with log.fetch(offset) as fetched:
                assert struct.unpack_from(">q", fetched.read())[0] == expected
            assert next(iter(log.records(max(offset, 1)))).offset == max(offset, expected)


def ordered(offsets: LogOffsets) -> bool:
    bounds = (0, offsets.log_start, offsets.last_stable, offsets.high_watermark, offsets.log_end)
    local = (offsets.log_start, offsets.local_log_start, offsets.log_end)
    return list(bounds) == sorted(bounds) and list(local) == sorted(local) and offsets.recovery_point <= offsets.log_end


@pytest.fixture
def led(tmp_path: Path, installed: Registry) -> Iterator[tuple[LogBed, Log]]:
    """Yield a leader with open and ended transactions, whose high watermark moves only on request."""
    topic = TopicConfig(segment_bytes=400, file_delete_delay_ms=0)
    with LogBed(tmp_path / "data", installed, topic=topic, watermark=Watermark.EXTERNAL) as bed:
        log = bed.open(high_watermark=0)
        for number in range(4):
            log.append(records(2, start=3 * number))
            log.append_as_leader(bed.batch(0, records(1), producer=(number, 0, 0), transactional=True))
        for number, kind in enumerate((ControlType.COMMIT, ControlType.ABORT)):
            log.end_transaction(number, 0, commit=kind is ControlType.COMMIT, coordinator_epoch=0)
        yield bed, log


def test_no_reader_gets_past_the_bound_of_its_isolation(led: tuple[LogBed, Log]) -> None:
    _, log = led
    end = log.offsets().log_end
    for watermark in range(end + 1):
        assert log.set_high_watermark(watermark) == watermark
        offsets = log.offsets()
        assert ordered(offsets)
        limits = {"log_end": end, "read_uncommitted": watermark, "read_committed": offsets.last_stable}
        for isolation, limit in limits.items():
            assert [record.offset for record in log.records(isolation=isolation) if record.offset >= limit] == []
            for offset in range(offsets.log_start, end + 1):
                with log.fetch(offset, 1 << 20, isolation) as fetched:
                    assert fetched.next_offset <= max(limit, offset)
                    assert offset < limit or not fetched.slices
    assert 0 < log.offsets().last_stable < end


def test_only_the_counter_of_replicas_moves_the_high_watermark(led: tuple[LogBed, Log]) -> None:
    """If too few replicas are in sync, the high watermark must not move, whatever the leader does."""
    bed, log = led
    log.set_high_watermark(3)
    steps: list[Callable[[], object]] = [
        lambda: log.append(records(2), "durable"),
        log.flush,
        log.roll,
        lambda: log.append_as_leader(bed.batch(0, records(1))),
        lambda: log.end_transaction(2, 0, commit=True, coordinator_epoch=0),
        lambda: log.lead(log.leader_epoch + 1),
        lambda: log.delete_records(-1),
        lambda: log.maintenance.evict(3),
        lambda: log.maintenance.configure(bed.topic, bed.components),
        lambda: log.set_high_watermark(2),
    ]
    for step in steps:
        step()
        assert log.offsets().high_watermark == 3
        assert ordered(log.offsets())
        with log.fetch(3, 1 << 20, "log_end") as fetched:
            assert fetched.slices, "a follower's fetch moves nothing either"
        assert log.offsets().high_watermark == 3
    assert log.set_high_watermark(1 << 40) == log.offsets().log_end


def test_a_fenced_writer_and_a_writer_without_the_key_write_nothing(tmp_path: Path, installed: Registry) -> None:
    topic = TopicConfig(cleanup_policy=("compact",))
    with LogBed(tmp_path / "data", installed, topic=topic) as bed:
        log = bed.open()
        log.append_as_leader(bed.batch(0, records(2), producer=(7, 3, 0)))
        size = bed.path(0).stat().st_size
        with pytest.raises(InvalidProducerEpochError):
            log.append_as_leader(bed.batch(0, records(1), producer=(7, 2, 2)))
        for codec in (None, "gzip"):
            with pytest.raises(InvalidRecordError):
                log.append_as_leader(
                    bed.batch(0, [*records(1), Record(timestamp_ms=START_MS, value=b"v")], codec=codec)
                )
        assert (log.offsets().log_end, bed.path(0).stat().st_size) == (2, size)
