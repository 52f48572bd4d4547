"""Two writers, a reader and a collector on one bucket, interleaved request by request, with checks of the results.

Each actor runs in its own thread, and only one runs at a time. A seed decides which actor runs after each request,
which one pauses, when time passes the grace time, and which replies are lost. The results that the actors got must be
true at the end: no segment is lost that a writer may delete locally, no segment appears that no actor wrote, and no
reader saw a history that did not happen. Planted bugs prove that the search detects violations.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from sim_objects import ObjectFault, SimObjectStore, SimRequest, random_faults
from stratalog.errors import FencedEpochError, ObjectNotFoundError, StorageError, StoreError
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.batches import Buffer
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.objects import ByteSource, Created, ObjectInfo
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment, source_bytes
from stratalog.tier.commit import append_change
from stratalog.tier.commit.committer import Committer, Decide
from stratalog.tier.commit.trim_change import ExpireReport
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.head import ClockReading, HeadFinder
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.root import Head, Root, object_keys
from stratalog.tier.manifest.root_codec import encode_root, parse_root
from stratalog.tier.store.object_keys import log_prefix, manifest_key, manifest_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS, Collector
from tier_bed import TierBed

LOSSES = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED)
SEEDS = 800
PLANTED_SEEDS = 3_000  # the planted bug that is hardest to find needs about 250


class ViolationError(Exception):
    """An invariant does not hold."""


def demand(truth: object, finding: str) -> None:
    if not truth:
        raise ViolationError(finding)


class Actor(threading.Thread):
    """Thread that runs a job, and waits for its turn before each request. The driver raises its errors."""

    def __init__(self, name: str, job: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._job, self._go, self._pause = job, threading.Lock(), threading.Lock()
        self._go.acquire()  # a lock that one thread acquires and another one releases is a fast semaphore
        self._pause.acquire()
        self.done = False
        self.next_kind = ""  # kind of the request that the actor will send next
        self.error: BaseException | None = None

    def run(self) -> None:
        self._go.acquire()
        try:
            self._job()
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self.error = error
        self.done = True
        self._pause.release()

    def wait_for_turn(self, request: SimRequest) -> None:
        """Wait until the driver lets this actor continue. The store calls this before each request."""
        self.next_kind = request.kind
        self._pause.release()
        self._go.acquire()

    def step(self) -> None:
        """Run the actor up to its next request."""
        self._go.release()
        self._pause.acquire()
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class Client:
    """The tier and the store of one actor."""

    log: TierLog
    store: SimObjectStore
    actor: Actor | None = None
    sources: list[SegmentSource] = field(default_factory=list)


class Story:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a seed repeats it
        self.bed = TierBed(seed=seed * 10)
        self.bed.config = replace(self.bed.config, store_retries=1)
        self.bed.limits = replace(self.bed.limits, chunk_cache_bytes=0)
        self.kept: list[SegmentSource] = []  # segments that a writer was allowed to delete
        self.log_start = 0  # the log start that an expiry returned
        self.attempted: set[tuple[int, int, bytes]] = set()
        self.seen: set[str] = set()  # hashes of the roots that readers used
        self.actors: list[Actor] = []

    def run(self) -> None:
        """Run the actors, then check the bucket."""
        old, restarted, new, reader = self.client(), self.client(), self.client(), self.client()
        self.start("old", old, lambda: self.write(old, b"old", epoch=1, first=0))
        if self.chance.random() < 0.5:  # the engine is started again while its first process still runs
            self.start("again", restarted, lambda: self.write_again(restarted, old))
        self.start("new", new, lambda: self.write(new, b"new", epoch=2, first=None))
        self.start("third", third := self.client(), lambda: self.write(third, b"third", epoch=3, first=None))
        self.start("reader", reader, lambda: self.watch(reader))
        self.start("sweeper", sweeper := self.client(), lambda: self.sweep(sweeper))
        self.drive()
        if self.chance.random() < 0.5:
            self.bed.bucket.deliver()
        self.compare()

    # --- actors --------------------------------------------------------------------------------------------------

    def client(self) -> Client:
        store = SimObjectStore(self.bed.bucket)
        return Client(self.bed.open(store).log(LOG, TOPIC_ID), store)

    def start(self, name: str, client: Client, job: Callable[[], None]) -> None:
        client.actor = Actor(name, job)
        client.store.before = client.actor.wait_for_turn
        client.store.faults = random_faults(self.chance, self.chance.choice((0, 0, 0.1, 0.3)), LOSSES)
        client.actor.start()
        self.actors.append(client.actor)

    def write(self, client: Client, tag: bytes, *, epoch: int, first: int | None) -> None:
        """Offload, expire and collect until the writer is fenced.

        If ``first`` is None, the writer continues at the end of the tier, with other bytes.
        """
        try:
            for _ in range(self.chance.randrange(3, 12)):
                self.one_duty(client, tag, epoch, first)
        except FencedEpochError:
            return

    def write_again(self, client: Client, before: Client) -> None:
        """Write like a second process of the same engine, which finds the log in the state of the first one."""
        client.sources[:] = before.sources
        self.write(client, b"old", epoch=1, first=0)

    def one_duty(self, client: Client, tag: bytes, epoch: int, first: int | None) -> None:
        draw = self.chance.random()
        try:
            if draw < 0.7:
                self.offload(client, tag, epoch, first)
            elif draw < 0.85:
                log_start = client.log.view().start_offset + self.chance.choice((3, 10))
                if log_start <= client.log.view().end_offset:
                    report = client.log.expire(log_start, leader_epoch=epoch, reason="a test")
                    self.log_start = max(self.log_start, report.log_start)
            else:
                client.log.collect(leader_epoch=epoch)
        except StoreError:
            return
        except StorageError as error:
            if type(error) is not StorageError or first is not None:
                raise
            client.sources.clear()  # another writer was faster: take over again at the current end of the tier

    def offload(self, client: Client, tag: bytes, epoch: int, first: int | None) -> None:
        if not client.sources:
            self.extend(client, tag, epoch, client.log.refresh().end_offset if first is None else first)
        elif self.chance.random() < 0.7:
            self.extend(client, tag, epoch, client.sources[-1].info.end_offset)
        view = client.log.view()
        sources = [source for source in client.sources if source.info.end_offset > view.log_start]
        client.log.offload(sources, layout="pair", leader_epoch=epoch, log_start=view.log_start, high_watermark=1 << 20)
        self.kept += sources

    def extend(self, client: Client, tag: bytes, epoch: int, base_offset: int) -> None:
        # two processes split the same log into the same segments
        end = base_offset + (5 if (base_offset + epoch) % 3 else 10)
        source = made_segment(
            base_offset, end, data=b"%b %d %d" % (tag, base_offset, end), files={}, leader_epoch=epoch
        )
        self.attempted.add((base_offset, end, source_bytes(source.log)))
        client.sources.append(source)

    def watch(self, client: Client) -> None:
        """Refresh and read several times; the version of the view must not decrease."""
        before: RemoteView | None = None
        for _ in range(self.chance.randrange(2, 12)):
            asked_ms = self.bed.clock.now_ms()
            try:
                view = client.log.refresh()
                if client.log.root is not None:
                    self.seen.add(sha256_of(encode_root(client.log.root)))
                if before is not None:
                    demand(view.version >= before.version, "a reader went back in time")
                before = view
                for segment in tuple(view.segments)[:1]:  # the tuple needs all pages
                    bytes(segment.read(0, 100))
            except ObjectNotFoundError as error:
                demand(self.bed.clock.now_ms() - asked_ms >= GRACE_MS, f"a reader met a missing object: {error}")
            except StoreError:
                continue

    def sweep(self, client: Client) -> None:
        for _ in range(self.chance.randrange(2, 9)):
            try:
                client.log.collect()
            except StoreError:
                continue

    # --- the driver ----------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Run the actors in random order. One actor may pause in a request until the others are done."""
        running = list(self.actors)
        sleeper = self.chance.choice([None, self.actors[0], *self.actors])
        dozes_in = self.chance.choice(("create", "create", "read", "list", "delete"))
        asleep = False
        while running:
            awake = [actor for actor in running if actor is not sleeper or not asleep] or running
            busy = awake[: self.chance.randrange(1, len(awake) + 1)]  # earlier actors are chosen more often
            actor = self.chance.choice(busy)
            actor.step()
            if actor is sleeper and actor.next_kind == dozes_in and self.chance.random() < 0.4:
                asleep = True
            if actor.done:
                running.remove(actor)
            draw = self.chance.random()
            if draw < 0.08:
                self.bed.clock.advance_ms(self.chance.choice((1_000, GRACE_MS + 1_000)))
            elif draw < 0.12:
                self.bed.bucket.deliver()

    # --- the checks ----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        late = TierBed(clock=self.bed.clock, limits=self.bed.limits)
        late.bucket = self.bed.bucket
        log = late.open(read_only=True).log(LOG, TOPIC_ID)
        view, root = log.view(), log.root
        if root is None:
            demand(not self.kept and not self.seen, "everything is gone")
            return
        demand(view.log_start >= self.log_start, "the log start fell")
        stored_segments = set[tuple[int, int, bytes]]()
        for segment in view.segments:
            try:
                data = bytes(segment.read(0, 100))
            except ObjectNotFoundError:
                raise ViolationError(f"the head names a missing object {segment.label}") from None
            stored_segments.add((segment.base_offset, segment.end_offset, data))
        demand(stored_segments <= self.attempted, "a segment appeared that nobody wrote")
        for source in self.kept:
            expected = (source.info.base_offset, source.info.end_offset, source_bytes(source.log))
            demand(
                expected in stored_segments or expected[1] <= view.log_start,
                f"lost: {expected} log_start={view.log_start}",
            )
        chain = self.chain(sha256_of(encode_root(root)))
        demand(self.seen <= chain, "a reader saw a history that did not happen")
        self.compare_older_roots(chain)

    def compare_older_roots(self, chain: set[str]) -> None:
        """Check that roots that were superseded within the grace time can still be read."""
        objects = self.bed.bucket.objects
        roots = [objects[key] for key in self.bed.bucket.keys(manifest_prefix(log_prefix(LOG, TOPIC_ID)))]
        for (data, _), (_, superseded_ms) in itertools.pairwise(roots):
            if sha256_of(data) in chain and self.bed.clock.now_ms() - superseded_ms < GRACE_MS:
                try:
                    names = object_keys(walk(parsed(data), self.bed.pages()))
                except ObjectNotFoundError:
                    raise ViolationError("an older root names a missing page") from None
                demand(names <= set(objects), "an older root names a missing object")

    def chain(self, sha256: str) -> set[str]:
        """Return the hashes of all ancestors of a root and of the root, collected ones included."""
        prefix = manifest_prefix(log_prefix(LOG, TOPIC_ID))
        roots = [data for key, data in self.bed.bucket.history if key.startswith(prefix)]
        by_hash = {sha256_of(data): parsed(data).parent_sha256 for data in roots}
        hashes = set[str]()
        while sha256:
            demand(sha256 in by_hash and sha256 not in hashes, "a root names a parent that was never written")
            hashes.add(sha256)
            sha256 = by_hash[sha256]
        return hashes


