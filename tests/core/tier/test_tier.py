from __future__ import annotations

from collections.abc import Callable

import pytest

from sim_objects import ObjectFault, SimBucket, SimObjectStore
from stratalog.errors import BucketNotFoundError, ClosedError, StoreError, StorePermissionError, StoreTimeoutError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.finding import Finding, FindingKind
from stratalog.spi.objects import Capability
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.store.object_keys import deleted_topic_key, log_prefix, segments_prefix
from stratalog.tier.store.store import LIST_LIMIT
from stratalog.tier.tier import Tier
from stratalog.tier.upkeep.collect import GRACE_MS
from stratalog.tier.upkeep.tier_repair import TierRepair
from tier_bed import TierBed

OTHER_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAg")


def commit(tier: Tier, log: TopicPartition, topic_id: TopicId = TOPIC_ID) -> None:
    tier.log(log, topic_id).offload(
        [made_segment(0, 10, log=log, topic_id=topic_id)],
        layout="pair",
        leader_epoch=0,
        log_start=0,
        high_watermark=10,
    )


def test_a_log_is_one_object() -> None:
    tier = TierBed().open()
    assert tier.log(LOG, TOPIC_ID) is tier.log(LOG, TOPIC_ID)
    assert tier.log(LOG, OTHER_ID) is not tier.log(LOG, TOPIC_ID)
    assert tier.uri == "sim://bucket"


def test_a_store_without_atomic_creation_gets_single_writer_mode_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier = TierBed().open(SimObjectStore(capabilities=Capability.NONE))
    assert not tier.availability.shared
    assert tier.availability.reason
    assert "single-writer mode: uri=sim://bucket" in caplog.text
    commit(tier, LOG)
    assert tier.log(LOG, TOPIC_ID).view().end_offset == 10


def test_a_store_without_its_promised_guarantees_gets_single_writer_mode(caplog: pytest.LogCaptureFixture) -> None:
    tier = TierBed().open(SimObjectStore(SimBucket(atomic=False)))
    assert not tier.availability.shared
    assert "single-writer mode" in caplog.text


def test_an_honest_store_is_shared_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    tier = TierBed().open()
    assert (tier.availability.shared, tier.availability.reason, caplog.text) == (True, "", "")


def test_notes_of_repairs_that_a_deleted_topic_left_are_no_lost_log() -> None:
    bed = TierBed()
    tier = bed.open()
    commit(tier, LOG)
    log = tier.log(LOG, TOPIC_ID)
    (victim, *_) = bed.bucket.keys(segments_prefix(log.prefix))
    TierRepair(log).note(Finding(FindingKind.FILE, victim, 0, "a test"))
    log.delete(leader_epoch=0, reason="a test")
    bed.clock.advance_ms(GRACE_MS)
    log.collect()
    assert len(bed.bucket.keys(log.prefix)) == 1
    assert tier.lost() == ()


def missing(store: SimObjectStore) -> None:
    store.bucket.exists = False


def denying(store: SimObjectStore) -> None:
    store.faults = lambda _: ObjectFault.DENIED


def silent(store: SimObjectStore) -> None:
    store.faults = lambda _: ObjectFault.NOT_APPLIED


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("fail", "error"),
    [(missing, BucketNotFoundError), (denying, StorePermissionError), (silent, StoreTimeoutError)],
    ids=["bucket", "permission", "time-out"],
)
def test_a_wrong_setting_is_raised_at_open_and_the_store_is_closed(
    fail: Callable[[SimObjectStore], None], error: type[StoreError], *, read_only: bool
) -> None:
    store = SimObjectStore()
    fail(store)
    with pytest.raises(error):
        TierBed().open(store, read_only=read_only)
    assert store.closed


def test_reading_writes_nothing() -> None:
    bed = TierBed()
    commit(bed.open(), LOG)
    history_before = list(bed.bucket.history)
    store = SimObjectStore(bed.bucket)
    with bed.open(store, read_only=True) as tier:
        (log_name,) = tier.logs()
        segment = tier.log(*log_name).view().segments[0]
        assert bytes(segment.read(0, 5)) == b"[0, 1"
    assert bed.bucket.history == history_before
    assert store.counts["delete"] == 0


def test_a_closed_tier_gives_no_logs() -> None:
    tier = TierBed().open()
    tier.close()
    tier.close()
    with pytest.raises(ClosedError):
        tier.log(LOG, TOPIC_ID)


