"""Objects of interrupted uploads in the leader epoch that continues: only these are deleted, after the grace time."""

from __future__ import annotations

import logging

import pytest

from sim_objects import ObjectFault, SimObjectStore, SimRequest
from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, ObjectNotFoundError, StorePermissionError, StoreTimeoutError
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.store.object_keys import log_prefix, manifest_prefix, segments_prefix
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.tier.upkeep.collect import GRACE_MS, CollectReport
from tier_bed import TierBed, named_objects, offload, stored_objects

PREFIX = log_prefix(LOG, TOPIC_ID)
PAIR = TopicConfig(tier_layout="pair")


class KilledError(BaseException):
    """The process was killed."""


def killed(bed: TierBed, step: int, *bounds: int) -> bool:
    """Run an offload that is killed before its request of this number. Return False if it completed."""
    store = SimObjectStore(bed.bucket)

    def before(request: SimRequest) -> None:
        if request.number == requests_to_open + step:
            store.faults = lambda _: ObjectFault.NOT_APPLIED  # a killed process cannot clean up
            if request.kind == "put_file":
                bed.bucket.leave(request.key)
            raise KilledError

    log = bed.open(store).log(LOG, TOPIC_ID)
    requests_to_open = store.next_number  # opening the log also sends requests
    store.before = before
    try:
        offload(log, *bounds)
    except KilledError:
        return True
    return False


def test_killed_at_every_step_nothing_dangles_after_the_next_pass() -> None:
    steps = 0
    for step in range(100):
        bed = TierBed()
        offload(bed.open().log(LOG, TOPIC_ID), 0, 10)
        if not killed(bed, step, 0, 10, 20, 30):
            break
        steps += 1
        log = bed.open().log(LOG, TOPIC_ID)
        offload(log, 0, 10, 20, 30)
        assert log.collect(leader_epoch=0).orphans == 0, "all of it is young"
        assert named_objects(log) <= stored_objects(bed)
        bed.clock.advance_ms(GRACE_MS)
        log.collect(leader_epoch=0)
        assert stored_objects(bed) == named_objects(log)
        assert bed.bucket.unfinished == []
        assert [segment.end_offset for segment in log.view().segments] == [10, 20, 30]
    assert steps >= 8, "two objects and a root for each of two segments, at least"


def test_objects_of_our_epoch_are_deleted_only_after_a_root_of_ours() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    assert killed(bed, 3, 10, 20)
    orphans = stored_objects(bed) - named_objects(log)
    assert orphans or bed.bucket.unfinished
    bed.clock.advance_ms(GRACE_MS)
    "an engine that does not lead the log leaves the objects of its epoch"
    assert log.collect(leader_epoch=0).orphans == len(orphans) + 1
    assert log.root is not None
    assert log.root.change == ChangeKind.CLAIM
    assert (log.root.version, log.root.leader_epoch) == (2, 0)
    assert log.collect(leader_epoch=0) == CollectReport(), "and no second root"


def test_a_process_beside_us_cannot_commit_what_was_collected() -> None:
    """The other process, for example on a copied disk, had read the manifest before the collection."""
    bed = TierBed()
    log, other_log = bed.open().log(LOG, TOPIC_ID), bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    other_log.refresh()
    entry = TierPublisher(other_log, 0, PAIR).upload(made_segment(10, 20))
    bed.clock.advance_ms(GRACE_MS)
    assert log.collect(leader_epoch=0).orphans == len(entry.keys)
    with pytest.raises(ObjectNotFoundError):
        other_log.check_stored([entry])
    with pytest.raises(FencedEpochError, match="another writer"):
        offload(other_log, 10, 20)


def test_an_upload_of_this_process_stays_at_any_age() -> None:
    """A compaction can upload for hours, and commit all objects at the end."""
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10, 20)
    publisher = TierPublisher(log, 0, PAIR)
    entry = publisher.upload(made_segment(0, 20))
    bed.clock.advance_ms(2 * GRACE_MS)
    log.collect(leader_epoch=0)
    assert entry.keys <= stored_objects(bed)
    publisher.discard([entry])
    assert stored_objects(bed) == named_objects(log)


def test_leftovers_of_a_failed_upload_are_deleted_without_a_restart() -> None:
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    store.faults = lambda request: ObjectFault.NONE if request.kind in {"read", "list"} else ObjectFault.REPLY_LOST
    with pytest.raises(StoreTimeoutError):
        offload(log, 10, 20)
    store.faults = lambda _: ObjectFault.NONE
    bed.bucket.write(f"{PREFIX}segments/{10:020d}-0-{7:032x}.seg", b"what a delete did not reach")
    leftover_states = [log.has_leftovers]
    bed.clock.advance_ms(GRACE_MS)
    assert log.collect(leader_epoch=0).orphans >= 1
    assert [*leftover_states, log.has_leftovers] == [True, False]
    assert stored_objects(bed) == named_objects(log)