def parsed(data: bytes) -> Root:
    version = int(json.loads(data)["version"])
    return parse_root(data, LOG, TOPIC_ID, version, limit_bytes=len(data)).root


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages small, so that short runs have pages of pages."""
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)


def search(seeds: int, first: int = 0) -> str:
    """Run stories until one fails. Return the seed and the finding, or "" if all succeed."""
    for seed in range(first, first + seeds):
        try:
            Story(seed).run()
        except Exception as error:  # noqa: BLE001 - any refusal that the story does not expect is a finding
            return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.long
def test_no_segment_is_lost_and_none_appears() -> None:
    assert search(SEEDS) == ""


# --- planted bugs ------------------------------------------------------------------------------------------------


def skip_the_listing(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: treat a created root as committed without a listing."""

    def confirm(self: Committer, head: Head) -> Head:
        self._finder.set_head(head, ClockReading.of(self._env.clock))
        return head

    patch.setattr(Committer, "_confirm", confirm)


def take_exists_for_success(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: if the root exists, do not check which writer created it."""
    patch.setattr(Committer, "_create", _blind_create((Created.CREATED, Created.EXISTS)))


def take_silence_for_success(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: after a lost reply, treat the commit as successful without reading the root."""
    patch.setattr(Committer, "_create", _blind_create((Created.CREATED, Created.UNKNOWN)))


def _blind_create(successes: tuple[Created, ...]) -> Callable[[Committer, Head, bytes], bool]:
    def create(self: Committer, head: Head, data: bytes) -> bool:
        return self._store.create(manifest_key(self._finder.prefix, head.root.version), data) in successes

    return create


def go_on_though_fenced(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a higher leader epoch does not fence a writer."""
    patch.setattr(Committer, "_check_fenced", lambda *_: None)
    patch.setattr(entry_tree, "regression", lambda *_: "")


def mistake_others_records_for_ours(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: skip the upload of a range that is in the tier, even if another writer wrote it."""
    patch.setattr(append_change, "_check_lineage", lambda *_: None)


def trust_an_old_head(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: request only the next version, although the head was verified too long ago."""
    patch.setattr(HeadFinder, "is_warm", property(lambda finder: finder._verified is not None))  # noqa: SLF001 - plants a bug


def collect_young_roots(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: collect without a grace time."""
    patch.setattr(Collector, "_is_past", lambda *_: True)


def collect_uploads_under_way(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: delete objects without a root in every leader epoch."""
    patch.setattr(Collector, "_epoch_of", lambda *_: -1)


def collect_our_own_without_a_root(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: delete objects of the own epoch although another process of the epoch may still commit them."""
    patch.setattr(TierLog, "_fence", lambda log, _: contextlib.nullcontext(log.root))


def delete_what_older_roots_name(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: delete objects that only older roots refer to, although readers may still use these roots."""
    patch.setattr(Collector, "collect_orphans", _orphans_of_the_head_only(Collector.collect_orphans))


def _orphans_of_the_head_only(collect: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    return lambda self, _, head: collect(self, (), head)


def expire_objects_first(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: delete objects before the commit of the root that no longer refers to them."""
    expire = TierLog.expire

    def hasty(self: TierLog, log_start: int, *, leader_epoch: int, reason: str) -> ExpireReport:
        root = self.root
        for entry in walk(root, self.pages) if root else ():
            if entry.info.end_offset <= log_start:
                self.objects.delete(sorted(entry.keys))
        return expire(self, log_start, leader_epoch=leader_epoch, reason=reason)

    patch.setattr(TierLog, "expire", hasty)


def commit_before_uploading(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the root refers to an object that is uploaded later."""
    put, create = TierStore.put, TierStore.create
    waiting: dict[TierStore, Callable[[], object]] = {}

    def later(self: TierStore, key: str, source: ByteSource) -> ObjectInfo:
        waiting[self] = lambda: put(self, key, source)
        return ObjectInfo(key, source.size_bytes)

    def create_first(self: TierStore, key: str, data: Buffer) -> Created:
        created = create(self, key, data)
        waiting.pop(self, lambda: None)()
        return created

    patch.setattr(TierStore, "put", later)
    patch.setattr(TierStore, "create", create_first)


def tidy_up_after_an_uncertain_commit(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: treat a commit without a response as failed, and delete its object."""
    put, commit = TierStore.put, Committer.commit
    last: dict[TierStore, str] = {}

    def remember(self: TierStore, key: str, source: ByteSource) -> ObjectInfo:
        last[self] = key
        return put(self, key, source)

    def tidy(self: Committer, leader_epoch: int, decide: Decide) -> Root | None:
        try:
            return commit(self, leader_epoch, decide)
        except StoreError:
            self._store.delete([last[self._store]] if self._store in last else [])
            raise

    patch.setattr(TierStore, "put", remember)
    patch.setattr(Committer, "commit", tidy)


PLANTED = [
    skip_the_listing,
    take_exists_for_success,
    take_silence_for_success,
    go_on_though_fenced,
    mistake_others_records_for_ours,
    trust_an_old_head,
    collect_young_roots,
    collect_uploads_under_way,
    collect_our_own_without_a_root,
    delete_what_older_roots_name,
    expire_objects_first,
    commit_before_uploading,
    tidy_up_after_an_uncertain_commit,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.long
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert search(PLANTED_SEEDS) != ""
