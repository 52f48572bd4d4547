from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sim_objects import ObjectFault, SimObjectStore, scripted_faults
from stratalog.errors import (
    FencedEpochError,
    ReadOnlyError,
    StorageError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
    UnknownComponentError,
)
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.spi.layouts import ObjectSink, SegmentSource, StoredSegment
from stratalog.spi.providers import Section
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment, source_bytes
from stratalog.tier.store.object_keys import log_prefix, parse_segment_key
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upload.uploader import OffloadReport
from tier_bed import PairLayout, TierBed, made_segments, named_objects, stored_objects

PREFIX = log_prefix(LOG, TOPIC_ID)


def offload(
    log: TierLog, sources: Sequence[SegmentSource], *, epoch: int = 0, log_start: int = 0, high_watermark: int = 1_000
) -> OffloadReport:
    return log.offload(sources, layout="pair", leader_epoch=epoch, log_start=log_start, high_watermark=high_watermark)


def test_segments_are_in_the_tier_and_read_as_they_were() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    sources = made_segments(0, 10, 25, 30)
    report = offload(log, sources)
    assert [entry.info for entry in report.committed] == [source.info for source in sources]
    assert (report.skipped, report.size_bytes) == (0, sum(source.info.size_bytes for source in sources))
    reader = bed.open(read_only=True).log(LOG, TOPIC_ID).view()
    assert (reader.version, reader.start_offset, reader.end_offset, reader.high_watermark) == (3, 0, 30, 1_000)
    for source, segment in zip(sources, reader.segments, strict=True):
        assert segment.read(0, segment.size_bytes) == source_bytes(source.log)
    assert stored_objects(bed) == named_objects(log)
    keys = [parse_segment_key(PREFIX, key) for key in sorted(stored_objects(bed))]
    assert {(key.base_offset, key.leader_epoch) for key in keys if key} == {(0, 0), (10, 0), (25, 0)}


def test_a_second_time_uploads_nothing() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, made_segments(0, 10, 20))
    before = stored_objects(bed)
    report = offload(log, made_segments(0, 10, 20, 30))
    assert (len(report.committed), report.skipped, len(stored_objects(bed) - before)) == (1, 2, 2)
    assert offload(log, []) == OffloadReport()


def test_objects_come_before_the_root_that_names_them() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, made_segments(0, 10, 20))
    manifests, uploads = 0, set[str]()
    for key, _ in bed.bucket.history:
        if "/manifest/" in key:
            manifests += 1
        elif "/segments/" in key:
            uploads.add(key)
            assert len(uploads) <= 2 * (manifests + 1), "one segment at a time"
    assert manifests == 2
    assert uploads == named_objects(log)


def test_sources_are_taken_one_by_one() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)

    def opened_late() -> Iterator[SegmentSource]:
        for source in made_segments(0, 10, 20):
            assert log.view().end_offset == source.info.base_offset
            yield source

    log.offload(opened_late(), layout="pair", leader_epoch=0, log_start=0, high_watermark=20)
    assert log.view().end_offset == 20


@pytest.mark.parametrize(
    "fault",
    [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED],
    ids=lambda fault: fault.name,
)
def test_any_request_may_fail_and_a_second_call_continues(fault: ObjectFault) -> None:
    """The k-th request fails without retries. Committed segments stay, and a second call uploads the others."""
    for number in range(12):
        bed = TierBed()
        bed.config = replace(bed.config, store_retries=0)
        store = SimObjectStore(bed.bucket)
        log = bed.open(store).log(LOG, TOPIC_ID)
        store.faults = scripted_faults({store.next_number + number: fault})
        with contextlib.suppress(StoreTimeoutError, StoreThrottledError):
            offload(log, made_segments(0, 10, 20, 30))
        offload(log, made_segments(0, 10, 20, 30))
        view = bed.open(read_only=True).log(LOG, TOPIC_ID).view()
        assert (view.start_offset, view.end_offset, len(view.segments)) == (0, 30, 3)
        for segment, source in zip(view.segments, made_segments(0, 10, 20, 30), strict=True):
            assert segment.read(0, 1 << 20) == source_bytes(source.log)


