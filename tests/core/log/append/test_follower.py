from __future__ import annotations

from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    CorruptBatchError,
    NotLeaderOrFollowerError,
    OffsetsExhaustedError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from stratalog.log.log import Log
from stratalog.model.messages.control import ControlType
from stratalog.model.offsets import EpochEntry, Watermark
from stratalog.model.segment_info import AbortedTransaction

FAR = 1 << 32


@pytest.fixture
def follower(bed: LogBed) -> Log:
    bed.watermark = Watermark.EXTERNAL
    log = bed.open()
    log.follow(5)
    return log


def offsets_in(log: Log) -> list[int]:
    return [record.offset for record in log.records(isolation="log_end")]


def test_offsets_epochs_and_bounds_are_the_leaders(bed: LogBed, follower: Log) -> None:
    data = bed.batch(0, records(3), leader_epoch=1) + bed.batch(3, records(2), leader_epoch=4)
    offsets = follower.append_as_follower(data, 4, 2)
    assert (offsets.log_start, offsets.high_watermark, offsets.log_end) == (2, 4, 5)
    assert follower.view().epochs.entries == (EpochEntry(1, 2), EpochEntry(4, 3))
    assert follower.fetch(2, isolation="log_end").read() == data
    assert offsets == follower.offsets()


@pytest.mark.parametrize(("told", "expected"), [(0, 0), (2, 2), (3, 3), (99, 3), (-1, 0)])
def test_the_high_watermark_stays_inside_the_log(bed: LogBed, follower: Log, told: int, expected: int) -> None:
    follower.append_as_follower(bed.batch(0, records(3)), told, 0)
    assert follower.offsets().high_watermark == expected


def test_the_high_watermark_may_fall_the_log_start_never(bed: LogBed, follower: Log) -> None:
    follower.append_as_follower(bed.batch(0, records(5)), 4, 2)
    offsets = follower.append_as_follower(b"", 3, 1)
    assert (offsets.high_watermark, offsets.log_start) == (3, 2)
    assert follower.append_as_follower(b"", 3, 9).log_start == 3  # the log start does not exceed the high watermark
    assert follower.append_as_follower(b"", 1, 0).high_watermark == 3


def test_a_followers_offsets_end_where_a_leaders_do(bed: LogBed, follower: Log) -> None:
    """An offset has 63 bits. A batch that exceeds the largest offset is refused as a whole."""
    last = (1 << 63) - 2
    for data in (bed.batch(last + 1, records(1)), bed.batch(0, records(1)) + bed.batch(last, records(2))):
        with pytest.raises(OffsetsExhaustedError):
            follower.append_as_follower(data, 1, 0)
    assert follower.offsets().log_end == 0
    assert follower.append_as_follower(bed.batch(last, records(1)), 1, 0).log_end == last + 1


def test_gaps_stay(bed: LogBed, follower: Log) -> None:
    data = bed.batch(7, records(1)) + bed.batch(20, records(2))
    assert follower.append_as_follower(data, 30, 0).log_end == 22
    assert offsets_in(follower) == [7, 20, 21]
    follower.append_as_follower(bed.batch(40, records(1)), 30, 0)
    bed.watermark = Watermark.WRITTEN
    assert offsets_in(bed.open()) == [7, 20, 21, 40]


def test_a_first_batch_far_beyond_an_empty_log_begins_a_segment(bed: LogBed, follower: Log) -> None:
    follower.append_as_follower(bed.batch(FAR, records(2)), FAR + 2, FAR)
    assert follower.offsets().log_start == FAR
    # the empty first segment stays until retention deletes it
    assert [segment.base_offset for segment in follower.segments()] == [0, FAR]
    follower.append_as_follower(bed.batch(3 * FAR, records(2)), 3 * FAR, FAR)
    assert [(segment.base_offset, segment.end_offset) for segment in follower.segments()] == [
        (0, FAR),
        (FAR, 3 * FAR),
        (3 * FAR, 3 * FAR + 2),
    ]
    bed.crash()
    assert offsets_in(bed.open(clean=False)) == [FAR, FAR + 1, 3 * FAR, 3 * FAR + 1]


def test_one_fetch_may_span_more_than_a_segments_offsets(bed: LogBed, follower: Log) -> None:
    data = b"".join(bed.batch(offset, records(1)) for offset in (0, FAR, FAR + 1, 2 * FAR))
    follower.append_as_follower(data, 0, 0)
    assert offsets_in(follower) == [0, FAR, FAR + 1, 2 * FAR]
    assert [segment.base_offset for segment in follower.segments()] == [0, FAR, 2 * FAR]


def test_a_fetch_above_segment_bytes_is_split_and_a_larger_batch_taken(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_bytes=300)
    log = bed.open()
    log.follow(0)
    data = b"".join(bed.batch(index, records(1, value_bytes=50)) for index in range(6)) + bed.batch(
        6, records(1, value_bytes=1000)
    )
    log.append_as_follower(data, 7, 0)
    assert offsets_in(log) == list(range(7))
    assert [segment.base_offset for segment in log.segments()] == [0, 2, 4, 6]


def test_offsets_must_ascend(bed: LogBed, follower: Log) -> None:
    follower.append_as_follower(bed.batch(0, records(3)), 3, 0)
    for data in (
        bed.batch(3, records(2)) + bed.batch(4, records(1)),
        bed.batch(5, records(1)) + bed.batch(3, records(1)),
    ):
        with pytest.raises(OffsetsOutOfOrderError, match="do not follow"):
            follower.append_as_follower(data, 9, 0)
    for first in (0, 2):
        with pytest.raises(UnexpectedAppendOffsetError) as caught:
            follower.append_as_follower(bed.batch(first, records(2)), 9, 0)
        assert (caught.value.first_offset, caught.value.last_offset, caught.value.log_end) == (first, first + 1, 3)
    assert (follower.offsets().log_end, follower.offsets().high_watermark) == (3, 3)


