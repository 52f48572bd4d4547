"""Numbers of requests that reads need, counted at the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sim_objects import SimObjectStore
from stratalog.config.engine_settings import Limits
from stratalog.model.segment_info import FileKind
from stratalog.spi.indexes import IndexRole
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier import Tier
from tier_bed import TierBed

CHUNK_BYTES = 4096
SEGMENTS = 40
DATA = bytes(number * 7 % 251 for number in range(5 * CHUNK_BYTES + 100))
INDEXES = {
    FileKind.OFFSET_INDEX: b"offsets",
    FileKind.TIME_INDEX: b"times",
    FileKind.TRANSACTION_INDEX: b"aborted",
}


@pytest.fixture
def bed() -> TierBed:
    """Return a tier with a log of 40 segments."""
    limits = replace(Limits(), fetch_chunk_bytes=CHUNK_BYTES, read_bytes=1000, prefetch_bytes=8 * CHUNK_BYTES)
    tier_bed = TierBed(limits=limits)
    with tier_bed.open() as tier:
        sources = [made_segment(base * 10, base * 10 + 10, data=DATA, files=INDEXES) for base in range(SEGMENTS)]
        tier.log(LOG, TOPIC_ID).offload(
            sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=SEGMENTS * 10
        )
    return tier_bed


def opened(bed: TierBed) -> tuple[Tier, SimObjectStore]:
    store = SimObjectStore(bed.bucket)
    return bed.open(store, read_only=True), store


def segments_of(tier: Tier) -> Iterator[RemoteSegment]:
    for segment in tier.log(LOG, TOPIC_ID).view().segments.from_offset(0):
        assert isinstance(segment, RemoteSegment)
        yield segment


@pytest.mark.parametrize("position", [0, 100, CHUNK_BYTES - 10, 3 * CHUNK_BYTES - 900])
def test_the_first_bytes_of_a_cold_log_cost_two_requests_once_the_root_is_known(bed: TierBed, position: int) -> None:
    """One request reads the indexes, and one reads the bytes, even if the bytes are in two chunks."""
    tier, store = opened(bed)
    with tier:
        segment = tier.log(LOG, TOPIC_ID).view().floor(155)
        assert segment is not None
        store.counts.clear()
        for role in (IndexRole.OFFSET, IndexRole.TIME, IndexRole.TRANSACTION):
            assert segment.index_entries(role)
        assert segment.read(position, 1000) == DATA[position : position + 1000]
        assert dict(store.counts) == {"read": 2}


def test_a_sequential_read_requests_each_chunk_once_and_no_index(bed: TierBed) -> None:
    tier, store = opened(bed)
    with tier:
        segments = list(segments_of(tier))
        store.counts.clear()
        for segment in segments:
            data = b"".join(segment.read(position, 1000) for position in range(0, len(DATA), 1000))
            assert data == DATA
    assert store.counts["read"] <= SEGMENTS * 6 + 2  # the first chunk in three parts: a reader may need few bytes
    assert set(store.counts) == {"read"}


def test_small_segments_are_read_ahead_into_the_next_ones(bed: TierBed) -> None:
    """Without read-ahead, a reader would wait at each segment, because each segment is one chunk."""
    tier, store = opened(bed)
    with tier:
        segments = list(segments_of(tier))
        came = threading.Event()
        store.before = lambda request: came.set() if request.key == segments[3].label else None
        for segment in segments[:3]:
            for position in range(0, len(DATA), 1000):
                segment.read(position, 1000)
        assert came.wait(60)  # no reader has read there


def test_warm_reads_cost_nothing(bed: TierBed) -> None:
    bed.limits = replace(bed.limits, prefetch_bytes=0)  # a late prefetch of a further segment would count
    tier, store = opened(bed)
    with tier:
        segments = list(segments_of(tier))
        for _ in range(2):
            for segment in segments[:5]:
                segment.read(0, len(DATA))
                segment.index_entries(IndexRole.OFFSET)
        store.counts.clear()
        for segment in segments[:5]:
            segment.read(0, len(DATA))
            segment.index_entries(IndexRole.TIME)
        assert not store.counts


def test_a_damaged_reply_causes_one_further_request(bed: TierBed) -> None:
    tier, store = opened(bed)
    with tier:
        segment = next(segments_of(tier))
        original = bed.bucket.objects[segment.label]
        bed.bucket.objects[segment.label] = bytes(len(DATA)), original[1]
        assert segment.read(0, 10) != DATA[:10]
        bed.bucket.objects[segment.label] = original
        assert segment.forget()
        store.counts.clear()
        assert segment.read(0, 10) == DATA[:10]
        assert dict(store.counts) == {"read": 1}
