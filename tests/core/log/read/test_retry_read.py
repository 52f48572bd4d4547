"""Retries of reads of deleted or damaged segments: each cause allows only a limited number of attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import pyarrow as pa
import pytest

from log_bed import LogBed
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, ObjectNotFoundError, SegmentGoneError
from stratalog.log.log import Log
from stratalog.log.read.columns import read_arrow, read_columns
from stratalog.log.read.parallel_table import read_table
from stratalog.log.read.retry_read import ReadRetry, ViewSource
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.records import Fields, Record
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


# --- plans of reads --------------------------------------------------------------------------------------------------


def removed_during_the_read(bed: LogBed) -> tuple[Log, ViewSource]:
    """Return a log, and a source of its views. In the first view, the log has a segment that was removed since then."""
    log = bed.open()
    for value in (b"1", b"2", b"3"):
        log.append([Record(value=value)])
        log.roll()
    earlier_views = iter([log.view()])
    log.maintenance.raise_log_start(1)
    assert log.maintenance.evict(1)
    return log, lambda: next(earlier_views, None) or log.view()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_segment_that_is_removed_while_the_read_is_planned(bed: LogBed, isolation: str) -> None:
    """Reads of committed records once failed if a segment was removed before its transaction index was read."""
    log, views = removed_during_the_read(bed)
    columns = read_columns(views, log.components, 0, None, isolation, Fields.OFFSET)
    assert [offset for piece in columns for offset in piece.offset] == [1, 2]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("read", [read_arrow, read_table])
def test_a_segment_that_is_removed_while_an_arrow_read_is_planned(
    bed: LogBed, read: Callable[..., Iterable[pa.RecordBatch] | pa.Table], isolation: str
) -> None:
    log, views = removed_during_the_read(bed)
    result = read(views, log.components, 0, None, isolation, 0)
    table = result if isinstance(result, pa.Table) else pa.Table.from_batches(result)
    assert table.column("offset").to_pylist() == [1, 2]


def test_a_segment_that_is_removed_before_a_table_is_split(bed: LogBed) -> None:
    """The read needs the offset index of the removed segment to split the range."""
    bed.limits = Limits(read_bytes=1024, arrow_threads=2)
    bed.topic = TopicConfig(index_interval_bytes=0)
    log = bed.open()
    for _ in range(2):
        for _ in range(30):
            log.append([Record(value=bytes(300))])
        log.roll()
    earlier_views = iter([log.view()])
    log.maintenance.raise_log_start(30)
    assert log.maintenance.evict(30)
    table = read_table(lambda: next(earlier_views, None) or log.view(), log.components, 0, None, "read_uncommitted", 0)
    assert table.column("offset").to_pylist() == list(range(30, 60))