def test_leftovers_are_searched_again_after_a_collection_that_failed() -> None:
    bed, collection = TierBed(), TierCollection(GRACE_MS)
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    bed.clock.advance_ms(GRACE_MS)
    assert collection.collect(log, 0) == CollectReport(left=0)
    store.faults = lambda request: ObjectFault.NONE if request.kind in {"read", "list"} else ObjectFault.REPLY_LOST
    with pytest.raises(StoreTimeoutError):
        offload(log, 10, 20)
    bed.bucket.write(f"{PREFIX}segments/{10:020d}-0-{7:032x}.seg", b"what a delete did not reach")
    bed.clock.advance_ms(GRACE_MS)
    store.faults = lambda request: (
        ObjectFault.NOT_APPLIED if request.key == segments_prefix(PREFIX) else ObjectFault.NONE
    )
    with pytest.raises(StoreTimeoutError):
        collection.collect(log, 0)
    store.faults = lambda _: ObjectFault.NONE
    assert collection.collect(log, 0).orphans >= 1
    assert stored_objects(bed) == named_objects(log)


def test_leftovers_of_an_interrupted_upload_are_deleted_without_a_restart() -> None:
    """Control-C ends the offload after the first of two objects, and the process continues."""
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, 0, 10)

    def interrupt(request: SimRequest) -> None:
        if request.key.endswith(".idx"):
            raise KeyboardInterrupt

    store.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        offload(log, 10, 20)
    store.before = None
    assert len(stored_objects(bed) - named_objects(log)) == 1
    assert log.has_leftovers
    bed.clock.advance_ms(GRACE_MS)
    assert log.collect(leader_epoch=0).orphans == 1
    assert stored_objects(bed) == named_objects(log)


def test_unfinished_uploads_of_a_lower_epoch_are_aborted_by_any_writer() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10, epoch=1)
    lower_epoch_upload = bed.bucket.leave(f"{PREFIX}segments/{10:020d}-0-{1:032x}.seg")
    same_epoch_upload = bed.bucket.leave(f"{PREFIX}segments/{10:020d}-1-{1:032x}.seg")
    foreign_upload = bed.bucket.leave(f"{PREFIX}segments/notes.txt")
    assert log.collect() == CollectReport()
    assert log.collect().left == 1
    bed.clock.advance_ms(GRACE_MS)
    assert log.collect() == CollectReport(orphans=1)
    assert bed.bucket.unfinished == [same_epoch_upload, foreign_upload]
    assert lower_epoch_upload not in bed.bucket.unfinished


def test_uploads_of_a_deleted_topic_are_deleted_with_its_log() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    bed.bucket.leave(f"{PREFIX}segments/{10:020d}-0-{1:032x}.seg")
    log.delete(leader_epoch=0, reason="a test")
    for _ in range(3):
        bed.clock.advance_ms(GRACE_MS)
        log.collect()
    assert (bed.bucket.keys(), bed.bucket.unfinished) == ([], [])


def test_a_store_that_cannot_list_uploads_is_reported_and_other_garbage_is_collected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, 0, 10, epoch=1)
    bed.bucket.write(f"{PREFIX}segments/{10:020d}-0-{7:032x}.seg", b"left")
    bed.clock.advance_ms(GRACE_MS)
    store.faults = lambda request: ObjectFault.DENIED if request.kind == "unfinished" else ObjectFault.NONE
    with caplog.at_level(logging.WARNING):
        assert log.collect() == CollectReport(orphans=1)
    assert "lifecycle rule" in caplog.text


@pytest.mark.parametrize("kind", ["unfinished", "abort", "delete", "create"])
@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.DENIED])
def test_a_collector_that_fails_is_repeated_harmlessly(kind: str, fault: ObjectFault) -> None:
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    assert killed(bed, 3, 10, 20)
    bed.bucket.write(f"{PREFIX}segments/{10:020d}-0-{7:032x}.seg", b"left")
    bed.clock.advance_ms(GRACE_MS)
    store.faults = lambda request: fault if request.kind == kind else ObjectFault.NONE
    try:
        log.collect(leader_epoch=0)
    except (StoreTimeoutError, StorePermissionError):
        assert named_objects(log) <= stored_objects(bed)
    store.faults = lambda _: ObjectFault.NONE
    log.collect(leader_epoch=0)
    assert (stored_objects(bed), bed.bucket.unfinished) == (named_objects(log), [])
    assert len(bed.bucket.keys(manifest_prefix(PREFIX))) <= 3
