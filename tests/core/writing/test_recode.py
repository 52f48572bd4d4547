"""Rewriting of a part of a tier by a task: the remaining records, and refused requests."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from stratalog import Record, RecordColumns, TopicPartition, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError, OffsetsOutOfOrderError, StorageError
from stratalog.model.batches import TimestampType
from stratalog.spi import Fields, RecordFilter, Verdict
from stratalog.writing import BulkWriter, ReplaceSpan, StagedSegment, WriteTarget

LOG = TopicPartition("orders", 0)


class EvenOffsetsFilter(RecordFilter):
    """Filter that keeps records at even offsets."""

    fields: ClassVar[Fields] = Fields.OFFSET

    def observe(self, records: RecordColumns) -> int:
        raise AssertionError(f"there is no first pass over {records.count} records")

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        for row, offset in enumerate(records.offset):
            verdicts[row] = Verdict.DROP if offset % 2 else Verdict.KEEP


@pytest.fixture
def target(tmp_path: Path) -> WriteTarget:
    (tmp_path / "tier").mkdir()
    uri = (tmp_path / "tier").as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", config={"segment.bytes": 1_500, "retention.ms": -1})
        for number in range(100):
            engine.log("orders", 0).append([Record(key=b"%d" % number, value=bytes(20), timestamp_ms=number)])
        engine.log("orders", 0).roll()
        engine.offload()
    return WriteTarget(uri, take_over=True)


def planned(writer: BulkWriter) -> ReplaceSpan:
    span = writer.span(LOG)
    assert span is not None
    assert len(span.borders) > 3
    return span


def offsets(target: WriteTarget) -> list[int]:
    with open_reader(target.location) as reader:
        return [row.offset for row in reader.log("orders", 0).records()]


def test_parts_of_several_tasks_take_the_place_of_the_whole(target: WriteTarget) -> None:
    with target.open() as driver:
        span = planned(driver)
        middle = span.borders[len(span.borders) // 2]
        staged_segments = list[StagedSegment]()
        for part in ((span.start, middle), (middle, span.end)):
            with target.open() as task:
                rewritten = task.rewrite(span, part, [EvenOffsetsFilter()], now_ms=0)
            assert rewritten.records_read == part[1] - part[0]
            staged_segments += rewritten.staged
        assert offsets(target) == list(range(100))  # not before the commit
        driver.replace(span, staged_segments, reason="a test", first_dirty_offset=span.end)
    assert offsets(target) == list(range(0, 100, 2))


def test_a_part_that_does_not_begin_and_end_with_segments_is_refused(target: WriteTarget) -> None:
    with target.open() as writer:
        span = planned(writer)
        for part in ((span.start + 1, span.end), (span.start, span.end + 1)):
            with pytest.raises(ConfigError, match="does not begin and end with segments"):
                writer.rewrite(span, part, [EvenOffsetsFilter()], now_ms=0)
            with pytest.raises(ConfigError, match="does not begin and end with segments"):
                writer.recode(span, part)


@pytest.mark.long
def test_a_span_is_compacted_as_the_cleaner_compacts(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    target = WriteTarget((tmp_path / "tier").as_uri(), take_over=True)
    kept_records: list[list[Record]] = []
    for number, start in enumerate((0, 100)):
        with open_engine(tmp_path / f"data-{number}", tier=target.location, attach=number > 0) as engine:
            if not number:
                engine.create_topic("orders", config={"segment.bytes": 1_500, "cleanup.policy": "compact"})
            log = engine.log("orders", 0)
            for offset in range(start, start + 100):
                value = None if offset % 7 == 3 else b"%d" % offset
                key = b"k%d" % (20 * number + offset % (30 + 20 * number))
                log.append([Record(key=key, value=value, timestamp_ms=offset)])
            log.roll()
            engine.offload()
            uncompacted_records = list(log.records())
        newest = {row.key: row for row in uncompacted_records}
        with target.open() as writer:
            span = planned(writer)
            rewritten = writer.compact(span, now_ms=1_000, memory_bytes=28 * (span.end - span.start) + 1_024)
            assert (rewritten.records_read, rewritten.records_kept) == (len(uncompacted_records), len(newest))
            assert rewritten.segments == len(span.borders) - 1
            writer.replace(span, rewritten.staged, reason="a test", first_dirty_offset=span.end)
        with open_reader(target.location) as reader:
            kept_records.append(list(reader.log("orders", 0).records()))
        assert kept_records[-1] == sorted(newest.values(), key=lambda row: row.offset)
    # the second round compacts the records that the first one kept, and later records
    assert [len(rows) for rows in kept_records] == [30, 70]


def test_a_log_with_another_policy_is_compacted_from_its_start(tmp_path: Path) -> None:
    """Rounds of the other policy have kept older records of a key."""
    (tmp_path / "tier").mkdir()
    target = WriteTarget((tmp_path / "tier").as_uri(), take_over=True)
    config = {"cleanup.policy": "ttl", "ttl.ms": 1 << 40, "min.cleanable.dirty.ratio": 0}
    with open_engine(tmp_path / "data", tier=target.location) as engine:
        engine.create_topic("orders", config=config)
        log = engine.log("orders", 0)
        for value in (b"old", b"new"):
            log.append([Record(key=b"k", value=value)])
            log.roll()
        engine.offload()
        assert [result.end for result in engine.run_cleaner()] == [2]
    with target.open() as writer:
        span = writer.span(LOG)
        assert span is not None
        rewritten = writer.compact(span, now_ms=1_000, memory_bytes=1 << 20)
        writer.replace(span, rewritten.staged, reason="a test", first_dirty_offset=span.end)
    with open_reader(target.location) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"new"]


def test_a_key_set_that_does_not_fit_is_not_compacted_in_part(tmp_path: Path, target: WriteTarget) -> None:
    objects_before = stored(tmp_path)
    with target.open() as writer:
        span = planned(writer)
        with pytest.raises(StorageError, match="need more than 1000 bytes, which were full at offset 36"):
            writer.compact(span, now_ms=0, memory_bytes=1_000)
        writer.compact(span, now_ms=0, memory_bytes=28 * 100 + 1_024)
        added_objects = len(stored(tmp_path) - objects_before)
    assert added_objects > 0
    assert offsets(target) == list(range(100))
    with WriteTarget(str(tmp_path / "data")).open() as writer, pytest.raises(ConfigError, match="only the engine"):
        writer.compact(span, now_ms=0, memory_bytes=1 << 20)


def test_only_segments_that_are_not_as_asked_are_recoded(tmp_path: Path, target: WriteTarget) -> None:
    """One commit replaces neighbouring segments. A second call writes nothing, and reads only to check the segments."""
    with target.open() as writer:
        whole_span = planned(writer)
        second, last = whole_span.borders[1:3], whole_span.borders[-2:]
        for start, end in (second, last):
            span = writer.span(LOG, start, end)
            assert span is not None
            recoded = writer.recode(span, (start, end), compression="zstd")
            assert recoded.segments == 1
            writer.replace(span, recoded.staged, reason="some are done")
        objects_of_first, versions = stored(tmp_path), len(list((tmp_path / "tier").rglob("manifest/*")))
        whole_span = planned(writer)
        recoded = writer.recode(whole_span, (whole_span.start, whole_span.end), compression="zstd")
        assert recoded.segments == len(recoded.staged) == len(whole_span.borders) - 3
        assert {segment.base_offset for segment in recoded.staged}.isdisjoint({second[0], last[0]})
        assert recoded.bytes_written == sum(segment.size_bytes for segment in recoded.staged) < recoded.bytes_read
        assert (
            writer.replace(whole_span, recoded.staged, reason="the others", keeps_others=True).segments
            == recoded.segments
        )
        assert len(list((tmp_path / "tier").rglob("manifest/*"))) == versions + 1
        objects_before = stored(tmp_path)
        assert len(objects_before - objects_of_first) == recoded.segments
        whole_span = planned(writer)
        for layout in (None, "single"):
            second_run = writer.recode(
                whole_span, (whole_span.start, whole_span.end), compression="zstd", layout=layout
            )
            assert (second_run.segments, second_run.staged, second_run.bytes_written) == (0, (), 0)
        with pytest.raises(OffsetsOutOfOrderError, match="whole segments"):
            writer.replace(whole_span, (), reason="nothing", keeps_others=True)
        assert stored(tmp_path) == objects_before
        chunked = writer.recode(whole_span, (whole_span.start, whole_span.end), layout="chunked")
        assert chunked.segments == len(whole_span.borders) - 1
    assert offsets(target) == list(range(100))


def stored(folder: Path) -> set[Path]:
    return set((folder / "tier").rglob("*.seg"))


def test_append_times_stay_append_times(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    uri = (tmp_path / "tier").as_uri()
    config = {"record.version": 1, "message.timestamp.type": "LogAppendTime", "retention.ms": -1}
    clock = ManualClock(1_000)
    with open_engine(tmp_path / "data", tier=uri, env=Env(clock=clock)) as engine:
        engine.create_topic("orders", config=config)
        for number in range(3):
            engine.log("orders", 0).append([Record(value=b"%d" % number), Record(value=b"x")])
            clock.advance_ms(5)
        engine.log("orders", 0).roll()
        engine.offload()
    with open_reader(uri) as reader:
        before = list(reader.log("orders", 0).records())
    with WriteTarget(uri, take_over=True).open() as writer:
        span = writer.span(LOG)
        assert span is not None
        recoded = writer.recode(span, (span.start, span.end))
        writer.replace(span, recoded.staged, reason="a test", keeps_others=True)
    with open_reader(uri) as reader:
        assert list(reader.log("orders", 0).records()) == before
    assert [(row.timestamp_ms, row.timestamp_type) for row in before[::2]] == [
        (time_ms, TimestampType.LOG_APPEND_TIME) for time_ms in (1_000, 1_005, 1_010)
    ]


def test_batches_that_cannot_be_recoded_do_not_make_it_begin_again(tmp_path: Path) -> None:
    """Markers, and batches without some of their records, keep their codec. A second run must change nothing."""
    (tmp_path / "tier").mkdir()
    uri = (tmp_path / "tier").as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", config={"segment.bytes": 1_500, "retention.ms": -1})
        with engine.producer(transactional_id="t") as producer:
            for number in range(30):
                producer.begin_transaction()
                for row in range(3):
                    producer.send("orders", key=b"%d" % (number + row), value=bytes(20))
                producer.flush()
                producer.abort_transaction() if number % 5 == 4 else producer.commit_transaction()
        engine.log("orders", 0).roll()
        engine.offload()
    target = WriteTarget(uri, take_over=True)
    with target.open() as writer:
        span = planned(writer)
        rewritten = writer.rewrite(span, (span.start, span.end), [EvenOffsetsFilter()], now_ms=0)
        writer.replace(span, rewritten.staged, reason="halves of batches")
        for expected in (True, False):
            span = planned(writer)
            rewritten = writer.recode(span, (span.start, span.end), compression="gzip")
            assert bool(rewritten.segments) is expected
            if rewritten.staged:
                writer.replace(span, rewritten.staged, reason="in gzip", keeps_others=True)


def test_a_plan_of_segments_that_are_gone_is_refused(target: WriteTarget) -> None:
    with target.open() as writer:
        old = planned(writer)
        rewritten = writer.rewrite(old, (old.start, old.end), [EvenOffsetsFilter()], now_ms=0)
        writer.replace(old, rewritten.staged, reason="a test")
        with pytest.raises(StorageError):
            writer.replace(old, rewritten.staged, reason="again")
    assert offsets(target) == list(range(0, 100, 2))


def test_segments_of_a_directory_are_its_engines_own(tmp_path: Path, target: WriteTarget) -> None:
    with target.open() as writer:
        span = planned(writer)
    with WriteTarget(str(tmp_path / "data")).open() as writer:
        with pytest.raises(ConfigError, match="only the engine"):
            writer.rewrite(span, (span.start, span.end), [EvenOffsetsFilter()], now_ms=0)
        with pytest.raises(ConfigError, match="only the engine"):
            writer.recode(span, (span.start, span.end))
