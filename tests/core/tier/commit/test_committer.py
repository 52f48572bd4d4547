from __future__ import annotations

from collections.abc import Callable

import pytest

from sim_objects import ObjectFault, SimBucket, SimObjectStore, SimRequest, scripted_faults
from stratalog.errors import ConfigError, CorruptManifestError, FencedEpochError, StoreThrottledError, StoreTimeoutError
from stratalog.model.batches import Buffer
from stratalog.spi.objects import Created
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.commit.committer import Committer, Decide
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.manifest.root import RECENT_COMMITS, Change, ChangeKind, Root
from stratalog.tier.store.object_keys import log_prefix, manifest_key, manifest_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep.collect import GRACE_MS, Collector
from tier_bed import TierBed

PREFIX = log_prefix(LOG, TOPIC_ID)


class Writer:
    """One writer process, with its own store over the shared bucket."""

    def __init__(self, bed: TierBed, *, shared: bool = True, limit_bytes: int = 1 << 20, retries: int = 0) -> None:
        self.store = SimObjectStore(bed.bucket)
        env = bed.env()
        self.guarded = TierStore(self.store, env, type(bed.config)(store_retries=retries, tier_verify="first"))
        self.finder = bed.finder(self.guarded)
        self.pages = Pages(self.guarded, LOG, TOPIC_ID, PageCache(), limit_bytes=1 << 20)
        self.committer = Committer(self.guarded, self.finder, self.pages, env, limit_bytes=limit_bytes, shared=shared)
        self.bed = bed

    def commit(self, epoch: int = 0, reason: str = "raise") -> Root:
        root = self.committer.commit(epoch, raising(reason))
        assert root is not None
        return root

    def collect(self) -> None:
        Collector(self.guarded, self.finder, self.pages, self.bed.clock).collect()

    def before(self, kind: str, action: Callable[[], object]) -> None:
        """Run ``action`` once, before the next request of this kind."""

        def hook(request: SimRequest) -> None:
            if request.kind == kind:
                self.store.before = None
                action()

        self.store.before = hook

    def after_create(self, action: Callable[[], object]) -> None:
        """Run ``action`` between a create and the request behind it."""

        def then(request: SimRequest) -> None:
            del request
            self.store.before = None
            action()

        self.before("create", lambda: setattr(self.store, "before", then))

    def faults(self, **kinds: list[ObjectFault]) -> None:
        """Let the next requests of each kind have these outcomes."""
        self.store.faults = lambda request: kinds[request.kind].pop(0) if kinds.get(request.kind) else ObjectFault.NONE


def raising(reason: str = "raise") -> Decide:
    """Return a decision that increases the log start by one. The log start therefore counts the commits."""

    def decide(root: Root | None) -> Change:
        log_start = root.log_start + 1 if root else 1
        return Change(kind=ChangeKind.EXPIRE, reason=reason, log_start=log_start, high_watermark=log_start)

    return decide


def versions(bed: TierBed) -> list[int]:
    return [int(key.rpartition("/")[2]) for key in bed.bucket.keys(manifest_prefix(PREFIX))]


def test_commits_follow_each_other_and_cost_two_requests() -> None:
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    before = writer.guarded.metrics()
    root = writer.commit()
    assert (root.version, root.log_start) == (2, 2)
    spent = writer.guarded.metrics() - before
    assert (spent.creates.requests, spent.lists.requests, spent.requests) == (1, 1, 2)


def test_nothing_to_do_commits_nothing() -> None:
    bed = TierBed()
    writer = Writer(bed)
    assert writer.committer.commit(0, lambda _: None) is None
    writer.commit()
    root = writer.committer.commit(0, lambda _: None)
    assert root is not None
    assert (root.version, versions(bed)) == (1, [1])


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_lost_replies_are_resolved_by_reading_back(fault: ObjectFault, times: int) -> None:
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    writer.faults(create=[fault] * times)
    assert writer.commit().version == 2
    bed.bucket.deliver()
    assert writer.commit().log_start == 3
    assert versions(bed) == [1, 2, 3]


def test_a_commit_without_a_reply_times_out_and_the_next_commit_finds_its_root() -> None:
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    writer.faults(create=[ObjectFault.REPLY_LOST], read=[ObjectFault.NOT_APPLIED])
    with pytest.raises(StoreTimeoutError):
        writer.commit()
    assert writer.commit().log_start == 3