def test_a_failed_upload_names_nothing_and_leaves_nothing() -> None:
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    # the second object of the first segment
    store.faults = scripted_faults({store.next_number + 2: ObjectFault.DENIED})
    with pytest.raises(StorePermissionError):
        offload(log, made_segments(0, 10))
    assert (stored_objects(bed), len(log.view().segments)) == (set(), 0)


def test_a_commit_without_an_answer_leaves_the_objects_alone() -> None:
    bed = TierBed()
    bed.config = replace(bed.config, store_retries=0)
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    store.faults = lambda request: ObjectFault.REPLY_LOST if request.kind in {"create", "read"} else ObjectFault.NONE
    with pytest.raises(StoreTimeoutError):
        offload(log, made_segments(0, 10))
    store.faults = lambda _: ObjectFault.NONE
    assert offload(log, made_segments(0, 10)).skipped == 1
    assert stored_objects(bed) == named_objects(log)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (made_segment(21, 30), "does not start at the end of the tier, 20"),
        (made_segment(15, 30), "does not start at the end of the tier, 20"),
        (made_segment(20, 1_001), "above the high watermark"),
    ],
    ids=["gap", "overlap", "undecided"],
)
def test_a_segment_that_does_not_join_is_refused_before_it_is_uploaded(source: SegmentSource, text: str) -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, made_segments(0, 10, 20))
    before = stored_objects(bed)
    with pytest.raises(StorageError, match=text):
        offload(log, [source])
    assert stored_objects(bed) == before


def test_the_first_segment_may_begin_anywhere_at_or_below_the_log_start() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    with pytest.raises(StorageError, match="leaves a gap after the log start 40"):
        offload(log, [made_segment(50, 60)], log_start=40)
    offload(log, [made_segment(30, 40), made_segment(35, 60)], log_start=40)
    view = log.view()
    assert (view.log_start, view.start_offset, view.end_offset) == (40, 35, 60)


def test_a_raised_log_start_travels_along() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, made_segments(0, 10, 20))
    offload(log, made_segments(20, 30), log_start=12)
    view = log.view()
    assert (view.log_start, view.start_offset, view.end_offset) == (12, 10, 30)
    offload(log, made_segments(30, 40), log_start=0)
    assert log.view().log_start == 12


def with_epochs(source: SegmentSource, *epochs: tuple[int, int]) -> SegmentSource:
    return replace(source, info=replace(source.info, leader_epochs=tuple(EpochEntry(*entry) for entry in epochs)))


def test_a_range_of_another_leader_is_not_treated_as_ours() -> None:
    """Two leaders wrote different records at offsets 5 to 9.

    If the upload were skipped, local retention would delete records that only this log has.
    """
    log = TierBed().open().log(LOG, TOPIC_ID)
    offload(log, [with_epochs(made_segment(0, 10), (1, 0), (2, 5))], epoch=2)
    with pytest.raises(StorageError, match="different records from offset 5: leader epoch 1 here, 2 in the tier"):
        offload(log, [with_epochs(made_segment(0, 10), (1, 0))], epoch=2)
    with pytest.raises(StorageError, match="different records from offset 7"):
        offload(log, [with_epochs(made_segment(0, 10), (1, 0), (2, 5), (3, 7))], epoch=3)


@pytest.mark.parametrize(
    "source",
    [
        with_epochs(made_segment(0, 10), (1, 0), (2, 5)),
        with_epochs(made_segment(0, 10), (2, 6)),
        with_epochs(made_segment(0, 10)),
        with_epochs(made_segment(6, 10), (2, 6)),
    ],
    ids=["the same", "older epochs forgotten", "no epochs", "rolled elsewhere"],
)
def test_a_range_of_the_same_lineage_is_skipped(source: SegmentSource) -> None:
    log = TierBed().open().log(LOG, TOPIC_ID)
    offload(log, [with_epochs(made_segment(0, 10), (1, 0), (2, 5))], epoch=2)
    assert offload(log, [source], epoch=2).skipped == 1


