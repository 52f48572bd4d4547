"""Invariants of a log in two tiers, checked before every operation on the disk and every request to the store.

If the process is killed there, each acknowledged record is in at least one tier, the tier has no record that was not
written, and no root refers to a missing object. For some of these states, a new engine opens the log; its records must
be right before and after one more run of each duty.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from sim_objects import ObjectFault, SimBucket, random_faults
from sim_tier import URI, SimTier
from stratalog import Engine, Record, open_engine
from stratalog.cleaning.plan import retention
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import StorageError, StoreError
from stratalog.log.change import delete
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.segment_info import FileKind
from stratalog.spi import ByteSource, ObjectInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.faults import FaultyVfs
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.page_codec import parse_page
from stratalog.tier.manifest.root import PageRef, Root, object_keys
from stratalog.tier.manifest.root_codec import parse_root
from stratalog.tier.store.object_keys import log_prefix, manifest_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep import collect
from stratalog.tier.upkeep.collect import GRACE_MS

STATES, STEPS, PLANTED_SEEDS = 20_000, 70, 14
REOPENED_SHARE = 0.002
CONFIG: Final = {
    "segment.bytes": 400,
    "index.interval.bytes": 100,
    "file.delete.delay.ms": 0,
    "retention.bytes": 2_500,
    "local.retention.bytes": 900,
    "retention.ms": -1,
}
LOG: Final = TopicPartition("t", 0)
LOSSES: Final = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED)


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Story:
    """One seeded run over an engine's directory and a bucket."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.chance = random.Random(seed)  # noqa: S311 - a failure is replayed from its seed
        self.clock, self.files = ManualClock(), FaultyVfs()
        self.bucket = SimBucket(self.clock)
        self.sent: list[bytes] = []
        self.written: dict[int, bytes] = {}  # closed segments, by base offset
        self.states = self.reopened = 0
        self.watching = False
        self.topic_id: TopicId | None = None

    def engine(self, folder: Path, bucket: SimTier, files: FaultyVfs | None = None) -> Engine:
        env = Env(clock=self.clock, chance=random.Random(self.seed), files=files or FaultyVfs())  # noqa: S311 - as above
        settings = {"log.dirs": [str(folder)], "store.retries": 1, "remote.log.manager.copier.thread.pool.size": 1}
        return open_engine(config=settings, tier=URI, plugins=[bucket], env=env)

    def run(self) -> None:
        plugin = SimTier(self.bucket, lambda _: self.look())
        with self.engine(self.folder / "data", plugin, self.files) as engine:
            self.topic_id = engine.create_topic("t", config=CONFIG).topic_id
            share = self.chance.choice((0, 0.05, 0.2))
            plugin.store.faults = random_faults(self.chance, share, LOSSES)
            self.files.rule, self.watching = lambda *_: self.look(), True
            for _ in range(STEPS):
                self.step(engine)
            self.watching, self.files.rule = False, None

    def step(self, engine: Engine) -> None:
        log, chance = engine.log("t", 0), self.chance
        kind = chance.choices(("append", "roll", "offload", "retention", "collect", "time"), (10, 2, 4, 4, 2, 2))[0]
        try:
            if kind == "append":
                values = [b"%d" % (len(self.sent) + number) + b"." * chance.randrange(80) for number in range(2)]
                log.append([Record(timestamp_ms=self.clock.now_ms(), value=value) for value in values])
                self.sent += values
            elif kind == "roll":
                log.roll()
            elif kind == "offload":
                self.remember(engine)
                engine.offload()
            elif kind == "retention":
                engine.apply_retention()
            elif kind == "collect":
                engine.collect()
            else:
                self.clock.advance_ms(chance.choice((1_000, GRACE_MS + 1_000)))
                self.bucket.deliver()
        except StoreError:
            return

    def remember(self, engine: Engine) -> None:
        for segment in engine.log("t", 0).view().segments[:-1]:
            self.written[segment.base_offset] = bytes(segment.read(0, segment.size_bytes))

    # --- the invariants ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check the state that a kill now would leave."""
        if not self.watching:
            return
        self.watching = False
        try:
            self.states += 1
            self.judge()
            if self.chance.random() < REOPENED_SHARE:
                self.open_again()
        finally:
            self.watching = True

    def judge(self) -> None:
        root = self.head()
        names = os.listdir(self.folder / "data" / "t-0")  # noqa: PTH208 - very often
        local_start = min(int(name[:20]) for name in names if name.endswith(".log"))
        if root is None or not root.segments:
            return self.demand(local_start <= (root.log_start if root else 0), "gone from disk, and not in the tier")
        self.demand(local_start <= root.end_offset, f"lost: [{root.end_offset}, {local_start})")
        self.demand(root.start_offset <= root.log_start or root.start_offset == 0, "the tier begins too late")
        position = root.start_offset
        for entry in self.entries(root):
            self.demand(entry.info.base_offset == position, f"a gap at {position}")
            position = entry.info.end_offset
            place = entry.slices[FileKind.LOG]
            obj = self.bucket.objects.get(place.key)
            self.demand(obj is not None, f"dangling: {place.key}")
            assert obj is not None
            data = obj[0][place.position : place.position + place.size_bytes]
            self.demand(data == self.written[entry.info.base_offset], f"phantom: {place.key}")
        return self.demand(position == root.end_offset, "the tier ends too early")

    def demand(self, truth: object, finding: str) -> None:
        if not truth:
            raise ViolationError(f"seed {self.seed} state {self.states}: {finding}")

    def head(self) -> Root | None:
        assert self.topic_id is not None
        keys = self.bucket.keys(manifest_prefix(log_prefix(LOG, self.topic_id)))
        if not keys:
            return None
        data = self.bucket.objects[keys[-1]][0]
        return parse_root(data, LOG, self.topic_id, int(keys[-1][-20:]), limit_bytes=1 << 20).root

    def entries(self, root: Root) -> Iterable[StoredSegment]:
        story = self

        class Objects:
            prefix = root.prefix

            def entries(self, ref: PageRef) -> tuple[StoredSegment, ...]:
                return tuple(item for item in self._read(ref) if isinstance(item, StoredSegment))

            def refs(self, ref: PageRef) -> tuple[PageRef, ...]:
                return tuple(item for item in self._read(ref) if isinstance(item, PageRef))

            def _read(self, ref: PageRef) -> tuple[object, ...]:
                obj = story.bucket.objects.get(ref.key(root.prefix))
                story.demand(obj is not None, f"dangling: page at {ref.base_offset}")
                assert obj is not None
                return parse_page(obj[0], LOG, root.topic_id, ref)

        return entry_tree.walk(root, Objects())  # type: ignore[arg-type] # the pages, round the store

    def open_again(self) -> None:
        """Open a new engine over a copy of the directory and the bucket, and check the log."""
        self.reopened += 1
        folder = self.folder / f"again-{self.states}"
        shutil.copytree(self.folder / "data", folder)
        bucket = SimBucket(self.clock, objects=dict(self.bucket.objects))
        with self.engine(folder, SimTier(bucket)) as engine:
            log = engine.log("t", 0)
            for _ in range(2):
                bounds = log.offsets()
                rows = [(record.offset, record.value) for record in log.records()]
                expected = list(enumerate(self.sent))[bounds.log_start : bounds.log_end]
                acknowledged = min(bounds.log_end, len(self.sent))
                self.demand(rows[: len(expected)] == expected, "records are not those that were sent")
                self.demand(acknowledged == len(self.sent), "acknowledged records are gone")
                engine.offload()
                engine.apply_retention()
                engine.collect()
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)


