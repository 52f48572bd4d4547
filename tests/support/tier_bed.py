"""Tier in memory with a simple layout, and made-up segments for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise

from sim_objects import SimBucket, SimObjectStore
from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.registry.component_kinds import TIER_LAYOUTS
from stratalog.registry.resolve import Catalogue, Offer
from stratalog.spi.layouts import ObjectSink, RangeReader, SegmentSource, StoredSegment, TierLayout
from stratalog.spi.objects import BytesSource, ObjectStore
from stratalog.spi.providers import Provider, Section
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.head import HeadFinder
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.manifest.root import object_keys
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.object_keys import log_prefix, segments_prefix
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upload.uploader import OffloadReport


class PairLayout(TierLayout):
    """Layout with two objects for each segment: the ``.log`` file, and all small files concatenated."""

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment."""
        del section
        digest = sha256()
        for chunk in source.log.chunks(1 << 20):
            digest.update(chunk)
        log = sink.put(source.log)
        slices = {FileKind.LOG: ObjectSlice(log.key, 0, log.size_bytes)}
        if source.files:
            small = sink.put(BytesSource(b"".join(source.files.values())), "idx")
            position = 0
            for kind, data in source.files.items():
                slices[kind] = ObjectSlice(small.key, position, len(data))
                position += len(data)
        return StoredSegment(source.info, "", slices, digest.hexdigest())

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield bytes [start, end) of the ``.log`` file."""
        place = segment.slices[FileKind.LOG]
        yield memoryview(fetch(place.key, place.position + start, place.position + end))

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return a small file, or None if the segment has none of this kind."""
        place = segment.slices.get(kind)
        return None if place is None else bytes(fetch(place.key, place.position, place.position + place.size_bytes))


def made_segments(*bounds: int, leader_epoch: int = 0) -> list[SegmentSource]:
    """Return adjacent closed segments; each pair of neighbouring ``bounds`` is one segment."""
    return [made_segment(base, end, leader_epoch=leader_epoch) for base, end in pairwise(bounds)]


def offload(log: TierLog, *bounds: int, epoch: int = 0, log_start: int = 0) -> OffloadReport:
    """Offload the segments of ``made_segments`` with the layout ``pair``; the last one ends at the high watermark."""
    sources = made_segments(*bounds)
    return log.offload(sources, layout="pair", leader_epoch=epoch, log_start=log_start, high_watermark=max(bounds))


def stored_objects(bed: TierBed) -> set[str]:
    """Return the keys of the objects of the segments of ``LOG`` in the bucket."""
    return set(bed.bucket.keys(segments_prefix(log_prefix(LOG, TOPIC_ID))))


def named_objects(log: TierLog) -> set[str]:
    """Return the keys of the objects that the latest root itself names, without its pages."""
    return object_keys(log.root.entries) if log.root else set()


@dataclass(slots=True)
class TierBed:
    """Bucket, a clock that does not move by itself, and tiers on them.

    Attributes:
        clock: clock of the bucket and of every tier.
        bucket: bucket that all tiers share.
        limits: limits of every tier; by default without read-ahead, which keeps the order of requests fixed.
        config: configuration of every tier; by default without read-back of uploads, which adds requests.
        layout: layout of every tier.
        layout_version: version of the layout.
        seed: seed of keys, commit ids and pauses; each tier uses the next one.
    """

    clock: ManualClock = field(default_factory=ManualClock)
    bucket: SimBucket = field(init=False)
    limits: Limits = field(default_factory=lambda: replace(Limits(), fetch_chunk_bytes=4096, prefetch_bytes=0))
    config: EngineConfig = field(default_factory=lambda: EngineConfig(tier_verify="never"))
    layout: TierLayout = field(default_factory=PairLayout)
    layout_version: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self.bucket = SimBucket(self.clock)

    def env(self) -> Env:
        """Return an environment with the clock and the next random seed."""
        self.seed += 1
        return Env(clock=self.clock, chance=random.Random(self.seed))  # noqa: S311 - a test must be repeatable

    def layouts(self) -> LayoutTable:
        """Return a table with one layout, named ``pair``."""
        offer: Provider[TierLayout] = Provider(name="pair", version=self.layout_version, open=lambda _: self.layout)
        return LayoutTable(Catalogue(TIER_LAYOUTS, [Offer(offer, "testing")]), lambda _: self.layout)

    def _store(self, store: ObjectStore | None, env: Env) -> TierStore:
        return TierStore(store or SimObjectStore(self.bucket), env, self.config, self.limits)

    def finder(self, store: TierStore) -> HeadFinder:
        """Return a finder of the head of ``LOG`` in a store."""
        authenticity = Authenticity(self.layouts())
        return HeadFinder(
            store, LOG, TOPIC_ID, self.clock, limit_bytes=self.limits.manifest_bytes, authenticity=authenticity
        )

    def pages(self, store: ObjectStore | None = None, cache: PageCache | None = None) -> Pages:
        """Return the pages of ``LOG`` in the bucket, or in another store. Without ``cache``, they get a new cache."""
        return Pages(
            self._store(store, self.env()), LOG, TOPIC_ID, cache or PageCache(), limit_bytes=self.limits.manifest_bytes
        )

    def open(self, store: ObjectStore | None = None, *, read_only: bool = False) -> Tier:
        """Open a tier on the bucket, or on another store."""
        env = self.env()
        return Tier.open(
            self._store(store, env),
            self.layouts(),
            env=env,
            limits=self.limits,
            config=self.config,
            read_only=read_only,
        )
