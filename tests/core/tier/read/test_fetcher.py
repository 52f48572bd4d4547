from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sim_objects import ALL_CAPABILITIES, ObjectFault, SimObjectStore, scripted_faults
from stratalog.config.engine_settings import Limits
from stratalog.errors import CorruptObjectError, ObjectNotFoundError, UnknownComponentError
from stratalog.model.segment_info import FileKind
from stratalog.registry.guard import Guard
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import RangeReader, SegmentSource, StoredSegment
from stratalog.spi.objects import Capability
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment, source_bytes
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.object_keys import is_segment_key, log_prefix
from stratalog.tier.tier import Tier
from tier_bed import PairLayout, TierBed

CHUNK_BYTES = 4096
DATA = bytes(number * 7 % 251 for number in range(3 * CHUNK_BYTES + 100))
FILES = {
    FileKind.OFFSET_INDEX: b"offsets",
    FileKind.TIME_INDEX: b"times",
    FileKind.SNAPSHOT: b"producers",
}


def small_limits(**other_limits: int) -> Limits:
    return replace(Limits(), fetch_chunk_bytes=CHUNK_BYTES, prefetch_bytes=0, read_bytes=100, **other_limits)


def offloaded(bed: TierBed, source: SegmentSource | None = None) -> tuple[RemoteSegment, SimObjectStore, Tier]:
    store = SimObjectStore(bed.bucket)
    tier = bed.open(store)
    log = tier.log(LOG, TOPIC_ID)
    log.offload(
        [source or made_segment(0, 10, data=DATA, files=FILES)],
        layout="pair",
        leader_epoch=0,
        log_start=0,
        high_watermark=10,
    )
    (segment,) = log.view().segments
    assert isinstance(segment, RemoteSegment)
    store.counts.clear()
    return segment, store, tier


def test_a_segment_in_the_tier_is_a_readable_segment() -> None:
    remote_segment = offloaded(TierBed())[0]
    segment: ReadableSegment = remote_segment
    assert (segment.base_offset, segment.end_offset, segment.size_bytes) == (0, 10, len(DATA))
    assert (segment.max_timestamp_ms, segment.age_from_ms) == (1_000, 1_000)
    assert is_segment_key(log_prefix(LOG, TOPIC_ID), remote_segment.entry.log_key)


def test_without_a_timestamp_the_modification_time_gives_the_age() -> None:
    segment, _, _ = offloaded(TierBed(), made_segment(0, 10, max_timestamp_ms=-1))
    assert (segment.max_timestamp_ms, segment.age_from_ms) == (-1, segment.info.modified_ms)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_every_range_reads_the_original_bytes(cache_bytes: int) -> None:
    segment, _, _ = offloaded(TierBed(limits=small_limits(chunk_cache_bytes=cache_bytes)))
    edges = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, len(DATA) - 1, len(DATA)]
    for position in edges:
        for size_bytes in (0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5, len(DATA), len(DATA) + 1):
            assert segment.read(position, size_bytes) == DATA[position : position + size_bytes]
    assert bytes(segment.read(len(DATA) + 5, 10)) == b""


def test_neighbouring_reads_share_a_request() -> None:
    segment, store, tier = offloaded(TierBed(limits=small_limits()))
    before = tier.metrics().store
    for position in range(0, CHUNK_BYTES, 100):
        segment.read(position, 50)
    assert store.counts["read"] == 3  # the first chunk in three parts: a reader may need few bytes
    segment.read(CHUNK_BYTES - 10, 20)
    assert store.counts["read"] == 4
    assert (tier.metrics().store - before).reads.moved_bytes == 2 * CHUNK_BYTES
    assert tier.metrics().chunks.size_bytes == 2 * CHUNK_BYTES


