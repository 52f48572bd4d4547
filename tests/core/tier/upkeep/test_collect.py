from __future__ import annotations

from dataclasses import replace

import pytest

from sim_objects import ObjectFault, SimObjectStore, SimRequest, scripted_faults
from stratalog.errors import ConfigError, StorePermissionError, StoreTimeoutError
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.manifest.root import object_keys
from stratalog.tier.manifest.root_codec import encode_root
from stratalog.tier.store.object_keys import log_prefix, manifest_key, manifest_prefix
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS, LEAST_GRACE_MS, CollectReport
from tier_bed import TierBed, named_objects, offload, stored_objects

PREFIX = log_prefix(LOG, TOPIC_ID)


def filled(bed: TierBed, *bounds: int, epoch: int = 0, store: SimObjectStore | None = None) -> TierLog:
    log = bed.open(store).log(LOG, TOPIC_ID)
    offload(log, *bounds, epoch=epoch)
    return log


def versions(bed: TierBed) -> list[int]:
    return [int(key.rpartition("/")[2]) for key in bed.bucket.keys(manifest_prefix(PREFIX))]


def test_nothing_is_deleted_before_the_grace_time() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20)
    log.expire(10, leader_epoch=0, reason="a test")
    bed.clock.advance_ms(GRACE_MS - 1)
    before = bed.bucket.keys()
    assert log.collect() == CollectReport()
    assert bed.bucket.keys() == before


def test_objects_are_deleted_with_the_last_root_that_names_them() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20, 30)
    early = bed.open(read_only=True).log(LOG, TOPIC_ID).view()
    log.expire(20, leader_epoch=0, reason="a test")
    bed.clock.advance_ms(GRACE_MS)
    assert early.segments[0].read(0, 5)
    assert log.collect() == CollectReport(roots=3, objects=4)
    assert (versions(bed), stored_objects(bed)) == ([4], named_objects(log))
    assert log.view().segments[0].read(0, 5)
    assert log.collect() == CollectReport()


def test_a_root_that_was_just_superseded_stays_with_what_it_names() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20)
    bed.clock.advance_ms(2 * GRACE_MS)
    log.expire(10, leader_epoch=0, reason="a test")
    before = stored_objects(bed)
    assert log.collect() == CollectReport(roots=1)
    assert (versions(bed), stored_objects(bed)) == ([2, 3], before)


def test_a_clock_that_a_writer_stamped_long_before_it_wrote_does_not_shorten_the_grace_time() -> None:
    """A writer paused between building its root and creating it. The store's modification time counts too."""
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = filled(bed, 0, 10, 20, store=store)
    store.before = lambda request: bed.clock.advance_ms(2 * GRACE_MS) if request.kind == "create" else None
    log.expire(10, leader_epoch=0, reason="a test")
    store.before = None
    before = stored_objects(bed)
    log.collect()
    assert (versions(bed), stored_objects(bed)) == ([2, 3], before)


def orphan(bed: TierBed, epoch: int, number: int = 1) -> str:
    key = f"{PREFIX}segments/{10:020d}-{epoch}-{number:032x}.seg"
    bed.bucket.write(key, b"upload")
    return key


def test_uploads_without_a_commit_are_deleted_once_a_higher_epoch_has_begun() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, epoch=1)
    lower_epoch_key, same_epoch_key = orphan(bed, 0), orphan(bed, 1)
    bed.clock.advance_ms(GRACE_MS)
    young_key = orphan(bed, 0, 2)
    assert log.collect() == CollectReport(orphans=1)
    assert lower_epoch_key not in stored_objects(bed)
    assert stored_objects(bed) == {same_epoch_key, young_key, *named_objects(log)}
    offload(log, 10, 20, epoch=2)
    assert log.collect() == CollectReport(roots=0, orphans=1)
    assert stored_objects(bed) == {young_key, *named_objects(log)}


def test_an_object_that_an_older_root_names_is_no_orphan() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20, epoch=0)
    bed.clock.advance_ms(2 * GRACE_MS)
    offload(log, 20, 30, epoch=1)
    log.expire(20, leader_epoch=1, reason="a test")
    before = stored_objects(bed)
    assert log.collect().orphans == 0
    assert stored_objects(bed) == before


def test_segments_that_an_interrupted_rebuild_has_not_committed_yet_are_no_orphans() -> None:
    bed = TierBed()
    root = filled(bed, 0, 10, 20, 30).root
    assert root is not None
    for key in bed.bucket.keys(manifest_prefix(PREFIX)):
        bed.bucket.objects.pop(key)
    bed.clock.advance_ms(GRACE_MS)
    log = bed.open().log(LOG, TOPIC_ID)
    log.add_rebuilt(root.entries[:1], 0, root.end_offset, leader_epoch=1)
    before = stored_objects(bed)
    assert bed.open().log(LOG, TOPIC_ID).collect() == CollectReport()
    log.add_rebuilt(root.entries, 0, root.end_offset, leader_epoch=1)
    assert (stored_objects(bed), named_objects(log)) == (before, before)
    lower = orphan(bed, 0)
    bed.clock.advance_ms(GRACE_MS)
    offload(log, 30, 40, epoch=2)
    assert log.collect().orphans == 1
    assert lower not in stored_objects(bed)


