"""A part of a tier written anew by a task: what stays, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.errors import ConfigError, StorageError
from stratalog.spi import Fields, RecordColumns, RecordFilter, Verdict
from stratalog.writing import BulkWriter, Span, StagedSegment, WriteTarget

LOG = TopicPartition("orders", 0)


class Even(RecordFilter):
    """Keeps records at even offsets."""

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


def planned(writer: BulkWriter) -> Span:
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
        staged = list[StagedSegment]()
        for part in ((span.start, middle), (middle, span.end)):
            with target.open() as task:
                made = task.rewrite(span, part, [Even()], now_ms=0)
            assert made.records_read == part[1] - part[0]
            staged += made.staged
        assert offsets(target) == list(range(100))  # not before the commit
        driver.replace(span, staged, reason="a test", first_dirty_offset=span.end)
    assert offsets(target) == list(range(0, 100, 2))


def test_a_part_that_is_none_of_the_span_is_refused(target: WriteTarget) -> None:
    with target.open() as writer:
        span = planned(writer)
        for part in ((span.start + 1, span.end), (span.start, span.end + 1)):
            with pytest.raises(ConfigError, match="does not begin and end with segments"):
                writer.rewrite(span, part, [Even()], now_ms=0)
            with pytest.raises(ConfigError, match="does not begin and end with segments"):
                writer.recode(span, part)


def test_a_plan_of_segments_that_are_gone_is_refused(target: WriteTarget) -> None:
    with target.open() as writer:
        old = planned(writer)
        made = writer.rewrite(old, (old.start, old.end), [Even()], now_ms=0)
        writer.replace(old, made.staged, reason="a test")
        with pytest.raises(StorageError):
            writer.replace(old, made.staged, reason="again")
    assert offsets(target) == list(range(0, 100, 2))


def test_segments_of_a_directory_are_its_engines_own(tmp_path: Path, target: WriteTarget) -> None:
    with target.open() as writer:
        span = planned(writer)
    with WriteTarget(str(tmp_path / "data")).open() as writer:
        with pytest.raises(ConfigError, match="its engine alone"):
            writer.rewrite(span, (span.start, span.end), [Even()], now_ms=0)
        with pytest.raises(ConfigError, match="its engine alone"):
            writer.recode(span, (span.start, span.end))
