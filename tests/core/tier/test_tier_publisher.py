"""Replacements of segments that another writer changed meanwhile.

Committed segments stay, and unused objects are deleted.
"""

from __future__ import annotations

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.commit.replace_change import SegmentSwap
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.read.remote_segment import PagedSegments
from stratalog.tier.store.object_keys import log_prefix
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from tier_bed import TierBed, made_segments, stored_objects

PREFIX = log_prefix(LOG, TOPIC_ID)


@pytest.fixture(params=[False, True], ids=["inline", "in pages"])
def bed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TierBed:
    if request.param:
        monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
        monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)
    return TierBed()


@pytest.fixture
def log(bed: TierBed) -> TierLog:
    """Return a log of five segments with ten offsets each."""
    tier_log = bed.open().log(LOG, TOPIC_ID)
    bounds = range(0, 60, 10)
    tier_log.offload(made_segments(*bounds), layout="pair", leader_epoch=0, log_start=0, high_watermark=50)
    return tier_log


def entries(bed: TierBed, log: TierLog) -> list[StoredSegment]:
    assert log.root is not None
    assert isinstance(log.view().segments, PagedSegments)
    return list(walk(log.root, bed.pages()))


def publisher(log: TierLog) -> TierPublisher:
    return TierPublisher(log, 0, TopicConfig(tier_layout="pair"))


def made(tier_publisher: TierPublisher, old: list[StoredSegment], word: bytes) -> SegmentSwap:
    source = made_segment(old[0].info.base_offset, old[-1].info.end_offset, data=word)
    return SegmentSwap(tuple(old), tier_publisher.upload(source))


def test_of_two_that_replace_the_same_the_second_changes_nothing(bed: TierBed, log: TierLog) -> None:
    before, (first, second) = entries(bed, log), (publisher(log), publisher(log))
    winner, loser = made(first, before[1:2], b"first"), made(second, before[1:2], b"second")
    assert first.swap([winner], ChangeKind.COMPACT, "a test") == (winner,)
    version = log.view().version
    assert second.swap([loser], ChangeKind.COMPACT, "a test") == ()
    assert entries(bed, log) == [before[0], winner.new, *before[2:]]
    assert log.view().version == version, "nothing was to be committed"
    assert not loser.new.keys & stored_objects(bed)
    assert winner.new.keys <= stored_objects(bed)


def test_a_group_of_which_one_was_replaced_is_left_out_and_the_others_are_placed(bed: TierBed, log: TierLog) -> None:
    before, (first, second) = entries(bed, log), (publisher(log), publisher(log))
    winner = made(first, before[2:3], b"first")
    merged, alone = made(second, before[1:4], b"second"), made(second, before[4:], b"alone")
    first.swap([winner], ChangeKind.COMPACT, "a test")
    assert second.swap([merged, alone], ChangeKind.COMPACT, "a test", first_dirty_offset=50) == (alone,)
    assert entries(bed, log) == [*before[:2], winner.new, before[3], alone.new]
    assert log.root is not None
    assert log.root.first_dirty_offset == 0, "what was left out is as dirty as it was"
    assert not merged.new.keys & stored_objects(bed)


def test_segments_merged_meanwhile_are_not_split_again(bed: TierBed, log: TierLog) -> None:
    before, (first, second) = entries(bed, log), (publisher(log), publisher(log))
    merged = made(first, before[1:3], b"merged")
    pieces = [made(second, before[1:2], b"one"), made(second, before[2:3], b"two"), made(second, before[3:4], b"three")]
    first.swap([merged], ChangeKind.COMPACT, "a test")
    assert second.swap(pieces, ChangeKind.COMPACT, "a test") == (pieces[2],)
    assert entries(bed, log) == [before[0], merged.new, pieces[2].new, before[4]]


@pytest.mark.parametrize(("log_start", "placed"), [(19, 2), (20, 1), (21, 1), (30, 0), (50, 0)])
def test_segments_that_retention_deleted_meanwhile_stay_gone(
    bed: TierBed, log: TierLog, log_start: int, placed: int
) -> None:
    """Retention deletes up to the border of a segment, into one, or all of both. The rest is replaced."""
    old_entries, tier_publisher = entries(bed, log), publisher(log)
    pair = [made(tier_publisher, old_entries[1:2], b"one"), made(tier_publisher, old_entries[2:3], b"two")]
    log.expire(log_start, leader_epoch=0, reason="a test")
    assert tier_publisher.swap(pair, ChangeKind.COMPACT, "a test", first_dirty_offset=30) == tuple(pair[2 - placed :])
    view = log.view()
    assert (view.log_start, view.end_offset) == (log_start, 50)
    assert [segment.base_offset for segment in view.segments] == [
        base for base in range(0, 50, 10) if base + 10 > log_start
    ]
    if placed:
        assert view.first_dirty_offset == 30
    for swap in pair[: 2 - placed]:
        assert not swap.new.keys & stored_objects(bed)
