"""A tier in memory, with a layout small enough to read and segments made up on the spot."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Final

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.registry.component_kinds import TIER_LAYOUTS
from stratalog.registry.resolve import Catalogue, Offer
from stratalog.spi.layouts import ObjectSink, RangeReader, SegmentSource, StoredSegment, TierLayout
from stratalog.spi.objects import ByteSource, BytesSource, ObjectStore
from stratalog.spi.providers import Provider, Section
from stratalog.testing.simobjects import SimBucket, SimObjectStore
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier

LOG: Final = TopicPartition("orders", 0)
TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


class PairLayout(TierLayout):
    """Two objects a segment: the ``.log`` file, and all small files one behind the other."""

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
        """Bytes [start, end) of the ``.log`` file."""
        place = segment.slices[FileKind.LOG]
        yield memoryview(fetch(place.key, place.position + start, place.position + end))

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file."""
        place = segment.slices.get(kind)
        return None if place is None else bytes(fetch(place.key, place.position, place.position + place.size_bytes))


def made_segment(
    base_offset: int,
    end_offset: int,
    *,
    data: bytes | None = None,
    files: Mapping[FileKind, bytes] | None = None,
    leader_epoch: int = 0,
    max_timestamp_ms: int = 1_000,
    log: TopicPartition = LOG,
    topic_id: TopicId = TOPIC_ID,
) -> SegmentSource:
    """A closed segment with bytes that tell its range, or with ``data``; the tier does not look inside."""
    content = f"[{base_offset}, {end_offset}) ".encode() * 8 if data is None else data
    info = SegmentInfo(
        log,
        topic_id,
        base_offset,
        end_offset,
        len(content),
        max_timestamp_ms,
        modified_ms=2_000,
        leader_epochs=(EpochEntry(leader_epoch, base_offset),),
    )
    return SegmentSource(info, BytesSource(content), {FileKind.OFFSET_INDEX: b"index"} if files is None else files)


def made_segments(*bounds: int, leader_epoch: int = 0) -> list[SegmentSource]:
    """Closed segments that meet at these offsets: one less than there are bounds."""
    return [made_segment(base, end, leader_epoch=leader_epoch) for base, end in pairwise(bounds)]


def source_bytes(source: ByteSource) -> bytes:
    """All bytes of a source."""
    return b"".join(source.chunks(1 << 20))


@dataclass(slots=True)
class TierBed:
    """A bucket, a clock that stands still, and tiers over them.

    Attributes:
        bucket: what all tiers of the bed share.
        limits: of every tier; nothing is read ahead unless they are changed, so that requests come in one order.
        config: of every tier; nothing is read back by default, so that requests are those of the test.
        seed: of the chance that makes keys, commit ids and pauses; each tier gets the next one.
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
        """The clock and the next chance."""
        self.seed += 1
        return Env(clock=self.clock, chance=random.Random(self.seed))  # noqa: S311 - a test must be repeatable

    def layouts(self) -> LayoutTable:
        """A table with one layout, called ``pair``."""
        offer: Provider[TierLayout] = Provider(name="pair", version=self.layout_version, open=lambda _: self.layout)
        return LayoutTable(Catalogue(TIER_LAYOUTS, [Offer(offer, "testing")]), lambda _: self.layout)

    def pages(self, store: ObjectStore | None = None) -> Pages:
        """The pages of ``LOG`` over the bucket, or over another store, with a cache of their own."""
        guarded = TierStore(store or SimObjectStore(self.bucket), self.env(), self.config, self.limits)
        return Pages(guarded, LOG, TOPIC_ID, PageCache(), limit_bytes=self.limits.manifest_bytes)

    def open(self, store: ObjectStore | None = None, *, read_only: bool = False) -> Tier:
        """A tier over the bucket, or over another store."""
        return Tier.open(
            store or SimObjectStore(self.bucket),
            self.layouts(),
            env=self.env(),
            limits=self.limits,
            config=self.config,
            read_only=read_only,
        )
