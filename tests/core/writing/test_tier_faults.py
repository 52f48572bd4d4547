"""Bulk writes to a tier whose store fails at any request, with concurrent writers.

Each round is written exactly once, or an error is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sim_objects import ObjectFault
from stratalog.errors import (
    FencedEpochError,
    ObjectNotFoundError,
    OffsetsOutOfOrderError,
    StorageError,
    StoreError,
    UnknownTopicError,
)
from stratalog.model.records import Record, RecordColumns
from stratalog.model.segment_info import FileKind
from stratalog.producers.snapshot import encode_snapshot
from stratalog.reading.tier_reader import BucketReader
from stratalog.registry.registry import Registry
from stratalog.testing.contracts.made_segments import made_segment
from stratalog.tier.commit.append_change import Appending, EndMovedError
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.root import MAX_MARKS, ChangeKind, WriteMark, add_mark, object_keys
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.tier.upkeep.collect import GRACE_MS
from stratalog.writing.staged import ReplaceSpan, Rewritten, StagedSegment
from stratalog.writing.tier_writer import TierWriter
from tier_writers import LOG, Bed, after

FAULTS = [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.THROTTLED, ObjectFault.DENIED]


@pytest.fixture
def tiers(installed: Registry) -> Bed:
    return Bed(installed)


def engines_segment(remote: TierLog, start: int, end: int, epoch: int) -> None:
    """Commit a segment as an engine would."""
    segment = made_segment(
        start,
        end,
        leader_epoch=epoch,
        topic_id=remote.topic_id,
        log=LOG,
        files={FileKind.SNAPSHOT: encode_snapshot([])},
    )
    remote.offload([segment], layout="single", leader_epoch=epoch, log_start=0, high_watermark=end)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("others", [False, True], ids=["as they are", "copied"])
@pytest.mark.long
def test_a_round_is_there_once_whichever_request_failed(tiers: Bed, fault: ObjectFault, others: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """After an error or a crash of the driver, the round is repeated with newly staged segments."""
    expected, failures = list[bytes]() if not others else [b"other"], 0
    for number in range(100):
        values = [b"%d %d" % (number, row) for row in range(3)]
        staged_segments = [*tiers.stage(values[:2]), *tiers.stage(values[2:])]
        if others and not number:
            tiers.append(tiers.stage([b"other"]))
        mark = WriteMark("query", number)
        is_committed = False
        with tiers.writer() as writer:
            after(number, fault)(tiers.store)
            before = tiers.store.counts.total()
            try:
                writer.append(LOG, staged_segments, mark)
                is_committed = tiers.store.counts.total() - before <= number
            except StoreError:
                failures += 1
        if not is_committed:
            tiers.append(tiers.stage(values), mark)
        expected += values
        assert tiers.values() == expected
        if is_committed:
            break
    assert failures >= 3
    assert number < 50


def test_a_root_that_arrives_late_is_not_published_twice(tiers: Bed) -> None:
    staged_segments, mark = tiers.stage([b"a", b"b"]), WriteMark("query", 0)
    with tiers.writer() as writer:
        tiers.store.faults = lambda request: ObjectFault.LATE if request.kind == "create" else ObjectFault.NONE
        with pytest.raises(StoreError):
            writer.append(LOG, staged_segments, mark)
    assert tiers.values() == []
    tiers.append(tiers.stage([b"a", b"b"]), mark)
    tiers.bucket.deliver()
    assert tiers.values() == [b"a", b"b"]
    tiers.append(tiers.stage([b"c"]), WriteMark("query", 1))
    assert tiers.values() == [b"a", b"b", b"c"]


def test_a_repeated_append_keeps_the_objects_that_older_roots_name(tiers: Bed) -> None:
    staged_segments, mark = tiers.stage([b"0"]), WriteMark("query", 0)
    tiers.append(staged_segments, mark)
    for number in range(1, 8):
        tiers.append(tiers.stage([b"%d" % number]))
    published_keys = set(tiers.segments())
    with tiers.writer() as writer:
        assert writer.merge_end(LOG, 3_000) is not None
        repeated_segments = tiers.stage([b"0"])
        assert writer.append(LOG, [*staged_segments, *repeated_segments], mark).duplicate
    assert published_keys < set(tiers.segments())
    assert len(tiers.segments()) == 8 + 1, "the segment that was staged again is gone"


@pytest.mark.parametrize("page_items", [2, 256])
def test_a_discard_keeps_the_objects_that_older_roots_name(
    tiers: Bed, monkeypatch: pytest.MonkeyPatch, page_items: int
) -> None:
    """An append is committed, but its driver gets a timeout. Another writer merges the segment before the discard."""
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", page_items)
    staged_segments = tiers.stage([b"0"])
    with tiers.writer() as writer:
        tiers.store.faults = lambda request: (
            ObjectFault.NOT_APPLIED
            if request.kind == "list" and request.key.endswith("/manifest/")
            else ObjectFault.NONE
        )
        with pytest.raises(StoreError):
            writer.append(LOG, staged_segments)
    for number in range(1, 8):
        tiers.append(tiers.stage([b"%d" % number]))
    published_keys = set(tiers.segments())
    with tiers.writer() as writer:
        span = writer.span(LOG)
        assert span is not None
        rewritten = writer.merge(span, [(span.start, span.end)])
        writer.replace(span, rewritten.staged, reason="a merge")
        writer.discard([*staged_segments, *tiers.stage([b"0"])])
    assert published_keys < set(tiers.segments())
    assert len(tiers.segments()) == 8 + 1, "the segment that was never published is gone"


def test_a_root_that_arrives_after_its_segments_were_discarded_is_refused(tiers: Bed) -> None:
    """A driver gets a timeout, and deletes its staged segments. The store carries out the request later."""
    staged_segments, mark = tiers.stage([b"a", b"b"]), WriteMark("query", 0)
    with tiers.writer() as writer:
        tiers.store.faults = lambda request: ObjectFault.LATE if request.kind == "create" else ObjectFault.NONE
        with pytest.raises(StoreError):
            writer.append(LOG, staged_segments, mark)
    with tiers.writer() as writer:
        writer.discard(staged_segments)
    tiers.bucket.deliver()
    assert tiers.values() == []
    assert tiers.segments() == []
    tiers.append(tiers.stage([b"a", b"b"]), mark)
    assert tiers.values() == [b"a", b"b"]


def test_objects_that_an_engine_took_over_are_not_cleaned_up(tiers: Bed) -> None:
    """A root of this job may still be in progress, so the uploaded objects stay in the bucket."""
    staged_segments = tiers.stage([b"a"])
    tiers.remote().claim("an engine attached")
    with tiers.writer() as writer:
        writer.discard(staged_segments)
    assert len(tiers.segments()) == 1
    assert tiers.values() == []


def test_a_discard_keeps_published_segments_that_a_merge_has_replaced(tiers: Bed) -> None:
    published_segments = list[StagedSegment]()
    for number in range(2):
        staged_segments = tiers.stage([b"%d" % number])
        tiers.append(staged_segments)
        published_segments += staged_segments
    with tiers.writer() as writer:
        span = writer.span(LOG)
        assert span is not None
        rewritten = writer.merge(span, [(0, 2)])
        writer.replace(span, rewritten.staged, reason="merged", keeps_others=True)
    segment_keys = tiers.segments()
    assert len(segment_keys) == 3
    with tiers.writer() as writer:
        writer.discard([*published_segments, *tiers.stage([b"never published"])])
    assert tiers.segments() == segment_keys, "earlier states of the tier have these segments"


def test_objects_that_were_staged_to_take_over_a_log_are_discarded(tiers: Bed) -> None:
    tiers.remote().claim("an engine attached")
    staged_segments = tiers.stage([b"a"], take_over=True)
    with tiers.writer() as writer:
        writer.discard(staged_segments)
    assert len(tiers.segments()) == 1, "this writer does not take over logs"
    with tiers.writer(take_over=True) as writer:
        writer.discard(staged_segments)
    assert tiers.segments() == []
    assert tiers.values() == []


def test_a_discard_does_not_fence_an_engine_that_began_after_the_records_were_staged(tiers: Bed) -> None:
    tiers.remote().claim("an engine attached")
    staged_segments = tiers.stage([b"a"], take_over=True)
    engine = tiers.remote()
    engine.claim("another engine attached")
    with tiers.writer(take_over=True) as writer:
        writer.discard(staged_segments)
    assert len(tiers.segments()) == 1
    engines_segment(engine, 0, 1, epoch=2)


def test_partitions_that_a_failed_creation_left_out_are_created_by_the_next_one(tiers: Bed) -> None:
    with tiers.writer() as writer:
        tiers.store.faults = lambda request: (
            ObjectFault.DENIED if request.kind == "create" and "/1/" in request.key else ObjectFault.NONE
        )
        with pytest.raises(StoreError):
            writer.create_topic("new", 3, {"segment.bytes": 5_000})
    with tiers.writer() as writer:
        writer.create_topic("new", 3, {"segment.bytes": 6_000})
        assert writer.topics()["new"] == 3
        assert writer.config("new").segment_bytes == 5_000
    host = tiers.host()
    with BucketReader("sim", host, tiers.tier(host, read_only=True)) as reader:
        assert reader.topics()["new"].partitions == (0, 1, 2)


def test_a_creation_keeps_the_settings_of_a_creation_at_the_same_time(
    tiers: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = TierPublisher.add, list[Appending]()

    def add(self: TierPublisher, appending: Appending) -> object:
        calls.append(appending)
        if len(calls) == 1:
            with tiers.writer() as other_writer:
                other_writer.create_topic("new", 1, {"segment.bytes": 5_000})
        return real(self, appending)

    monkeypatch.setattr(TierPublisher, "add", add)
    with tiers.writer() as writer:
        writer.create_topic("new", 1, {"segment.bytes": 6_000})
        assert writer.config("new").segment_bytes == 5_000


def test_writers_that_staged_at_the_same_end_are_all_published(tiers: Bed) -> None:
    staged_by_task = [tiers.stage([b"%d %d" % (task, row) for row in range(200)]) for task in range(3)]
    for number, staged_segments in enumerate(staged_by_task):
        tiers.append(staged_segments, WriteMark(f"query {number}", 0))
    assert tiers.values() == [b"%d %d" % (task, row) for task in range(3) for row in range(200)]
    root = tiers.remote().root
    assert root is not None
    root_keys = {key for entry in root.entries for key in entry.keys}
    assert set(tiers.segments()) == root_keys, "what was copied is deleted"


def test_an_append_between_two_reads_of_the_head_makes_the_other_writer_read_again(
    tiers: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers of different queries commit at the same time. Both rounds are published."""
    first, second = tiers.stage([b"first"]), tiers.stage([b"second"])
    real, calls = TierPublisher.add, list[Appending]()

    def add(self: TierPublisher, appending: Appending) -> object:
        calls.append(appending)
        if len(calls) == 1:
            tiers.append(second, WriteMark("other", 0))
        return real(self, appending)

    monkeypatch.setattr(TierPublisher, "add", add)
    tiers.append(first, WriteMark("query", 0))
    assert len(calls) == 3
    assert tiers.values() == [b"second", b"first"]