def test_a_new_epoch_is_claimed_before_anything_is_uploaded() -> None:
    bed = TierBed()
    old, new = bed.open().log(LOG, TOPIC_ID), bed.open().log(LOG, TOPIC_ID)
    offload(old, made_segments(0, 10), epoch=1)

    def watched() -> Iterator[SegmentSource]:
        yield made_segment(10, 20)
        before = stored_objects(bed)
        with pytest.raises(FencedEpochError):
            offload(old, made_segments(10, 20), epoch=1)
        assert stored_objects(bed) == before
        yield made_segment(20, 30)

    new.offload(watched(), layout="pair", leader_epoch=2, log_start=0, high_watermark=30)
    root = new.root
    assert root is not None
    assert (root.version, root.leader_epoch, root.end_offset) == (4, 2, 30)
    keys = [parse_segment_key(PREFIX, key) for key in named_objects(new)]
    assert {(key.base_offset, key.leader_epoch) for key in keys if key} == {(0, 1), (10, 2), (20, 2)}


def test_the_epoch_is_not_claimed_without_a_segment_to_move() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, made_segments(0, 10), epoch=1)
    offload(log, made_segments(0, 10), epoch=2)
    assert log.view().version == 1


class BuggyLayout(PairLayout):
    """Layout with a bug, which the argument ``bug`` names."""

    def __init__(self, bug: str) -> None:
        self.bug = bug

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        entry = super().write(source, sink, section)
        place = entry.slices[FileKind.LOG]
        entries_by_bug: dict[str, StoredSegment] = {
            "another segment": replace(entry, info=replace(entry.info, end_offset=99)),
            "no object": replace(entry, slices={}),
            "outside": replace(entry, slices={FileKind.LOG: replace(place, position=1)}),
            "elsewhere": replace(entry, slices={FileKind.LOG: ObjectSlice("other/key", 0, 1)}),
        }
        return entries_by_bug[self.bug]


@pytest.mark.parametrize("bug", ["another segment", "no object", "outside", "elsewhere"])
def test_a_layout_that_names_what_it_did_not_put_is_refused(bug: str) -> None:
    bed = TierBed(layout=BuggyLayout(bug))
    log = bed.open().log(LOG, TOPIC_ID)
    with pytest.raises(StorageError, match="tier layout 'pair' version 1"):
        offload(log, made_segments(0, 10))
    assert (stored_objects(bed), log.view().version) == (set(), 0)


class KeyCheckingLayout(PairLayout):
    """Layout that checks the keys of objects before and after it stores them."""

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        log_key = sink.key()
        assert sink.key() == log_key
        assert sink.key("idx") != log_key
        entry = super().write(source, sink, section)
        assert entry.slices[FileKind.LOG].key == log_key
        assert sink.key() != log_key
        return entry


def test_a_layout_knows_the_next_key() -> None:
    bed = TierBed(layout=KeyCheckingLayout())
    assert len(offload(bed.open().log(LOG, TOPIC_ID), made_segments(0, 10)).committed) == 1


def test_an_unknown_layout_is_named() -> None:
    log = TierBed().open().log(LOG, TOPIC_ID)
    with pytest.raises(UnknownComponentError, match="nosuch"):
        log.offload(made_segments(0, 10), layout="nosuch", leader_epoch=0, log_start=0, high_watermark=10)


def test_a_tier_opened_for_reading_is_not_written() -> None:
    bed = TierBed()
    log = bed.open(read_only=True).log(LOG, TOPIC_ID)
    with pytest.raises(ReadOnlyError):
        offload(log, made_segments(0, 10))
    with pytest.raises(ReadOnlyError):
        log.expire(5, leader_epoch=0, reason="a test")
    with pytest.raises(ReadOnlyError):
        log.collect()
    assert bed.bucket.history == []