def test_files_of_others_are_left_alone() -> None:
    bed = TierBed()
    log = filled(bed, 0, 10, 20, epoch=1)
    for key in (f"{PREFIX}segments/notes.txt", f"{PREFIX}manifest/notes.txt", f"{PREFIX}other"):
        bed.bucket.write(key, b"mine")
    bed.clock.advance_ms(2 * GRACE_MS)
    log.collect()
    assert {f"{PREFIX}segments/notes.txt", f"{PREFIX}manifest/notes.txt", f"{PREFIX}other"} <= set(bed.bucket.keys())


def test_a_stale_root_is_deleted_without_the_objects_that_it_names() -> None:
    """The stale root was created a second time after its collection.

    Later roots of the chain may refer to the same objects.
    """
    bed = TierBed()
    log = filled(bed, 0, 10, 20)
    stale = bed.bucket.objects[manifest_key(PREFIX, 1)][0]
    offload(log, 20, 30, 40)
    bed.clock.advance_ms(GRACE_MS)
    log.collect()
    log.expire(10, leader_epoch=0, reason="a test")
    bed.bucket.write(manifest_key(PREFIX, 1), stale)
    before = stored_objects(bed)
    bed.clock.advance_ms(GRACE_MS - 1)
    log.collect()
    assert (versions(bed), stored_objects(bed)) == ([4, 5], before)
    bed.clock.advance_ms(1)
    assert log.collect() == CollectReport(roots=1, objects=2)
    assert (versions(bed), stored_objects(bed)) == ([5], named_objects(log))


def test_a_stale_root_takes_nothing_from_a_root_that_stays() -> None:
    """The stale root's writer may have committed objects later that the head no longer refers to."""
    bed = TierBed()
    log = filled(bed, 0, 10, 20, 30)
    bed.clock.advance_ms(GRACE_MS)
    log.collect()
    offload(log, 30, 40)
    root = log.root
    assert root is not None
    log.expire(40, leader_epoch=0, reason="a test")
    stale = replace(root, version=1, parent_sha256="", recent_commits=(root.commit_id,))
    bed.bucket.write(manifest_key(PREFIX, 1), encode_root(stale))
    assert versions(bed) == [1, 3, 4, 5]
    log.collect()
    assert versions(bed) == [3, 4, 5]
    assert object_keys(root.entries) <= stored_objects(bed)


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST])
def test_a_collector_that_dies_is_repeated_harmlessly(fault: ObjectFault) -> None:
    for number in range(12):
        bed = TierBed()
        store = SimObjectStore(bed.bucket)
        log = filled(bed, 0, 10, 20, 30, store=store)
        log.expire(20, leader_epoch=0, reason="a test")
        bed.clock.advance_ms(GRACE_MS)
        later = range(store.next_number + number, store.next_number + 1000)
        store.faults = scripted_faults(dict.fromkeys(later, fault))
        with pytest.raises(StoreTimeoutError):
            log.collect()
        store.faults = lambda _: ObjectFault.NONE
        assert named_objects(log) <= stored_objects(bed)
        log.collect()
        assert (versions(bed), stored_objects(bed)) == ([4], named_objects(log))


def test_a_collector_without_the_right_to_delete_reports_it() -> None:
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = filled(bed, 0, 10, 20, store=store)
    bed.clock.advance_ms(GRACE_MS)
    store.faults = lambda request: ObjectFault.DENIED if request.kind == "delete" else ObjectFault.NONE
    with pytest.raises(StorePermissionError):
        log.collect()


def test_a_collector_that_another_one_overtook_leaves_the_rest_to_it() -> None:
    """The collector paused between finding the head and the listing.

    Meanwhile, another collector deleted all roots that the first one knew.
    """
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    slow = filled(bed, 0, 10, store=store)
    fast = bed.open().log(LOG, TOPIC_ID)

    def overtake(request: SimRequest) -> None:
        if request.kind == "list" and store.counts["list"] == before + 2:
            offload(fast, 10, 20, 30, epoch=1)
            bed.clock.advance_ms(GRACE_MS)
            fast.collect()

    before = store.counts["list"]
    store.before = overtake
    assert slow.collect() == CollectReport()
    assert named_objects(fast) <= stored_objects(bed)


def test_a_log_without_a_root_has_no_garbage() -> None:
    assert TierBed().open().log(LOG, TOPIC_ID).collect() == CollectReport()


def test_a_grace_time_that_warm_readers_could_miss_is_refused() -> None:
    log = filled(TierBed(), 0, 10)
    with pytest.raises(ConfigError, match="grace time"):
        log.collect(grace_ms=LEAST_GRACE_MS - 1)
    assert log.collect(grace_ms=LEAST_GRACE_MS) == CollectReport()