@pytest.mark.parametrize("others", [False, True], ids=["as they are", "copied"])
def test_two_processes_that_publish_the_same_round_at_the_same_time_publish_it_once(
    tiers: Bed,
    monkeypatch: pytest.MonkeyPatch,
    others: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The process that commits second reports a duplicate, and deletes its staged objects."""
    first, second, mark = tiers.stage([b"a"]), tiers.stage([b"a"]), WriteMark("query", 0)
    if others:
        tiers.append(tiers.stage([b"other"]))
    real, calls = TierPublisher.add, list[Appending]()

    def add(self: TierPublisher, appending: Appending) -> object:
        calls.append(appending)
        if len(calls) == 1:
            tiers.append(second, mark)
        return real(self, appending)

    monkeypatch.setattr(TierPublisher, "add", add)
    with tiers.writer() as writer:
        assert writer.append(LOG, first, mark).duplicate
    assert tiers.values() == ([b"other", b"a"] if others else [b"a"])
    root = tiers.remote().root
    assert root is not None
    assert set(tiers.segments()) == object_keys(root.entries)


def test_a_race_that_is_always_lost_ends(tiers: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: TierPublisher, appending: Appending) -> object:
        del self, appending
        raise EndMovedError("it moved")

    staged_segments = tiers.stage([b"a"])
    monkeypatch.setattr(TierPublisher, "add", add)
    with pytest.raises(StorageError, match="8 times"):
        tiers.append(staged_segments)


def test_an_object_that_was_deleted_under_a_commit_is_missed_before_it(tiers: Bed) -> None:
    intact_segments, lost_segments = tiers.stage([b"a"]), tiers.stage([b"b"])
    for segment in lost_segments:
        assert not isinstance(segment.place, str)
        for key in segment.place.keys:
            del tiers.bucket.objects[key]
    with pytest.raises(ObjectNotFoundError):
        tiers.append(lost_segments)
    with pytest.raises(ObjectNotFoundError):
        tiers.append([*intact_segments, *lost_segments])
    assert tiers.values() == []
    tiers.append(intact_segments)
    assert tiers.values() == [b"a"]


def test_an_object_that_was_cut_is_missed_before_the_commit(tiers: Bed) -> None:
    (segment,) = tiers.stage([b"a"])
    assert not isinstance(segment.place, str)
    (key,) = segment.place.keys
    tiers.bucket.write(key, tiers.bucket.objects[key][0][:20])
    with pytest.raises(ObjectNotFoundError, match="missing or incomplete"):
        tiers.append([segment])


def test_an_append_succeeds_if_originals_that_it_copied_cannot_be_deleted(
    tiers: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a mark, a repetition after an error would publish the records twice."""
    staged_segments = tiers.stage([b"a"])
    tiers.append(tiers.stage([b"other"]))
    real = TierPublisher.add

    def add(self: TierPublisher, appending: Appending) -> object:
        head = real(self, appending)
        tiers.store.faults = lambda _: ObjectFault.DENIED
        return head

    monkeypatch.setattr(TierPublisher, "add", add)
    with tiers.writer() as writer:
        assert writer.append(LOG, staged_segments).end_offset == 2
    assert tiers.values() == [b"other", b"a"]


@pytest.mark.parametrize("is_copied", [False, True], ids=["as they are", "copied"])
def test_records_of_a_deleted_topic_are_not_published_in_a_new_topic_of_its_name(tiers: Bed, is_copied: bool) -> None:  # noqa: FBT001 - a parameter of the test
    if is_copied:  # the staged offset is then not the end of the new topic
        tiers.append(tiers.stage([b"old"]))
    staged_segments = tiers.stage([b"a"])
    tiers.remote().delete(leader_epoch=0, reason="the topic was deleted")
    with tiers.writer() as writer:
        writer.create_topic("orders", 1)
        with pytest.raises(StorageError, match="topic orders was deleted and created again"):
            writer.append(LOG, staged_segments)
    assert tiers.values() == []


# --- live engines ----------------------------------------------------------------------------------------------------


def test_a_writer_that_an_engine_fences_publishes_nothing(tiers: Bed) -> None:
    """The engine attaches between staging and commit."""
    staged_segments = tiers.stage([b"a"])
    tiers.remote().claim("an engine attached")
    with pytest.raises(FencedEpochError, match="an engine wrote to orders-0 last"):
        tiers.append(staged_segments)
    with pytest.raises(FencedEpochError, match="leader epoch 0, which is now 2"):
        tiers.append(staged_segments, take_over=True)
    assert tiers.values() == []


def test_a_log_of_an_engine_is_refused_unless_the_caller_takes_it_over(tiers: Bed) -> None:
    engine = tiers.remote()
    tiers.append(tiers.stage([b"a"]), WriteMark("query", 3))
    engine.refresh()
    engine.claim("it attaches")
    with pytest.raises(FencedEpochError, match="take-over option"):
        tiers.stage([b"b"])
    staged_segments = tiers.stage([b"b"], take_over=True)
    tiers.append(staged_segments, WriteMark("query", 4), take_over=True)
    assert tiers.values() == [b"a", b"b"]
    with pytest.raises(FencedEpochError):
        engines_segment(engine, 2, 3, epoch=1)
    tiers.append(tiers.stage([b"c"]), WriteMark("query", 5))
    assert tiers.values() == [b"a", b"b", b"c"]


def test_a_take_over_does_not_restore_a_topic_that_was_deleted_meanwhile(tiers: Bed) -> None:
    tiers.remote().claim("an engine attached")
    with tiers.writer(take_over=True) as writer:
        with writer.stage(LOG) as stage:
            stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=b"a")]))
            staged_segments = stage.finish()
        tiers.remote().delete(leader_epoch=1, reason="the topic was deleted")
        with pytest.raises(UnknownTopicError, match="topic orders was deleted"):
            writer.append(LOG, staged_segments)
        writer.refresh()
        assert dict(writer.topics()) == {}


