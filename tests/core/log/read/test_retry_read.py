"""Retries of reads of deleted or damaged segments: each cause allows only a limited number of attempts."""

from __future__ import annotations

from typing import cast

from log_bed import LogBed
from stratalog.errors import CorruptBatchError, ObjectNotFoundError, SegmentGoneError
from stratalog.log.read.retry_read import ReadRetry
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.records import Record
from stratalog.segment.readable import ReadableSegment

GONE = SegmentGoneError("the file is closed or deleted", "a.log")


def damaged(position: int) -> CorruptBatchError:
    return CorruptBatchError("the CRC does not match", "a.log", position)


class TieredBytes:
    """Segment in a tier, with the attributes that these tests need."""

    def __init__(self, label: str) -> None:
        self.label = label

    def forget(self) -> bool:
        return True


def tiered(label: str) -> ReadableSegment:
    return cast(ReadableSegment, TieredBytes(label))


def test_a_file_that_another_process_deleted_is_searched_no_second_time_however_often_the_log_grows(
    bed: LogBed,
) -> None:
    """Each append publishes another view. Readers once retried as long as a writer appended."""
    log = bed.open()
    log.append([Record(value=b"1")])
    log.roll()
    log.append([Record(value=b"2")])
    view = log.view()
    retry = ReadRetry(log.view, view)
    log.append([Record(value=b"3")])
    log.roll()
    assert log.view() is not view
    assert not retry.should_retry(GONE, view.segments[0])
    assert retry.view is view


def test_a_segment_that_retention_deleted_is_searched_in_the_newer_view(bed: LogBed) -> None:
    log = bed.open()
    log.append([Record(value=b"1")])
    log.roll()
    view = log.view()
    retry = ReadRetry(log.view, view)
    log.maintenance.raise_log_start(1)
    assert log.maintenance.evict(1)
    assert retry.should_retry(GONE, view.segments[0])
    assert retry.view is log.view()
    assert not retry.should_retry(GONE, retry.view.segments[0])


def test_a_missing_object_is_searched_only_after_another_commit_to_the_tier(bed: LogBed) -> None:
    missing = ObjectNotFoundError("no such object", "a")
    view = bed.open().view()._replace(remote=RemoteView(version=1))
    newer = view._replace(remote=RemoteView(version=2))
    views = iter((view._replace(remote=RemoteView(version=1)), newer, newer))
    retry = ReadRetry(lambda: next(views), view)
    assert [retry.should_retry(missing, tiered("a")) for _ in range(3)] == [False, True, False]
    assert retry.view is newer


def test_damaged_bytes_of_a_tier_are_read_once_more_and_no_oftener(bed: LogBed) -> None:
    log = bed.open()
    view = log.view()
    retry = ReadRetry(log.view, view)
    for is_first in (True, False):
        allowed = [retry.should_retry(damaged(position), tiered(label)) for label in "ab" for position in (0, 100)]
        assert allowed == [is_first] * 4
    assert retry.view is view


def test_bytes_that_cannot_change_are_read_once(bed: LogBed) -> None:
    log = bed.open()
    log.append([Record(value=b"1")])
    view = log.view()
    assert not ReadRetry(log.view, view).should_retry(damaged(0), view.segments[0])
    assert not ReadRetry(log.view, view).should_retry(damaged(0), None)