def test_our_own_root_that_lands_late_is_built_on() -> None:
    """The create request of a failed commit arrives after the next commit has begun."""
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    writer.faults(create=[ObjectFault.LATE] * 4)
    with pytest.raises(StoreTimeoutError, match="does not report"):
        writer.commit()
    writer.before("create", bed.bucket.deliver)
    assert writer.commit().log_start == 3
    assert versions(bed) == [1, 2, 3]


def test_a_higher_epoch_fences_before_anything_is_written() -> None:
    bed = TierBed()
    old, new = Writer(bed), Writer(bed)
    old.commit(1)
    new.commit(2)
    creates = old.store.counts["create"]
    with pytest.raises(FencedEpochError, match="leader epoch 2, this writer has 1"):
        old.commit(1)
    with pytest.raises(FencedEpochError):
        old.commit(1)
    assert (versions(bed), old.store.counts["create"]) == ([1, 2], creates + 1)


def test_another_writer_of_the_same_epoch_fences() -> None:
    bed = TierBed()
    first, second = Writer(bed), Writer(bed)
    first.commit(1)
    second.commit(1)
    with pytest.raises(FencedEpochError, match="another writer in the same leader epoch 1"):
        first.commit(1)
    second.commit(1)
    assert versions(bed) == [1, 2, 3]


def test_a_root_that_appears_after_the_first_look_fences_too() -> None:
    bed = TierBed()
    first, second = Writer(bed), Writer(bed)
    first.finder.find()
    second.commit(1)
    with pytest.raises(FencedEpochError):
        first.commit(1)


def test_a_lower_epoch_that_won_the_race_is_built_on() -> None:
    bed = TierBed()
    old, new = Writer(bed), Writer(bed)
    old.commit(1)
    new.before("create", lambda: old.commit(1))
    assert (new.commit(2).version, versions(bed)) == (3, [1, 2, 3])
    with pytest.raises(FencedEpochError):
        old.commit(1)


def test_a_winner_of_a_higher_epoch_stops_the_loser() -> None:
    bed = TierBed()
    old, new = Writer(bed), Writer(bed)
    old.commit(1)
    old.before("create", lambda: new.commit(2))
    with pytest.raises(FencedEpochError):
        old.commit(1)
    assert versions(bed) == [1, 2]


def test_a_commit_that_was_built_on_at_once_counts() -> None:
    bed = TierBed()
    old, new = Writer(bed), Writer(bed)
    old.commit(1)
    old.after_create(lambda: new.commit(2))
    assert old.commit(1).version == 2
    assert versions(bed) == [1, 2, 3]
    with pytest.raises(FencedEpochError):
        old.commit(1)