class NearStore(SimObjectStore):
    """Store whose objects are local files. The bytes below ``cached_to`` are in the page cache of the system."""

    def __init__(self, bed: TierBed, cached_to: int) -> None:
        super().__init__(bed.bucket, capabilities=ALL_CAPABILITIES | Capability.NEAR)
        self.objects, self.cached_to = bed.bucket.objects, cached_to

    def is_cached(self, key: str, start: int, end: int) -> bool:
        assert is_segment_key(log_prefix(LOG, TOPIC_ID), key)
        assert start < end
        return end <= self.cached_to

    def read_cached(self, key: str, start: int, into: memoryview) -> bool:
        if not self.is_cached(key, start, start + len(into)):
            return False
        into[:] = self.objects[key][0][start : start + len(into)]
        return True


@pytest.mark.parametrize("cached_chunks", [9, 3, 0])
def test_of_a_near_store_only_what_its_system_must_bring_is_read_ahead(cached_chunks: int) -> None:
    """Chunks in the page cache need no read-ahead; a second copy in memory would be useless."""
    bed = TierBed(limits=replace(small_limits(), prefetch_bytes=1 << 20))
    offloaded(bed)
    tier = bed.open(NearStore(bed, cached_chunks * CHUNK_BYTES))
    (segment,) = tier.log(LOG, TOPIC_ID).view().segments
    before = tier.metrics().store
    for position in range(0, len(DATA), 1000):
        assert segment.read(position, 1000) == DATA[position : position + 1000]
    assert (tier.metrics().store - before).reads.moved_bytes >= len(DATA)
    assert tier.metrics().chunks.size_bytes == sum(map(len, brought(cached_chunks)))
    tier.close()


def brought(cached_chunks: int) -> list[bytes]:
    """Return the chunks that are not in the page cache, for which read-ahead is useful."""
    return [DATA[start : start + CHUNK_BYTES] for start in range(cached_chunks * CHUNK_BYTES, len(DATA), CHUNK_BYTES)]


def test_the_cache_of_chunks_is_bounded() -> None:
    segment, store, tier = offloaded(TierBed(limits=small_limits(chunk_cache_bytes=2 * CHUNK_BYTES)))
    segment.read(0, len(DATA))
    segment.read(0, len(DATA))
    assert tier.metrics().chunks.size_bytes <= 2 * CHUNK_BYTES
    assert store.counts["read"] == 4  # two chunks at a time


def test_the_first_read_at_a_position_fetches_a_quarter_of_a_chunk() -> None:
    segment, _, tier = offloaded(TierBed(limits=small_limits()))
    before = tier.metrics().store
    segment.read(CHUNK_BYTES + 100, 50)
    assert (tier.metrics().store - before).reads.moved_bytes == CHUNK_BYTES // 4


