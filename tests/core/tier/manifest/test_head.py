from __future__ import annotations

import pytest

from sim_objects import SimObjectStore, SimRequest
from stratalog.errors import CorruptManifestError
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.manifest.head import WARM_HEAD_MS, WARM_HITS, ClockReading, HeadFinder
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier_log import TierLog
from tier_bed import TierBed, offload

PREFIX = log_prefix(LOG, TOPIC_ID)


def finder_over(bed: TierBed, store: SimObjectStore | None = None) -> tuple[HeadFinder, SimObjectStore]:
    store = store or SimObjectStore(bed.bucket)
    guarded = TierStore(store, bed.env(), bed.config)
    return bed.finder(guarded), store


def writer(bed: TierBed) -> TierLog:
    return bed.open().log(LOG, TOPIC_ID)


def version(finder: HeadFinder) -> int:
    head = finder.find()
    return head.root.version if head else 0


def test_no_root_is_no_head() -> None:
    finder, store = finder_over(TierBed())
    assert finder.find() is None
    assert finder.first_version == 0
    assert (store.counts["list"], store.counts["read"]) == (1, 0)


def test_a_cold_head_is_listed_and_a_warm_one_asked_for() -> None:
    bed = TierBed()
    log = writer(bed)
    offload(log, 0, 10)
    finder, store = finder_over(bed)
    assert version(finder) == 1
    assert (store.counts["list"], store.counts["read"]) == (1, 1)
    assert version(finder) == 1
    assert (store.counts["list"], store.counts["read"]) == (1, 2)
    offload(log, 10, 20)
    assert version(finder) == 2
    assert (store.counts["list"], store.counts["read"]) == (1, 4)
    assert finder.first_version == 1


def test_a_listing_of_others_saves_the_own_one() -> None:
    bed = TierBed()
    log = writer(bed)
    offload(log, 0, 10)
    finder, store = finder_over(bed)

    def listed(version: int) -> int:
        head = finder.find_listed(version, ClockReading.of(bed.clock))
        return head.root.version if head else 0

    assert listed(1) == 1
    assert listed(1) == 1
    assert store.counts == {"read": 1}
    offload(log, 10, 20, 30)
    assert listed(3) == 3
    assert store.counts == {"read": 2}
    assert listed(1) == 3  # a stale listing without the head
    bed.bucket.objects.pop(manifest_key(finder.prefix, 3))
    bed.clock.advance_ms(WARM_HEAD_MS + 1)
    with pytest.raises(CorruptManifestError):
        listed(2)


def test_many_newer_roots_are_listed() -> None:
    bed = TierBed()
    log = writer(bed)
    offload(log, 0, 10)
    finder, store = finder_over(bed)
    finder.find()
    offload(log, *range(10, 110, 10))
    assert version(finder) == 10
    assert (store.counts["list"], store.counts["read"]) == (2, 1 + WARM_HITS + 1)