def take_over(bed: TierBed, commits: int, *, collected: bool) -> Callable[[], None]:
    """Return a function with which another writer commits and, if requested, collects superseded roots."""

    def go() -> None:
        new = Writer(bed)
        for _ in range(commits):
            new.commit(2)
        if collected:
            bed.clock.advance_ms(2 * GRACE_MS)
            new.commit(2)
            bed.clock.advance_ms(GRACE_MS // 2)
            new.collect()

    return go


@pytest.mark.parametrize("commits", [2, 3, 5, 62, 63, 64, 100])
def test_a_writer_that_slept_past_the_collector_does_not_succeed(commits: int) -> None:
    bed = TierBed()
    old = Writer(bed)
    old.commit(1)
    old.before("create", take_over(bed, commits, collected=True))
    with pytest.raises(FencedEpochError, match=r"another writer continued|it is unknown"):
        old.commit(1)
    # the version is too far away to decide whether the root is stale
    left_behind = [2] if commits + 2 - 2 >= RECENT_COMMITS else []
    assert versions(bed) == [*left_behind, commits + 1, commits + 2]


@pytest.mark.parametrize("commits", [1, 5, 62])
def test_a_commit_that_counts_is_known_though_its_neighbours_were_collected(commits: int) -> None:
    bed = TierBed()
    old = Writer(bed)
    old.commit(1)
    old.after_create(take_over(bed, commits, collected=True))
    assert old.commit(1).version == 2
    with pytest.raises(FencedEpochError):
        old.commit(1)


def test_after_very_many_commits_the_result_is_unknown() -> None:
    bed = TierBed()
    old = Writer(bed)
    old.commit(1)
    old.after_create(take_over(bed, 70, collected=True))
    with pytest.raises(FencedEpochError, match="it is unknown"):
        old.commit(1)


def test_a_version_taken_and_collected_before_it_was_read_is_a_lost_race() -> None:
    bed = TierBed()
    old = Writer(bed)
    old.commit(1)

    def steal() -> None:
        take_over(bed, 5, collected=False)()
        bed.clock.advance_ms(2 * GRACE_MS)
        old.before("read", lambda: Writer(bed).collect())

    old.before("create", steal)
    with pytest.raises(FencedEpochError, match="leader epoch 2"):
        old.commit(1)


@pytest.mark.parametrize("commits", [1, 2])
def test_a_root_that_was_collected_before_its_writer_read_it_is_not_committed_twice(
    monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """The client library repeats a create whose reply was lost, and then reports that the object exists."""
    bed = TierBed()
    writer = Writer(bed)
    writer.commit(1)
    commit_of_others = take_over(bed, commits, collected=True)
    real = writer.store.create

    def repeated(key: str, data: Buffer, *, deadline_ns: int) -> Created:
        assert real(key, data, deadline_ns=deadline_ns) is Created.CREATED
        commit_of_others()
        return Created.EXISTS

    monkeypatch.setattr(writer.store, "create", repeated)
    root = writer.commit(1)
    assert (root.version, root.log_start) == (3 + commits, 3 + commits)
    with pytest.raises(FencedEpochError):
        writer.commit(1)


def test_losing_every_race_ends() -> None:
    bed = TierBed()
    old, new = Writer(bed), Writer(bed)

    def hook(request: SimRequest) -> None:
        if request.kind == "create":
            old.commit(1)

    new.store.before = hook
    with pytest.raises(StoreThrottledError, match="committed first in every attempt"):
        new.commit(2)


def test_a_failed_confirmation_is_not_reported_as_success() -> None:
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    writer.faults(list=[ObjectFault.NOT_APPLIED])
    with pytest.raises(StoreTimeoutError):
        writer.commit()
    assert writer.commit().log_start == 3


def test_a_damaged_newest_root_stops_the_writer() -> None:
    bed = TierBed()
    writer = Writer(bed)
    writer.commit()
    bed.bucket.write(manifest_key(PREFIX, 2), b"damaged")
    with pytest.raises(CorruptManifestError):
        writer.commit()


def test_a_root_above_the_limit_is_not_written() -> None:
    bed = TierBed()
    with pytest.raises(ConfigError, match=r"limits\.manifest\.bytes=100"):
        Writer(bed, limit_bytes=100).commit()
    assert versions(bed) == []


def test_a_single_writer_without_atomic_creation_overwrites_nothing() -> None:
    bed = TierBed()
    bed.bucket.atomic = False
    first, second = Writer(bed, shared=False), Writer(bed, shared=False)
    first.commit(1)
    second.commit(2)
    with pytest.raises(FencedEpochError):
        first.commit(1)
    assert [key for key, _ in bed.bucket.history] == [manifest_key(PREFIX, version) for version in (1, 2)]


def test_without_atomic_creation_a_root_is_read_back() -> None:
    bucket_is_wrong = SimBucket(atomic=False)
    bed = TierBed()
    bed.bucket = bucket_is_wrong
    first, second = Writer(bed, shared=False), Writer(bed, shared=False)
    first.commit(1)
    first.after_create(lambda: second.store.bucket.write(manifest_key(PREFIX, 2), b"{}"))
    with pytest.raises(CorruptManifestError):
        first.commit(1)


def test_scripted_faults_of_every_request_never_lose_or_double_a_commit() -> None:
    """Each of the first requests fails in each way. Every commit that returned is in the head, in order."""
    for fault in (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED):
        for number in range(12):
            bed = TierBed()
            writer = Writer(bed, retries=2)
            writer.store.faults = scripted_faults({number: fault, number + 1: fault})
            for commits in range(1, 6):
                root = writer.commit()
                assert root.log_start >= commits
            bed.bucket.deliver()
            assert Writer(bed).commit(1).log_start == root.log_start + 1