def test_damage_is_refused_and_a_cut_off_end_left_out(bed: LogBed, follower: Log) -> None:
    first_batch, second_batch = bed.batch(0, records(2)), bytearray(bed.batch(2, records(2)))
    assert follower.append_as_follower(first_batch + second_batch[:-1], 9, 0).log_end == 2
    second_batch[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="append"):
        follower.append_as_follower(second_batch, 9, 0)
    with pytest.raises(CorruptBatchError):
        follower.append_as_follower(bytes(100), 9, 0)
    assert offsets_in(follower) == [0, 1]


def test_batches_of_a_later_epoch_are_left_to_their_leader(bed: LogBed, follower: Log) -> None:
    data = bed.batch(0, records(2), leader_epoch=5) + bed.batch(2, records(2), leader_epoch=6)
    assert follower.append_as_follower(data, 4, 0).log_end == 2
    follower.follow(6)
    assert follower.append_as_follower(bed.batch(2, records(2), leader_epoch=6), 4, 0).log_end == 4


def test_a_leader_takes_no_batches_of_another(bed: LogBed) -> None:
    with pytest.raises(NotLeaderOrFollowerError, match="is the leader of epoch 0"):
        bed.open().append_as_follower(b"", 0, 0)


def test_an_empty_log_that_ends_inside_a_batch_starts_over_there(bed: LogBed, follower: Log) -> None:
    """The leader's log start may be inside a batch."""
    follower.truncate_fully_and_start_at(5)
    offsets = follower.append_as_follower(bed.batch(3, records(4)), 7, 5)
    assert (offsets.log_start, offsets.log_end) == (5, 7)
    assert offsets_in(follower) == [5, 6]
    with pytest.raises(UnexpectedAppendOffsetError):
        follower.append_as_follower(bed.batch(6, records(4)), 7, 5)


def test_messages_without_epochs_make_them_unknown(bed: LogBed, follower: Log) -> None:
    follower.append_as_follower(bed.batch(0, records(1), leader_epoch=3), 1, 0)
    follower.append_as_follower(bed.batch(1, records(1), magic=1) + bed.batch(2, records(1), magic=0), 1, 0)
    assert follower.end_offset_for_epoch(3) == (-1, -1)
    assert offsets_in(follower) == [0, 1, 2]


def test_sequences_are_the_leaders_business_but_producers_are_known(bed: LogBed, follower: Log) -> None:
    for offset, sequence in ((0, 7), (2, 3), (4, 3)):
        batch = bed.batch(offset, records(2), producer=(9, 1, sequence))
        follower.append_as_follower(batch, 9, 0)
    old_epoch = bed.batch(6, records(1), producer=(9, 0, 0))
    assert follower.append_as_follower(old_epoch, 9, 0).log_end == 7
    assert follower.maintenance.has_producers


def test_markers_in_one_fetch_with_what_they_end(bed: LogBed, follower: Log) -> None:
    """Kafka's example: the transaction of P1 aborts at offset 4, and that of P2 commits at offset 6."""

    def data(offset: int, producer: int, sequence: int) -> bytes:
        return bed.batch(offset, records(1), producer=(producer, 0, sequence), transactional=True)

    fetched = b"".join(
        [
            bed.batch(0, records(1)),
            data(1, 1, 0),
            data(2, 2, 0),
            data(3, 1, 1),
            bed.marker(4, 1, ControlType.ABORT),
            data(5, 2, 1),
            bed.marker(6, 2, ControlType.COMMIT),
        ]
    )
    stable = {}
    for high_watermark in (7, 6, 5, 4):
        stable[high_watermark] = follower.append_as_follower(fetched, high_watermark, 0).last_stable
        follower.truncate_to(0)
    assert stable == {4: 1, 5: 2, 6: 2, 7: 7}
    follower.append_as_follower(fetched, 7, 0)
    assert [record.offset for record in follower.records(isolation="read_committed")] == [0, 2, 5]
    with follower.fetch(0, isolation="read_committed") as result:
        assert result.aborted_transactions == (AbortedTransaction(1, 1, 4, 2),)
    assert follower.open_transactions() == []


def test_durable_batches_are_below_the_recovery_point(bed: LogBed, follower: Log) -> None:
    assert follower.append_as_follower(bed.batch(0, records(2)), 2, 0).recovery_point == 0
    follower.append_as_follower(bed.batch(2, records(2)), 2, 0, durability="durable")
    assert follower.offsets().recovery_point == 4


def test_a_follower_becomes_byte_for_byte_what_its_leader_is(tmp_path: Path, bed: LogBed, follower: Log) -> None:
    with LogBed(tmp_path / "leader", bed.registry) as leader_bed:
        leader = leader_bed.open()
        for epoch in range(1, 4):
            leader.lead(epoch)
            for index in range(epoch):
                leader.append(records(epoch + index))
        position = 0
        while position < leader.offsets().log_end:
            with leader.fetch(position, 300, "log_end") as fetched:
                position = follower.append_as_follower(fetched.read(), 99, 0).log_end
        assert bed.path(0).read_bytes() == leader_bed.path(0).read_bytes()
        assert follower.view().epochs == leader.view().epochs
