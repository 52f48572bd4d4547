"""Another try of a read that met something gone or damaged: never more tries than there is reason for."""

from __future__ import annotations

from typing import cast

import pytest

from stratalog.errors import CorruptBatchError, SegmentGoneError
from stratalog.log.read.retry_read import Again
from stratalog.model.records import Record
from stratalog.segment.readable import ReadableSegment
from stratalog.testing.logs import LogBed

GONE = SegmentGoneError("the file is closed or gone", "a.log")
DAMAGED = CorruptBatchError("the CRC does not match", "a.log")


class TieredBytes:
    """As much of a segment in a tier as is asked of it here."""

    def __init__(self, label: str) -> None:
        self.label = label

    def forget(self) -> bool:
        return True


def tiered(label: str) -> ReadableSegment:
    return cast(ReadableSegment, TieredBytes(label))


def test_a_file_that_somebody_deleted_is_looked_for_no_second_time_however_often_the_log_grows(bed: LogBed) -> None:
    """Each append publishes another view: readers went round for as long as somebody wrote."""
    log = bed.open()
    log.append([Record(value=b"1")])
    log.roll()
    log.append([Record(value=b"2")])
    view = log.view()
    again = Again(log.view)
    log.append([Record(value=b"3")])
    log.roll()
    assert log.view() is not view
    with pytest.raises(SegmentGoneError):
        again.after(GONE, view, view.segments[0])


def test_what_retention_took_is_looked_for_in_the_newer_view(bed: LogBed) -> None:
    log = bed.open()
    log.append([Record(value=b"1")])
    log.roll()
    view = log.view()
    again = Again(log.view)
    log.raise_log_start(1)
    assert log.drop_local(1)
    newer = again.after(GONE, view, view.segments[0])
    assert newer is log.view()
    with pytest.raises(SegmentGoneError):
        again.after(GONE, newer, newer.segments[0])


def test_each_damaged_segment_of_a_tier_is_read_once_more_and_no_oftener(bed: LogBed) -> None:
    log = bed.open()
    view, again = log.view(), Again(log.view)
    for label in ("a", "b"):
        assert again.after(DAMAGED, view, tiered(label)) is view
    for label in ("a", "b"):
        with pytest.raises(CorruptBatchError):
            again.after(DAMAGED, view, tiered(label))
