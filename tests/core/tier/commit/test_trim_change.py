from __future__ import annotations

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, StorageError, UnknownTopicError
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.takeover.take_over import has_log
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from tier_bed import TierBed, made_segments, offload


def filled(bed: TierBed, *bounds: int, epoch: int = 0) -> TierLog:
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, *bounds, epoch=epoch)
    return log


@pytest.mark.parametrize(
    ("log_start", "left"),
    [(1, [0, 10, 20]), (9, [0, 10, 20]), (10, [10, 20]), (20, [20]), (29, [20]), (30, []), (50, [])],
)
def test_segments_that_end_at_or_below_the_new_log_start_are_deleted(log_start: int, left: list[int]) -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20, 30)
    keys_before = bed.bucket.keys()
    report = log.expire(log_start, leader_epoch=0, reason="retention.ms=5 breached")
    assert report.log_start == log_start
    deleted_infos = [source.info for source in made_segments(0, 10, 20, 30) if source.info.base_offset not in left]
    assert (report.segments, report.size_bytes) == (len(deleted_infos), sum(info.size_bytes for info in deleted_infos))
    view = bed.open(read_only=True).log(LOG, TOPIC_ID).view()
    assert [segment.base_offset for segment in view.segments] == left
    assert (view.log_start, view.version) == (log_start, 4)
    assert set(keys_before) <= set(bed.bucket.keys()), "objects stay for readers of the older root"
    root = log.root
    assert root is not None
    assert (root.change, root.reason) == ("expire", "retention.ms=5 breached")


def test_a_log_start_that_is_not_above_the_committed_one_commits_nothing() -> None:
    log = filled(TierBed(), 0, 10, 20)
    log.expire(15, leader_epoch=0, reason="a test")
    for log_start in (15, 3):
        report = log.expire(log_start, leader_epoch=0, reason="a test")
        assert (report.log_start, report.segments, log.view().version) == (15, 0, 3)


def test_a_log_without_a_root_has_nothing_to_expire() -> None:
    bed = TierBed()
    report = bed.open().log(LOG, TOPIC_ID).expire(5, leader_epoch=0, reason="a test")
    assert (report.log_start, report.segments) == (0, 0)


def test_no_later_change_lists_a_log_again_that_left_the_tier() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20)
    log.clear(20, leader_epoch=0, reason="a test")
    log.expire(30, leader_epoch=0, reason="a test")
    TierPublisher(log, 1, TopicConfig()).claim()
    log.claim("a test")
    log.cancel_pending_commits(leader_epoch=1)
    with pytest.raises(StorageError, match="is not offloaded"):
        offload(log, 20, 30, epoch=1, log_start=20)
    assert not has_log(bed.open(read_only=True).log(LOG, TOPIC_ID))


def test_offloading_continues_where_everything_expired() -> None:
    log = filled(TierBed(), 0, 10, 20)
    log.expire(20, leader_epoch=0, reason="a test")
    assert (len(log.view().segments), log.view().end_offset) == (0, 20)
    with pytest.raises(StorageError, match="gap"):
        offload(log, 21, 30)
    offload(log, 20, 30, log_start=20)
    assert (log.view().start_offset, log.view().end_offset) == (20, 30)


def test_expiry_is_decided_again_on_what_another_writer_left() -> None:
    bed = TierBed()
    old = filled(bed, 0, 10, 20, epoch=1)
    new = bed.open().log(LOG, TOPIC_ID)
    new.view()
    offload(old, 20, 30, epoch=1)
    report = new.expire(20, leader_epoch=2, reason="a test")
    assert report.segments == 2
    assert [segment.base_offset for segment in new.view().segments] == [20]
    with pytest.raises(FencedEpochError):
        old.expire(30, leader_epoch=1, reason="a test")


def test_nothing_is_committed_after_a_deletion() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20)
    log.delete(leader_epoch=0, reason="the topic was deleted")
    log.expire(50, leader_epoch=0, reason="a test")
    log.clear(50, leader_epoch=0, reason="a test")
    log.cancel_pending_commits(leader_epoch=0)
    with pytest.raises(UnknownTopicError):
        log.claim("attached from the tier")
    with pytest.raises(UnknownTopicError):
        offload(log, 20, 30)
    assert bed.open().log(LOG, TOPIC_ID).view().is_deleted
