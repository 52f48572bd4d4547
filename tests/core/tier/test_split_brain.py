"""Two writers on one log, one of them paused inside any request: each offset is acknowledged by one writer only.

While one writer is paused, the other one runs whole duties; replies are lost, requests arrive late, and the grace time
passes. The test needs no threads, and can therefore run many seeds.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sim_objects import ObjectFault, SimObjectStore, SimRequest, random_faults
from stratalog.errors import FencedEpochError, StorageError, StoreError
from stratalog.spi.layouts import SegmentSource
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment, source_bytes
from stratalog.tier.commit.committer import Committer
from stratalog.tier.manifest import entry_tree
from stratalog.tier.upkeep.collect import GRACE_MS
from tier_bed import TierBed

SEEDS = 2_000
LOSSES = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED)


class Engine:
    """One writer process, with its own log and the segments that it acknowledged as offloaded."""

    def __init__(self, bed: TierBed, name: bytes, epoch: int, chance: random.Random) -> None:
        self.store = SimObjectStore(bed.bucket)
        self.log = bed.open(self.store).log(LOG, TOPIC_ID)
        self.name, self.epoch, self.chance = name, epoch, chance
        self.segments: list[SegmentSource] = []
        self.acknowledged: list[SegmentSource] = []
        self.fenced = False

    def take_over(self) -> None:
        """Continue at the end of the tier, as an engine does when it attaches."""
        end = self.log.refresh().end_offset
        self.segments = [self.segment(end)]

    def segment(self, base: int) -> SegmentSource:
        end = base + self.chance.choice((5, 10))
        data = b"%b %d %d" % (self.name, base, end)
        return made_segment(base, end, data=data, files={}, leader_epoch=self.epoch)

    def duty(self) -> None:
        """Offload all segments, or collect. The segments are acknowledged only if the offload returns."""
        if self.fenced:
            return
        try:
            if self.chance.random() < 0.15:
                self.log.collect()
                return
            if not self.segments:
                self.log.create(leader_epoch=self.epoch, log_start=0, high_watermark=0)
                self.take_over()
            elif self.chance.random() < 0.7:
                self.segments.append(self.segment(self.segments[-1].info.end_offset))
            self.log.offload(self.segments, layout="pair", leader_epoch=self.epoch, log_start=0, high_watermark=1 << 20)
            self.acknowledged = list(self.segments)
        except FencedEpochError:
            self.fenced = True
        except StoreError:
            return
        except StorageError:
            if self.acknowledged:
                raise
            self.segments.clear()  # another writer was faster: attach again


def play(seed: int) -> str:
    """Run one seeded story; return the error at its end, or ""."""
    chance = random.Random(seed)  # noqa: S311 - a seed repeats it
    bed = TierBed(seed=seed * 10)
    bed.config = replace(bed.config, store_retries=1)
    first, second = Engine(bed, b"first", 1, chance), Engine(bed, b"second", chance.choice((1, 2, 2)), chance)
    share = chance.choice((0, 0.1, 0.3))
    for engine in (first, second):
        engine.store.faults = random_faults(chance, share, LOSSES)

    def interrupted(request: SimRequest) -> None:
        del request
        if chance.random() < 0.25:
            if chance.random() < 0.3:
                bed.clock.advance_ms(GRACE_MS + 1_000)
            for _ in range(chance.randrange(1, 4)):
                second.duty()

    first.duty()
    first.store.before = interrupted
    for _ in range(chance.randrange(2, 6)):
        first.duty()
        if chance.random() < 0.3:
            bed.bucket.deliver()
    return judge(bed, (first, second))


def judge(bed: TierBed, engines: tuple[Engine, Engine]) -> str:
    for engine in engines:
        engine.store.faults, engine.store.before = random_faults(engine.chance, 0, LOSSES), None
    bed.bucket.deliver()
    view = bed.open(read_only=True).log(LOG, TOPIC_ID).view()
    data_by_span = {(segment.base_offset, segment.end_offset): bytes(segment.read(0, 100)) for segment in view.segments}
    for engine in engines:
        for source in engine.acknowledged:
            span = source.info.base_offset, source.info.end_offset
            if data_by_span.get(span) != source_bytes(source.log):
                return (
                    f"{engine.name!r} got the result that {span} is safe, and the tier has {data_by_span.get(span)!r}"
                )
    return ""


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)


def search(seeds: int) -> str:
    outcomes = ((seed, play(seed)) for seed in range(seeds))
    return next((f"seed {seed}: {error}" for seed, error in outcomes if error), "")


@pytest.mark.long
def test_nothing_is_acknowledged_twice() -> None:
    assert search(SEEDS) == ""


def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_check_fenced", lambda *_: None)
    patch.setattr(entry_tree, "regression", lambda *_: "")


def no_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_confirm", lambda _, head: head)


def overwriting(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the store ignores conditions of creates, and no probe detects it."""
    init = TierBed.__post_init__

    def loose(self: TierBed) -> None:
        init(self)
        self.bucket.atomic = False

    patch.setattr(TierBed, "__post_init__", loose)
    patch.setattr("stratalog.tier.tier.probe", lambda *_: _Trusted())


class _Trusted:
    shared, reason = True, ""


@pytest.mark.parametrize("plant", [no_fence, no_confirmation, overwriting])
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with contextlib.suppress(StorageError):  # a broken chain that a reader refuses is also detected
        assert search(SEEDS) != ""