@pytest.mark.long
def test_nothing_is_lost_nothing_appears_nothing_dangles(tmp_path: Path) -> None:
    states = reopened = seed = 0
    while states < STATES:
        story = Story(tmp_path / str(seed), seed)
        story.run()
        shutil.rmtree(tmp_path / str(seed))
        states, reopened, seed = states + story.states, reopened + story.reopened, seed + 1
    assert reopened > STATES * REOPENED_SHARE / 2


def evict_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: evict local segments before their upload is committed (Redpanda #29674)."""
    cut_of = retention.cut_of
    patch.setattr(retention, "cut_of", lambda actions, limit: cut_of(actions, 1 << 40 if limit else limit))
    patch.setattr(delete, "removable_end", lambda state: state.log_end)  # the second check, by the log itself


def collect_the_head(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: delete objects that the head refers to."""
    patch.setattr(collect, "removed_objects", lambda before, *_: object_keys(before.entries))


def commit_without_upload(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the root refers to an object that was never stored."""

    def promised(self: TierStore, key: str, source: ByteSource) -> ObjectInfo:
        del self
        return ObjectInfo(key, source.size_bytes)

    patch.setattr(TierStore, "put", promised)


def play(folder: Path) -> None:
    for seed in range(PLANTED_SEEDS):
        Story(folder / str(seed), seed).run()


@pytest.mark.parametrize("plant", [evict_before_commit, collect_the_head, commit_without_upload])
@pytest.mark.long
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((ViolationError, StorageError)):
        play(tmp_path)