@pytest.mark.parametrize("readers", [1, 2, 3, 8, 30])
def test_readers_in_turn_fetch_few_bytes_twice(readers: int) -> None:
    """Chunks get smaller, so that the cache has room for a chunk of each reader; the first chunks are too large."""
    bed = TierBed(limits=small_limits(chunk_cache_bytes=4 * CHUNK_BYTES))
    store, data = SimObjectStore(bed.bucket), 8 * DATA
    tier = bed.open(store)
    log = tier.log(LOG, TOPIC_ID)
    sources = [made_segment(first, first + 10, data=data, files=FILES) for first in range(0, 10 * readers, 10)]
    log.offload(sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=10 * readers)
    segments = list(log.view().segments)
    before = tier.metrics().store
    for position in range(0, len(data), CHUNK_BYTES // 4):
        for segment in segments:
            assert segment.read(position, CHUNK_BYTES // 4) == data[position : position + CHUNK_BYTES // 4]
    fetched_bytes = (tier.metrics().store - before).reads.moved_bytes
    assert fetched_bytes <= readers * len(data) + (0 if readers <= 2 else 3 * 4 * CHUNK_BYTES)


def test_single_reads_do_not_make_the_chunks_of_a_sequential_reader_smaller() -> None:
    bed = TierBed(limits=small_limits(chunk_cache_bytes=4 * CHUNK_BYTES))
    store, data = SimObjectStore(bed.bucket), 100 * DATA
    log = bed.open(store).log(LOG, TOPIC_ID)
    sources = [made_segment(first, first + 10, data=data, files=FILES) for first in (0, 10)]
    log.offload(sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=20)
    first, second = log.view().segments
    for position in range(100, len(data), 2 * CHUNK_BYTES):
        first.read(position, 100)
    store.counts.clear()
    for position in range(0, len(data), 100):
        second.read(position, 100)
    assert store.counts["read"] <= len(data) / CHUNK_BYTES * 1.1


def test_a_reader_gets_large_chunks_again_when_the_others_have_ended() -> None:
    bed = TierBed(limits=small_limits(chunk_cache_bytes=4 * CHUNK_BYTES))
    store, data = SimObjectStore(bed.bucket), 300 * DATA
    log = bed.open(store).log(LOG, TOPIC_ID)
    sources = [made_segment(first, first + 10, data=data, files=FILES) for first in range(0, 80, 10)]
    log.offload(sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=80)
    segments = list(log.view().segments)
    for position in range(0, 2 * CHUNK_BYTES, 100):
        for segment in segments:
            segment.read(position, 100)
    half = len(data) // 2
    for position in range(2 * CHUNK_BYTES, half, 100):  # the other readers count until 1,024 reads have followed
        segments[0].read(position, 100)
    store.counts.clear()
    for position in range(half, len(data), 100):
        segments[0].read(position, 100)
    assert store.counts["read"] <= half / CHUNK_BYTES * 1.1


def test_indexes_are_fetched_once_and_together() -> None:
    segment, store, tier = offloaded(TierBed())
    for _ in range(2):
        assert segment.index_entries(IndexRole.OFFSET) == b"offsets"
        assert segment.index_entries(IndexRole.TIME) == b"times"
        assert segment.index_entries(IndexRole.TRANSACTION) == b""
        assert segment.extra_index("bloom@1") == b""
    assert segment.read_file(FileKind.SNAPSHOT) == b"producers"
    assert store.counts["read"] == 2
    assert tier.metrics().indexes.size_bytes == len(b"offsets" + b"times" + b"producers")


@pytest.mark.parametrize("lost_bytes", [1, CHUNK_BYTES, len(DATA)])
def test_an_object_that_is_too_short_is_corrupt(lost_bytes: int) -> None:
    bed = TierBed()
    segment, _, _ = offloaded(bed)
    bed.bucket.write(segment.entry.log_key, DATA[:-lost_bytes])
    with pytest.raises(CorruptObjectError) as caught:
        segment.read(len(DATA) - 1, 1)
    assert caught.value.file == segment.entry.log_key


def test_a_reply_cut_short_is_asked_for_again() -> None:
    segment, store, _ = offloaded(TierBed())
    store.faults = scripted_faults({store.next_number: ObjectFault.CUT_SHORT})
    assert segment.read(5, 500) == DATA[5:505]
    assert store.counts["read"] == 2


def test_damaged_bytes_are_forgotten_on_request() -> None:
    """A chunk that fails a CRC may have been damaged in transfer, so the cache must not keep it."""
    bed = TierBed()
    segment, _, _ = offloaded(bed)
    bed.bucket.write(segment.entry.log_key, bytes(len(DATA)))
    index_key = segment.entry.slices[FileKind.OFFSET_INDEX].key
    whole_index = bed.bucket.objects[index_key][0]
    bed.bucket.write(index_key, bytes(len(whole_index)))
    assert segment.read(0, 3) != DATA[:3]
    assert segment.index_entries(IndexRole.OFFSET) != b"offsets"
    bed.bucket.write(segment.entry.log_key, DATA)
    bed.bucket.write(index_key, whole_index)
    assert segment.read(0, 3) != DATA[:3]
    segment.forget()
    assert segment.read(0, 3) == DATA[:3]
    assert segment.index_entries(IndexRole.OFFSET) == b"offsets"


def test_a_missing_object_is_named() -> None:
    bed = TierBed()
    segment, _, _ = offloaded(bed)
    del bed.bucket.objects[segment.entry.log_key]
    with pytest.raises(ObjectNotFoundError, match=segment.entry.log_key):
        segment.read(0, 1)


def test_a_layout_that_is_too_old_is_named() -> None:
    bed = TierBed(layout_version=2)
    offloaded(bed)
    bed.layout_version = 1
    older = bed.open(read_only=True).log(LOG, TOPIC_ID).view().segments[0]
    assert older.size_bytes == len(DATA)
    with pytest.raises(UnknownComponentError, match="pair@2"):
        older.read(0, 1)
    with pytest.raises(UnknownComponentError, match="pair@2"):
        older.index_entries(IndexRole.OFFSET)


class Short(PairLayout):
    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        yield from super().read(segment, start, end - 1, fetch)


def test_a_layout_that_gives_too_little_is_found_out() -> None:
    segment, _, _ = offloaded(TierBed(layout=Short()))
    with pytest.raises(CorruptObjectError, match="pair@1 returned 9 of 10 bytes"):
        segment.read(0, 10)


class Pieces(PairLayout):
    """Layout that returns bytes in pieces, and also reads bytes that the manifest does not describe."""

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        key = segment.slices[FileKind.LOG].key
        assert fetch(key, len(DATA) - 1, len(DATA)) == DATA[-1:]
        for position in range(start, end, 7):
            yield memoryview(fetch(key, position, min(position + 7, end)))


def test_a_layout_may_give_pieces() -> None:
    segment, _, _ = offloaded(TierBed(layout=Pieces()))
    assert segment.read(3, 100) == DATA[3:103]


@pytest.mark.parametrize("is_bundled", [True, False])
def test_only_a_layout_of_another_plugin_is_guarded_during_reads(*, is_bundled: bool) -> None:
    layout = PairLayout()
    guarded = GuardedLayout(layout, Guard("layout 'pair' version 1", "plugin odd", is_bundled=is_bundled))
    assert guarded.reader is (layout if is_bundled else guarded)


class Elsewhere(PairLayout):
    """Layout that also reads an empty range of an object that the entry does not name."""

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        assert fetch(f"{segment.log_key}.more", 0, 0) == b""
        return super().read_index(segment, kind, fetch)


def test_an_empty_range_of_any_object_needs_no_request() -> None:
    segment, store, _ = offloaded(TierBed(layout=Elsewhere()))
    assert segment.index_entries(IndexRole.OFFSET) == b"offsets"
    assert store.counts["read"] == 1


def test_objects_shared_by_segments_read_right_at_their_borders() -> None:
    """Two entries refer to slices of one object. The chunk at their border must be correct for both."""
    bed = TierBed(limits=small_limits())
    first, store, tier = offloaded(bed)
    half = len(DATA) // 2
    place = first.entry.slices[FileKind.LOG]
    half_entries = [
        replace(
            first.entry,
            info=replace(first.info, size_bytes=size_bytes),
            slices={FileKind.LOG: replace(place, position=position, size_bytes=size_bytes)},
        )
        for position, size_bytes in ((0, half), (half, len(DATA) - half))
    ]
    first_half, second_half = (RemoteSegment(entry, tier.fetcher) for entry in half_entries)
    assert first_half.read(0, len(DATA)) == DATA[:half]
    assert second_half.read(0, len(DATA)) == DATA[half:]
    assert store.counts["read"] > 0


def test_a_source_reads_again_from_the_start() -> None:
    source = made_segment(0, 10).log
    assert source_bytes(source) == source_bytes(source)