@pytest.mark.parametrize("wall_ms", [WARM_HEAD_MS + 1, -1])
def test_a_head_not_verified_lately_is_listed(wall_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = TierBed()
    offload(writer(bed), 0, 10)
    finder, store = finder_over(bed)
    finder.find()
    if wall_ms > 0:
        bed.clock.advance_ms(wall_ms)
    else:
        earlier_ns = bed.clock.monotonic_ns() - 1_000_000
        monkeypatch.setattr(bed.clock, "monotonic_ns", lambda: earlier_ns)
        monkeypatch.setattr(bed.clock, "now_ms", lambda: earlier_ns // 1_000_000)
    assert not finder.is_warm
    assert version(finder) == 1
    assert store.counts["list"] == 2


def test_a_stale_root_that_is_created_again_does_not_become_the_head() -> None:
    """A writer paused for longer than the grace time, and then created a version again that had been collected.

    A reader that also paused for so long searches for the head.
    """
    bed = TierBed()
    log = writer(bed)
    offload(log, 0, 10)
    finder, _ = finder_over(bed)
    finder.find()
    offload(log, *range(10, 60, 10))
    stale = bed.bucket.objects[manifest_key(PREFIX, 2)][0]
    bed.clock.advance_ms(10_000_000)
    log.collect()
    bed.bucket.write(manifest_key(PREFIX, 2), stale)
    assert version(finder) == 5


def test_an_object_that_is_no_root_is_no_head() -> None:
    bed = TierBed()
    offload(writer(bed), 0, 10)
    bed.bucket.write(f"{PREFIX}manifest/notes.txt", b"hello")
    bed.bucket.write(f"{PREFIX}manifest/999", b"hello")
    assert version(finder_over(bed)[0]) == 1


@pytest.mark.parametrize("cold", [False, True])
def test_a_changed_history_is_an_error(*, cold: bool) -> None:
    bed, other_bed = TierBed(), TierBed(seed=100)
    offload(writer(bed), 0, 10)
    log = writer(other_bed)
    offload(log, 0, 10)
    offload(log, 10, 20)
    finder, _ = finder_over(bed)
    finder.find()
    for key in other_bed.bucket.keys(f"{PREFIX}manifest/"):
        bed.bucket.write(key, other_bed.bucket.objects[key][0])
    with pytest.raises(CorruptManifestError, match="does not continue version 1"):
        finder.find(cold=cold)


def test_a_history_changed_far_back_is_an_error() -> None:
    bed, other_bed = TierBed(), TierBed(seed=100)
    offload(writer(bed), 0, 10)
    offload(writer(other_bed), *range(0, 200, 10))
    finder, _ = finder_over(bed)
    finder.find()
    for key in other_bed.bucket.keys(f"{PREFIX}manifest/"):
        bed.bucket.write(key, other_bed.bucket.objects[key][0])
    with pytest.raises(CorruptManifestError, match="does not continue"):
        finder.find(cold=True)


def test_a_manifest_that_is_missing_or_older_is_an_error() -> None:
    bed = TierBed()
    offload(writer(bed), 0, 10, 20)
    finder, _ = finder_over(bed)
    finder.find()
    for version in (2, 1):
        del bed.bucket.objects[manifest_key(PREFIX, version)]
        with pytest.raises(CorruptManifestError, match="missing"):
            finder.find(cold=True)


def test_a_root_collected_between_listing_and_reading_is_searched_again() -> None:
    bed = TierBed()
    log = writer(bed)
    offload(log, 0, 10)
    store = SimObjectStore(bed.bucket)
    finder, _ = finder_over(bed, store)

    def meanwhile(request: SimRequest) -> None:
        if request.kind == "read":
            store.before = None
            offload(log, 10, 20)
            del bed.bucket.objects[manifest_key(PREFIX, 1)]

    store.before = meanwhile
    assert version(finder) == 2


def test_a_store_that_lists_what_it_does_not_have_is_an_error() -> None:
    bed = TierBed()
    offload(writer(bed), 0, 10)
    key = manifest_key(PREFIX, 1)
    data = bed.bucket.objects[key]
    store = SimObjectStore(bed.bucket)

    def inconsistent(request: SimRequest) -> None:
        if request.kind == "read":
            bed.bucket.objects.pop(key)
        else:
            bed.bucket.objects[key] = data

    store.before = inconsistent
    with pytest.raises(CorruptManifestError, match="the object is listed but does not exist"):
        finder_over(bed, store)[0].find()


def test_a_root_above_the_limit_is_not_read_whole() -> None:
    bed = TierBed()
    offload(writer(bed), 0, 10)
    bed.bucket.write(manifest_key(PREFIX, 2), b" " * (bed.limits.manifest_bytes + 100))
    finder, store = finder_over(bed)
    with pytest.raises(CorruptManifestError, match="larger than"):
        finder.find()
    assert store.counts["read"] == 1
