"""The entries of a root in pages, compared with a plain list: with small pages, and with 100,000 segments."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from sim_objects import SimObjectStore
from stratalog.errors import CorruptManifestError, ObjectNotFoundError, StorageError, UnknownComponentError
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.testing.memory import memory_below
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.entry_tree import next_root, walk, walk_back
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.pages import PageCache
from stratalog.tier.manifest.root import PAGE_ITEMS, Change, ChangeKind, Head, Root, object_keys
from stratalog.tier.manifest.root_codec import encode_root, parse_root
from stratalog.tier.manifest.root_diff import removed_objects
from stratalog.tier.store.object_keys import log_prefix, pages_prefix, parse_page_key
from tier_bed import TierBed

PREFIX = log_prefix(LOG, TOPIC_ID)
LIMIT_BYTES = 1 << 20


def entry(base: int, end: int, *, epoch: int = 0, unique: int = 0) -> StoredSegment:
    """Return an entry like those of the default layout: one object, six files, and a hash for each."""
    info = SegmentInfo(LOG, TOPIC_ID, base, end, 1 << 30, base * 10, 5, (EpochEntry(epoch, base),))
    key = f"{PREFIX}segments/{base:020d}-{epoch}-{unique:032x}.seg"
    slices = {kind: ObjectSlice(key, number << 20, 1 << 20) for number, kind in enumerate(FileKind)}
    extra = {"sha256": {str(kind): "a" * 64 for kind in FileKind if kind is not FileKind.LOG}}
    return StoredSegment(info, "single@1", slices, "b" * 64, (), extra)


def entries(*bounds: int, unique: int = 0) -> tuple[StoredSegment, ...]:
    return tuple(entry(base, end, unique=unique) for base, end in pairwise(bounds))


class Chain:
    """A sequence of roots, each of which is decoded from its bytes."""

    def __init__(self, bed: TierBed) -> None:
        self.bed, self.store = bed, SimObjectStore(bed.bucket)
        self.pages = bed.pages(self.store)
        self.head: Head | None = None
        self.roots: list[Root] = []

    def commit(
        self,
        kind: ChangeKind,
        *,
        added: tuple[StoredSegment, ...] = (),
        log_start: int | None = None,
        replaced: tuple[int, int] | None = None,
        kept_end: int | None = None,
    ) -> Root:
        before = self.head.root if self.head else None
        start = before.log_start if before else 0
        end = max(added[-1].info.end_offset if added else 0, before.high_watermark if before else 0)
        change = Change(
            kind=kind,
            reason="a test",
            added=added,
            replaced=replaced,
            kept_end=kept_end,
            log_start=start if log_start is None else log_start,
            high_watermark=end,
        )
        root = next_root(
            self.head,
            change,
            pages=self.pages,
            log=LOG,
            topic_id=TOPIC_ID,
            commit_id="c" * 32,
            leader_epoch=0,
            created_ms=1,
        )
        self.head = parse_root(encode_root(root), LOG, TOPIC_ID, root.version, limit_bytes=LIMIT_BYTES)
        assert self.head.root == root
        self.roots.append(root)
        return root


def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 3)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.long
def test_any_changes_leave_what_a_plain_list_would_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    chance = random.Random(seed)  # noqa: S311 - a seed repeats it
    chain, expected, log_start = Chain(TierBed()), list[StoredSegment](), 0
    for step in range(1, 90):
        draw = chance.random()
        if draw < 0.6 or not expected:
            end = expected[-1].info.end_offset if expected else log_start
            new_entries = entries(*range(end, end + 5 * chance.randrange(2, 7), 5), unique=step)
            expected += new_entries
            root = chain.commit(ChangeKind.OFFLOAD, added=new_entries)
        elif draw < 0.75:
            log_start = min(chance.randrange(log_start, log_start + 40), expected[-1].info.end_offset)
            expected = [stored_entry for stored_entry in expected if stored_entry.info.end_offset > log_start]
            root = chain.commit(ChangeKind.EXPIRE, log_start=log_start)
        elif draw < 0.82:
            expected = expected[: chance.randrange(1, len(expected) + 1)]
            root = chain.commit(ChangeKind.TRUNCATE, kept_end=expected[-1].info.end_offset)
        else:
            first = chance.randrange(len(expected))
            last = min(len(expected), first + chance.randrange(1, 9))
            bounds = expected[first].info.base_offset, expected[last - 1].info.end_offset
            inner = sorted({*bounds, *(chance.randrange(*bounds) for _ in range(chance.randrange(4)))})
            new_entries = entries(*inner, unique=step)
            expected[first:last] = new_entries
            root = chain.commit(ChangeKind.REPLACE, added=new_entries, replaced=bounds)
            expected = [stored_entry for stored_entry in expected if stored_entry.info.end_offset > log_start]
        compare(root, chain, expected, log_start, chance)
    assert max((ref.level for root in chain.roots for ref in root.pages), default=0) >= 2
    for before, after in pairwise(chain.roots):
        keys_before, keys_after = object_keys(walk(before, chain.pages)), object_keys(walk(after, chain.pages))
        removed_keys = removed_objects(before, after, (chain.roots[-1],), chain.pages)
        assert {key for key in removed_keys if not parse_page_key(PREFIX, key)} == keys_before - keys_after


def compare(root: Root, chain: Chain, expected: list[StoredSegment], log_start: int, chance: random.Random) -> None:
    fresh = chain.bed.pages(chain.store, PageCache(6))
    assert list(walk(root, fresh)) == expected
    assert list(walk_back(root, fresh)) == expected[::-1]
    end = expected[-1].info.end_offset if expected else log_start
    assert (root.segments, root.size_bytes) == (
        len(expected),
        sum(stored_entry.info.size_bytes for stored_entry in expected),
    )
    assert (root.start_offset, root.end_offset) == (expected[0].info.base_offset if expected else log_start, end)
    assert len(root.entries) <= 3
    offset = chance.randrange(log_start, end + 2)
    assert list(walk(root, fresh, offset)) == [
        stored_entry for stored_entry in expected if stored_entry.info.end_offset > offset
    ]
    since_ms = chance.randrange(end * 10 + 2)
    young_entries = [stored_entry for stored_entry in expected if stored_entry.info.max_timestamp_ms >= since_ms]
    assert [
        stored_entry
        for stored_entry in walk(root, fresh, since_ms=since_ms)
        if stored_entry.info.max_timestamp_ms >= since_ms
    ] == young_entries


def test_raising_the_log_start_writes_no_page_and_reads_at_most_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    chain = Chain(TierBed())
    chain.commit(ChangeKind.OFFLOAD, added=entries(*range(0, 101, 10)))
    chain.pages = chain.bed.pages(chain.store)
    before = chain.store.counts.copy()
    root = chain.commit(ChangeKind.EXPIRE, log_start=40)
    assert (root.start_offset, root.segments) == (40, 6)
    assert (chain.store.counts - before) == {"read": 1}


def test_replacing_rewrites_only_the_pages_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    chain = Chain(TierBed())
    before = chain.commit(ChangeKind.OFFLOAD, added=entries(*range(0, 131, 10)))
    after = chain.commit(ChangeKind.REPLACE, added=entries(40, 50, unique=7), replaced=(40, 50))
    assert len(before.pages) == len(after.pages) > 1
    assert sum(old != new for old, new in zip(before.pages, after.pages, strict=True)) == 1


@pytest.mark.parametrize("end", [0, 10, 40, 60, 90, 100, 130])
def test_entries_above_a_cut_are_gone_and_the_rest_ends_there(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    chain, all_entries = Chain(TierBed()), entries(*range(0, 131, 10))
    chain.commit(ChangeKind.OFFLOAD, added=all_entries)
    root = chain.commit(ChangeKind.TRUNCATE, kept_end=end)
    compare(root, chain, [segment for segment in all_entries if segment.info.end_offset <= end], 0, random.Random(1))  # noqa: S311 - repeatable
    assert all(epoch.start_offset < end for epoch in root.leader_epochs)


@pytest.mark.parametrize("end", [5, 25, 95])
def test_a_cut_inside_a_segment_is_refused(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    chain = Chain(TierBed())
    chain.commit(ChangeKind.OFFLOAD, added=entries(*range(0, 101, 10)))
    with pytest.raises(StorageError, match=f"no segment in the tier ends at {end}"):
        chain.commit(ChangeKind.TRUNCATE, kept_end=end)


def test_only_a_truncation_lowers_the_end() -> None:
    chain = Chain(TierBed())
    chain.commit(ChangeKind.OFFLOAD, added=entries(0, 10, 20))
    with pytest.raises(StorageError, match="end offset 10 after 20"):
        chain.commit(ChangeKind.OFFLOAD, kept_end=10)


@pytest.mark.parametrize("replaced", [(5, 20), (10, 25), (20, 10), (200, 210)])
def test_a_replaced_range_must_have_the_borders_of_entries(replaced: tuple[int, int]) -> None:
    chain = Chain(TierBed())
    chain.commit(ChangeKind.OFFLOAD, added=entries(0, 10, 20, 30))
    with pytest.raises(StorageError):
        chain.commit(ChangeKind.REPLACE, added=(entry(*sorted(replaced)),), replaced=replaced)


def filled(monkeypatch: pytest.MonkeyPatch) -> tuple[TierBed, Root, str]:
    small_pages(monkeypatch)
    bed = TierBed()
    root = Chain(bed).commit(ChangeKind.OFFLOAD, added=entries(*range(0, 91, 10)))
    return bed, root, root.pages[0].key(PREFIX)


def test_every_flipped_byte_and_every_cut_of_a_page_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bed, root, key = filled(monkeypatch)
    data = bed.bucket.objects[key][0]
    for position in range(0, len(data), 97):
        for damaged in (
            data[:position],
            data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :],
            data + b" ",
        ):
            bed.bucket.write(key, damaged)
            with pytest.raises(CorruptManifestError) as caught:
                bed.pages().read(root.pages[0])
            assert caught.value.file == key


LIES = {
    "newer": (b'"format_version":1', b'"format_version":2', UnknownComponentError),
    "another format": (b'"stratalog-page"', b'"stratalog-leaf"', CorruptManifestError),
    "another log": (b'"partition":0', b'"partition":1', CorruptManifestError),
    "another level": (b'"level":0', b'"level":1', CorruptManifestError),
    "a gap": (b'"end_offset":20', b'"end_offset":19', CorruptManifestError),
    "elsewhere": (b'"segments/', b'"elsewhere/', CorruptManifestError),
    "not JSON": (b"{", b"[", CorruptManifestError),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_page_with_a_valid_hash_and_wrong_content_is_refused(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, root, key = filled(monkeypatch)
    old_bytes, new_bytes, error = LIES[lie]
    data = bed.bucket.objects[key][0].replace(old_bytes, new_bytes, 1)
    ref = replace(root.pages[0], stored_bytes=len(data), sha256=sha256_of(data))
    bed.bucket.write(ref.key(PREFIX), data)
    with pytest.raises(error):
        bed.pages().read(ref)


def test_a_missing_page_and_one_above_the_limit_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    bed, root, key = filled(monkeypatch)
    del bed.bucket.objects[key]
    with pytest.raises(ObjectNotFoundError, match="page"):
        bed.pages().read(root.pages[0])
    with pytest.raises(CorruptManifestError, match="larger"):
        bed.pages().read(replace(root.pages[0], stored_bytes=1 << 40))


# --- 100,000 segments --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> tuple[TierBed, Chain]:
    bed = TierBed()
    chain = Chain(bed)
    chain.commit(ChangeKind.OFFLOAD, added=entries(*range(0, 1_000_010, 10)))
    return bed, chain


@pytest.mark.long
def test_the_bytes_of_a_commit_stay_flat(large: tuple[TierBed, Chain]) -> None:
    """A root of 100,000 segments is no larger than two of 256 segments, and only one in 256 commits writes a page."""
    bed, chain = large
    small = Chain(TierBed())
    full = small.commit(ChangeKind.OFFLOAD, added=entries(*range(0, 10 * PAGE_ITEMS + 1, 10)))
    writes_before = chain.store.counts["put_file"]
    size = 0
    for number in range(3):
        root = chain.commit(ChangeKind.OFFLOAD, added=(entry(1_000_000 + number, 1_000_001 + number),))
        size = max(size, len(encode_root(root)))
    assert root.segments == 100_003
    assert size < 2 * len(encode_root(full))
    assert chain.store.counts["put_file"] == writes_before
    assert len(bed.bucket.keys(pages_prefix(PREFIX))) == 100_000 // PAGE_ITEMS


@pytest.mark.long
def test_the_oldest_segment_of_very_many_is_one_page_away(large: tuple[TierBed, Chain]) -> None:
    bed, chain = large
    head = chain.head
    assert head is not None
    store = SimObjectStore(bed.bucket)
    pages = bed.pages(store)
    with memory_below(16 << 20):
        data = encode_root(head.root)
        root = parse_root(data, LOG, TOPIC_ID, head.root.version, limit_bytes=LIMIT_BYTES).root
        first_entry = next(walk(root, pages, 500_005))
    assert first_entry.info.base_offset == 500_000
    assert store.counts == {"read": 1}


def test_a_page_that_no_reader_would_take_is_not_stored() -> None:
    bed = TierBed()
    pages = bed.pages(SimObjectStore(bed.bucket))
    valid_entries, valid_entry = entries(0, 10, 20), entries(0, 10)[0]
    assert pages.read(pages.write(valid_entries, 0)) == valid_entries
    for changes in ({"size_bytes": 15.0}, {"end_offset": True}, {"modified_ms": 5.0}):
        with pytest.raises(StorageError, match="a note was not stored"):
            pages.write((replace(valid_entry, info=replace(valid_entry.info, **changes)),), 0)