def test_records_that_only_an_engine_has_are_never_written_over(tiers: Bed) -> None:
    remote = tiers.remote()
    segment = made_segment(0, 5, topic_id=remote.topic_id, log=LOG, files={FileKind.SNAPSHOT: encode_snapshot([])})
    remote.offload([segment], layout="single", leader_epoch=0, log_start=0, high_watermark=9)
    for take_over in (False, True):
        with pytest.raises(FencedEpochError, match=r"records \[5, 9\) of orders-0"):
            tiers.stage([b"a"], take_over=take_over)


def test_an_engine_keeps_the_marks(tiers: Bed) -> None:
    tiers.append(tiers.stage([b"a"]), WriteMark("query", 3))
    engine = tiers.remote()
    engine.claim("it attaches")
    engines_segment(engine, 1, 2, epoch=1)
    root = engine.root
    assert root is not None
    assert root.marks == (WriteMark("query", 3),)


def test_the_writer_that_was_silent_for_longest_is_forgotten_first() -> None:
    marks = tuple[WriteMark, ...]()
    for number in range(MAX_MARKS + 3):
        marks = add_mark(marks, WriteMark(f"{number}", 1))
        marks = add_mark(marks, WriteMark("busy", number))
    assert len(marks) == MAX_MARKS
    assert marks[-1] == WriteMark("busy", MAX_MARKS + 2)
    assert marks[0].writer == "4"