def test_all_logs_are_found() -> None:
    bed = TierBed()
    tier = bed.open()
    assert tier.logs() == ()
    log_names = [
        TierLogName(TopicPartition("a", 0), TOPIC_ID),
        TierLogName(TopicPartition("a", 10), TOPIC_ID),
        TierLogName(TopicPartition("a", 2), TOPIC_ID),
        TierLogName(TopicPartition("a", 2), OTHER_ID),
        TierLogName(TopicPartition("a-b.c_d", 0), TOPIC_ID),
        TierLogName(TopicPartition("a-AAAAAAAAAAAAAAAAAAAAAQ", 0), TOPIC_ID),
    ]
    for name in log_names:
        commit(tier, *name)
    assert sorted(tier.logs()) == sorted(log_names)


def test_objects_that_are_no_log_are_left_out() -> None:
    bed = TierBed()
    tier = bed.open()
    commit(tier, LOG)
    uncommitted = log_prefix(TopicPartition("half", 0), TOPIC_ID)
    for key in (
        "notes.txt",
        "stratalog-probe/0123",
        f"orders-{TOPIC_ID}/00/manifest/{1:020d}",
        f"orders-{TOPIC_ID}/x/manifest/{1:020d}",
        f"..-{TOPIC_ID}/0/manifest/{1:020d}",
        f"{'x' * 300}-{TOPIC_ID}/0/manifest/{1:020d}",
        f"orders-short/0/manifest/{1:020d}",
        f"{uncommitted}segments/{0:020d}-0-{1:032x}.seg",
    ):
        bed.bucket.write(key, b"")
    assert tier.logs() == (TierLogName(LOG, TOPIC_ID),)


def test_a_tier_whose_first_object_is_the_note_of_a_deleted_topic_is_not_searched_for_segments_of_a_broker() -> None:
    """The search lists all objects. Keys of topics such as "users" follow the notes."""
    bed = TierBed()
    bed.bucket.write(deleted_topic_key("orders", TOPIC_ID), b"deleted")
    for number in range(2 * LIST_LIMIT):
        bed.bucket.objects[f"{log_prefix(TopicPartition('users', 0), TOPIC_ID)}manifest/{number:020d}"] = (b"", 0)
    store = SimObjectStore(bed.bucket)
    tier = bed.open(store, read_only=True)
    store.counts.clear()
    assert tier.foreign("pair") == {}
    assert store.counts["list"] == 1


def test_large_logs_are_skipped_and_small_ones_share_a_request() -> None:
    bed = TierBed()
    for partition, count in ((0, 3 * LIST_LIMIT), (1, 5), (2, LIST_LIMIT), (3, 1)):
        prefix = log_prefix(TopicPartition("orders", partition), TOPIC_ID)
        for number in range(count):
            bed.bucket.objects[f"{prefix}manifest/{number:020d}"] = (b"", 0)
    for number in range(2 * LIST_LIMIT):
        bed.bucket.objects[f"zzz/{number:06d}"] = (b"", 0)
    store = SimObjectStore(bed.bucket)
    tier = bed.open(store, read_only=True)
    store.counts.clear()
    assert [log_name.log.partition for log_name in tier.logs()] == [0, 1, 2, 3]
    assert store.counts["list"] == 5


def test_a_listing_has_the_newest_versions_and_skips_those_that_are_known() -> None:
    bed = TierBed()
    names = [TierLogName(TopicPartition(topic, 0), TOPIC_ID) for topic in ("orders", "orders-2", "pay")]
    for name, count in zip(names, (5 * LIST_LIMIT, 7, 3), strict=True):
        for number in range(count):
            bed.bucket.objects[f"{log_prefix(*name)}manifest/{number + 1:020d}"] = (b"", 0)
    store = SimObjectStore(bed.bucket)
    tier = bed.open(store, read_only=True)
    store.counts.clear()
    listing = tier.listing()
    assert listing.versions == dict(zip(names, (5 * LIST_LIMIT, 7, 3), strict=True))
    assert store.counts["list"] == 6
    store.counts.clear()
    assert tier.listing(known_versions=listing.versions).versions == listing.versions
    assert store.counts["list"] == 2
    assert tier.listing(["orders"], listing.versions).versions == {names[0]: 5 * LIST_LIMIT}
    assert tier.listing([]).versions == {}


def test_metrics_count_requests_and_caches() -> None:
    bed = TierBed()
    tier = bed.open()
    before = tier.metrics()
    commit(tier, LOG)
    segment = tier.log(LOG, TOPIC_ID).view().segments[0]
    segment.read(0, 5)
    segment.read(0, 5)
    after = tier.metrics()
    spent = after.store - before.store
    assert (spent.puts.requests, spent.creates.requests, spent.reads.requests) == (2, 1, 1)
    assert (after.chunks.hits, after.chunks.misses, after.chunks.items) == (1, 1, 1)
