from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.log.read.time_lookup import TimeFences, largest_timestamp
from stratalog.model.offsets import TimestampOffset
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.segment.readable import ReadableSegment


def stamped(*stamps: int) -> list[Record]:
    return [Record(timestamp_ms=stamp, value=b"x") for stamp in stamps]


@pytest.mark.parametrize(
    ("stamp", "offset"),
    [(0, 0), (1000, 0), (1001, 1), (3000, 1), (3001, 4), (5000, 4), (5001, None)],
)
def test_the_first_record_that_is_not_older(bed: LogBed, stamp: int, offset: int | None) -> None:
    log = bed.open()
    log.append(stamped(1000, 3000, 2000))
    log.append(stamped(2500, 5000))
    assert log.offset_for_timestamp(stamp) == offset


def test_an_empty_log_has_no_answer(bed: LogBed) -> None:
    assert bed.open().offset_for_timestamp(0) is None


def test_the_timestamp_comes_with_its_offset(bed: LogBed) -> None:
    log = bed.open()
    log.append(stamped(1000, 3000))
    assert log.first_since(1001) == TimestampOffset(3000, 1)
    assert log.first_since(3001) is None


def test_the_largest_timestamp_may_be_in_any_segment(bed: LogBed) -> None:
    log = bed.open()
    assert log.largest_timestamp() is None
    log.append(stamped(1000, 9000, 9000))
    log.roll()
    log.append(stamped(2000))
    assert log.largest_timestamp() == TimestampOffset(9000, 1)
    log.append_as_leader(bed.batch(0, stamped(9500), producer=(7, 0, 0), transactional=True))
    assert log.largest_timestamp() == TimestampOffset(9500, 4)
    assert log.largest_timestamp("read_committed") is None


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_below_the_log_start_have_no_largest_timestamp(bed: LogBed, magic: int, codec: str | None) -> None:
    """Kafka also returns such a record, until its segment is deleted."""
    bed.topic = TopicConfig(record_version=magic)
    log = bed.open()
    log.append_as_leader(bed.batch(0, stamped(9000, 4000, 3000), magic=magic, codec=codec))
    log.append_as_leader(bed.batch(0, stamped(3500, 2000), magic=magic, codec=codec))
    for start, (stamp, offset) in enumerate([(9000, 0), (4000, 1), (3500, 3), (3500, 3)]):
        log.delete_records(start)
        assert log.largest_timestamp() == TimestampOffset(stamp, offset)
    log.roll()
    log.append(stamped(2500))
    assert log.delete_records(4) == 4
    assert log.largest_timestamp() == TimestampOffset(2500, 5)
    log.delete_records(6)
    assert log.largest_timestamp() is None


def test_a_segment_may_be_deleted_during_a_search_of_the_largest_timestamp(bed: LogBed) -> None:
    log = bed.open()
    log.append(stamped(9000))
    log.roll()
    log.append(stamped(2000))
    log = bed.open()
    views = [log.view()]
    log.maintenance.raise_log_start(1)
    log.maintenance.evict(1)
    result = largest_timestamp(lambda: views.pop() if views else log.view(), bed.components, "log_end", TimeFences())
    assert result == TimestampOffset(2000, 1)


def test_later_segments_are_tried(bed: LogBed) -> None:
    """The only match in the first segment is below the log start. In this case, Kafka returns no offset."""
    log = bed.open()
    log.append(stamped(9000, 10))
    log.roll()
    log.append(stamped(20, 9500))
    log.delete_records(1)
    assert log.offset_for_timestamp(9000) == 3
    assert log.offset_for_timestamp(5) == 1


def test_records_that_are_not_committed_are_no_answer(bed: LogBed) -> None:
    log = bed.open()
    log.append(stamped(1000))
    log.append_as_leader(bed.batch(0, stamped(2000), producer=(7, 0, 0), transactional=True))
    log.append(stamped(3000))
    assert log.offset_for_timestamp(1500) == 1
    assert log.offset_for_timestamp(1500, "read_committed") is None
    assert log.offset_for_timestamp(500, "read_committed") == 0


def test_messages_without_timestamps_are_passed_over(bed: LogBed) -> None:
    bed.write_segment(0, [bed.batch(0, stamped(-1, -1), magic=0), bed.batch(2, stamped(500), magic=1)])
    log = bed.open_reader(clean=False)
    assert (log.offset_for_timestamp(0), log.offset_for_timestamp(501)) == (2, None)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=8), st.integers(0, 8))
@pytest.mark.long
def test_the_answer_is_that_of_a_scan(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], log_start: int
) -> None:
    topic = TopicConfig(segment_bytes=200, index_interval_bytes=0)
    with LogBed(tmp_path_factory.mktemp("log"), Registry.load(), topic=topic) as bed:
        log = bed.open()
        for stamps in batches:
            log.append(stamped(*stamps))
        all_stamps = [stamp for stamps in batches for stamp in stamps]
        start = log.delete_records(min(log_start, len(all_stamps)))
        reader = bed.open_reader(clean=False)
        for stamp in range(32):
            expected = next((o for o, t in enumerate(all_stamps) if t >= stamp and o >= start), None)
            assert log.offset_for_timestamp(stamp) == expected
            assert reader.offset_for_timestamp(stamp) == expected


class Counted:
    """Closed segment that counts reads of its largest timestamp."""

    def __init__(self, stamp: int) -> None:
        self.stamp, self.asked = stamp, 0

    @property
    def max_timestamp_ms(self) -> int:
        self.asked += 1
        return self.stamp


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.lists(st.integers(0, 10), min_size=1, max_size=6))
def test_segments_are_read_once_and_only_up_to_the_end_of_a_search(stamps: list[int], wanted: list[int]) -> None:
    segments = tuple(Counted(stamp) for stamp in stamps)
    fences = TimeFences()
    for stamp in wanted:
        expected = next((index for index, segment_stamp in enumerate(stamps) if segment_stamp >= stamp), len(stamps))
        assert fences.first(cast("Sequence[ReadableSegment]", segments), len(stamps), stamp) == expected
    first_late = next(
        (index for index, segment_stamp in enumerate(stamps) if segment_stamp >= max(wanted)), len(stamps) - 1
    )
    assert [segment.asked for segment in segments] == [int(index <= first_late) for index in range(len(stamps))]


def test_fences_of_segments_that_went_are_forgotten() -> None:
    old, remaining = (Counted(9), Counted(1)), (Counted(2), Counted(5))
    fences = TimeFences()
    assert fences.first(cast("Sequence[ReadableSegment]", old), 2, 5) == 0
    assert fences.first(cast("Sequence[ReadableSegment]", remaining), 2, 5) == 1
    assert fences.first(cast("Sequence[ReadableSegment]", (*remaining, Counted(7))), 3, 6) == 2