def test_a_name_that_no_mark_may_have_is_refused(tiers: Bed) -> None:
    staged_segments = tiers.stage([b"a"])
    for name in ("", "x" * 129, "two\nlines"):
        with pytest.raises(StorageError, match="write rounds"):
            tiers.append(staged_segments, WriteMark(name, 0))
    assert tiers.values() == []


# --- roots and replacements ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_superseded_roots_are_deleted_even_without_an_engine(tiers: Bed) -> None:
    for number in range(140):
        tiers.append(tiers.stage([b"%d" % number]), WriteMark("query", number))
        tiers.clock.advance_ms(120_000)
    roots = [key for key in tiers.bucket.keys() if "/manifest/" in key]  # noqa: SIM118 - a method, not of a dict
    assert len(roots) < 110
    assert len(tiers.values()) == 140


@pytest.mark.parametrize("fault", [*FAULTS, ObjectFault.LATE])
@pytest.mark.long
def test_merging_loses_nothing_whichever_request_failed(tiers: Bed, fault: ObjectFault) -> None:
    """Write marks and records stay. The next merge includes a merge that failed, unless it was committed."""
    expected, failures = list[bytes](), 0
    for number in range(100):
        for row in range(8):
            expected.append(b"%d %d" % (number, row))
            tiers.append(tiers.stage(expected[-1:]), WriteMark("query", len(expected)))
        with tiers.writer() as writer:
            after(number, fault)(tiers.store)
            before = tiers.store.counts.total()
            try:
                writer.merge_end(LOG, 3_000)
                is_complete = tiers.store.counts.total() - before <= number
            except StoreError:
                failures, is_complete = failures + 1, False
        tiers.bucket.deliver()
        assert tiers.values() == expected
        with tiers.writer() as writer:
            writer.merge_end(LOG, 3_000)
        assert tiers.values() == expected
        if is_complete:
            break
    assert failures >= 3
    root = tiers.remote().root
    assert root is not None
    assert root.number_of("query") == len(expected)
    assert root.segments < len(expected) / 4
    tiers.append(tiers.stage([b"again"]), WriteMark("query", len(expected)))
    assert tiers.values() == expected


