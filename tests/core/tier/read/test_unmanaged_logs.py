"""The segments of a tier that belong to a log's leader epochs.

The examples are from Kafka's remote log manager and its epoch state.
"""

from __future__ import annotations

from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.read.unmanaged_logs import EpochIndex, drop_empty_epochs


def epochs(**starts: int) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(int(name[1:]), start) for name, start in starts.items())


def segment(base: int, last: int, **starts: int) -> StoredSegment:
    info = SegmentInfo(LOG, TOPIC_ID, base, last + 1, 10, 0, 0, epochs(**starts))
    slices = {FileKind.LOG: ObjectSlice(f"{base}-{last}-{sorted(starts)}", 0, 10)}
    return StoredSegment(info, "single@1", slices, "0" * 64)


X = segment(0, 60, e3=0, e4=40)
Y = segment(20, 130, e3=20, e4=40, e6=100)
L = epochs(e3=0, e4=40, e6=100)


def test_epochs_without_records_are_left_out() -> None:
    assert drop_empty_epochs(epochs(e1=0, e2=10, e3=10, e5=10, e6=20)) == epochs(e1=0, e5=10, e6=20)


def test_a_later_upload_that_covers_earlier_ones_takes_their_place() -> None:
    first, second = segment(0, 100, e0=0), segment(0, 200, e0=0)
    index = EpochIndex([first, second])
    assert index.lookup(0, 50) is second
    assert index.lookup(0, 200) is second
    assert index.lookup(0, 201) is None
    assert index.lookup(1, 50) is None


def test_an_upload_that_covers_the_end_of_another_does_not_hide_what_only_that_has() -> None:
    inner_segment, outer_segment = segment(10, 90, e0=10), segment(5, 100, e0=5)
    assert EpochIndex([inner_segment, outer_segment]).lookup(0, 95) is outer_segment
    assert EpochIndex([inner_segment, outer_segment]).lookup(0, 4) is None


def test_the_same_offset_is_another_segment_in_another_epoch() -> None:
    old, new = segment(0, 99, e0=0), segment(50, 149, e0=50, e1=60)
    index = EpochIndex([old, new])
    assert index.lookup(0, 40) is old
    assert index.lookup(0, 80) is None  # according to the later upload, epoch 0 ended at 60
    assert index.lookup(1, 80) is new


def test_a_history_is_read_from_the_segments_of_its_own_epochs() -> None:
    """A fenced leader uploaded [50, 100) of epoch 1. The log continued with epoch 2 from offset 50."""
    common_segment, fenced_segment, current_segment = (
        segment(0, 49, e0=0),
        segment(50, 99, e1=50),
        segment(50, 149, e2=50),
    )
    index = EpochIndex([common_segment, fenced_segment, current_segment])
    assert index.select_segments(epochs(e0=0, e2=50), 150) == (common_segment, current_segment)
    assert index.select_segments(epochs(e0=0, e1=50), 100) == (common_segment, fenced_segment)
    assert index.select_segments(epochs(e0=0, e2=50), 50) == (common_segment,)
    assert index.select_segments((), 100) == ()


def test_overlaps_and_gaps_in_a_history() -> None:
    assert EpochIndex([X, Y]).select_segments(L, 131) == (X, Y)
    early, late = segment(0, 9, e0=0), segment(20, 29, e0=20)
    assert EpochIndex([early, late]).select_segments(epochs(e0=0), 30) == (early, late)