def test_segments_that_another_writer_merges_meanwhile_are_left_to_it(
    tiers: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in range(8):
        tiers.append(tiers.stage([b"%d" % row]))
    real_merge = TierWriter.merge

    def late(writer: TierWriter, span: ReplaceSpan, groups: Sequence[tuple[int, int]]) -> Rewritten:
        rewritten = real_merge(writer, span, groups)
        monkeypatch.undo()
        with tiers.writer() as other_writer:
            assert other_writer.merge_end(LOG, 3_000) is not None
        tiers.append(tiers.stage([b"8"]))
        return rewritten

    monkeypatch.setattr(TierWriter, "merge", late)
    with tiers.writer() as writer, pytest.raises(StorageError, match="other segments"):
        writer.merge_end(LOG, 3_000)
    assert tiers.values() == [b"%d" % row for row in range(9)]
    assert len(tiers.segments()) == 8 + 1 + 1, "what came too late is gone"


def test_segments_that_an_engine_may_be_writing_are_not_merged(tiers: Bed) -> None:
    for row in range(8):
        tiers.append(tiers.stage([b"%d" % row]))
    remote = tiers.remote()
    engines_segment(remote, 8, 9, 1)
    with tiers.writer() as writer:
        with pytest.raises(FencedEpochError):
            writer.merge_end(LOG, 30_000)
        with pytest.raises(FencedEpochError):
            writer.plan_merge(LOG, 30_000)
    with tiers.writer(take_over=True) as writer:
        plan = writer.plan_merge(LOG, 30_000)
        assert plan is not None
        [(start, end, size_bytes)] = plan.groups
        assert (start, end) == (0, 9)
        assert size_bytes > 8 * 60


def test_segments_are_replaced_by_one_commit(tiers: Bed) -> None:
    tiers.append(tiers.stage([b"%d" % row for row in range(300)]))
    with tiers.writer() as writer:
        span = writer.span(LOG)
        assert span is not None
        assert (span.start, span.end, len(span.borders) > 2) == (0, 300, True)
        with writer.stage(LOG, base_offset=span.start) as stage:
            kept_records = [
                Record(offset=row, timestamp_ms=1, value=b"%d" % row, leader_epoch=0) for row in range(0, 290, 10)
            ]
            stage.add(RecordColumns.from_records(kept_records))
            staged_segments = stage.finish(span.end)
    tiers.append(tiers.stage([b"later"]))
    with tiers.writer() as writer:
        result = writer.replace(span, staged_segments, reason="every tenth is kept", first_dirty_offset=300)
    assert (result.base_offset, result.end_offset) == (0, 300)
    host = tiers.host()
    with BucketReader("sim", host, tiers.tier(host, read_only=True)) as reader:
        records = list(reader.log(*LOG).records(start=0))
    assert [record.offset for record in records] == [*range(0, 290, 10), 300]
    root = tiers.remote().root
    assert root is not None
    assert (root.change, root.first_dirty_offset, root.high_watermark) == (ChangeKind.REPLACE, 300, 301)
    with tiers.writer() as writer, pytest.raises(StorageError, match="other segments"):
        writer.replace(span, staged_segments, reason="again")


def test_a_replacement_must_cover_exactly_the_span(tiers: Bed) -> None:
    tiers.append(tiers.stage([b"%d" % row for row in range(300)]))
    with tiers.writer() as writer:
        span = writer.span(LOG, 100)
        assert span is not None
        assert span.start > 100
        with writer.stage(LOG, base_offset=span.start) as stage:
            staged_segments = stage.finish(span.end - 1)
        with pytest.raises(OffsetsOutOfOrderError, match="does not cover"):
            writer.replace(span, staged_segments, reason="too short")
        assert writer.span(LOG, 299) is None


def test_a_replacement_may_leave_no_record_of_a_span(tiers: Bed) -> None:
    tiers.append(tiers.stage([b"a", b"b"]))
    with tiers.writer() as writer:
        span = writer.span(LOG)
        assert span is not None
        with writer.stage(LOG, base_offset=span.start) as stage:
            staged_segments = stage.finish(span.end)
        writer.replace(span, staged_segments, reason="nothing is left")
    assert tiers.values() == []
    tiers.append(tiers.stage([b"c"]))
    host = tiers.host()
    with BucketReader("sim", host, tiers.tier(host, read_only=True)) as reader:
        assert [record.offset for record in reader.log(*LOG).records(start=0)] == [2]


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_topic_that_is_created_again_gets_another_id(tiers: Bed, *, is_collected: bool) -> None:
    """A query or a copy of the earlier topic would otherwise continue in the new one, and skip its first records."""
    ids = set[str]()
    for _ in range(3):
        with tiers.writer() as writer:
            writer.create_topic("orders", 1)
        host = tiers.host()
        tier = tiers.tier(host)
        names = [name for name in tier.logs() if tier.log(*name).view().is_deleted is False]
        ids.update(str(name.topic_id) for name in names)
        remote = tier.log(*names[0])
        remote.delete(leader_epoch=0, reason="a test")
        if is_collected:
            tiers.clock.advance_ms(2 * GRACE_MS)
            remote.collect()
            assert tier.logs() == ()
    assert len(ids) == 3
    assert len([key for key in tiers.bucket.keys() if key.startswith("stratalog-deleted/")]) == 3 * is_collected  # noqa: SIM118 - a method, not of a dict
