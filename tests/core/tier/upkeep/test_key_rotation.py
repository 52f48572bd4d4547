"""Rotation of the keys in manifests: entry by entry, page by page, with failures and concurrent writers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from sim_objects import ObjectFault, SimObjectStore, scripted_faults
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, FencedEpochError, StoreThrottledError, StoreTimeoutError
from stratalog.spi.layouts import ObjectSink, SegmentSource, StoredSegment
from stratalog.spi.providers import Section
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, source_bytes
from stratalog.tier.commit.append_change import Appending, check_single_writer
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.entry_tree import walk
from stratalog.tier.manifest.root import ChangeKind, WriteMark
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.tier.upkeep.key_rotation import RewrapReport, mac_change
from tier_bed import PairLayout, TierBed, made_segments, offload, stored_objects

BOUNDS = range(0, 111, 10)


class KeyedLayout(PairLayout):
    """Layout that stores the name of the active key in each entry. ``without`` is a key that is no longer available."""

    def __init__(self) -> None:
        self.active, self.without = "old", ""
        self.before: Callable[[], object] = lambda: None

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        return replace(super().write(source, sink, section), extra={"key": self.active})

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        self.before()
        if segment.extra["key"] == self.active:
            return segment
        if segment.extra["key"] == self.without:
            raise ConfigError(f"there is no key {self.without}")
        return replace(segment, extra={"key": self.active})


@pytest.fixture
def layout() -> KeyedLayout:
    return KeyedLayout()


@pytest.fixture
def bed(layout: KeyedLayout, monkeypatch: pytest.MonkeyPatch) -> TierBed:
    """Return a tier with eleven segments; the oldest entries are on pages of three."""
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 3)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)
    bed = TierBed(layout=layout)
    offload(opened(bed), *BOUNDS)
    layout.active = "new"
    return bed


def opened(bed: TierBed, store: SimObjectStore | None = None) -> TierLog:
    return bed.open(store).log(LOG, TOPIC_ID)


def keys(bed: TierBed) -> list[object]:
    """Read each segment, and return the key in each entry."""
    log = opened(bed)
    assert log.root is not None
    entries = list(walk(log.root, bed.pages()))
    bounds = [entries[0].info.base_offset, *(entry.info.end_offset for entry in entries)]
    for segment, source in zip(log.view().segments, made_segments(*bounds), strict=True):
        assert segment.read(0, 1 << 20) == source_bytes(source.log)
    return [entry.extra["key"] for entry in entries]


def test_entries_change_and_objects_do_not(bed: TierBed) -> None:
    before, log = stored_objects(bed), opened(bed)
    version = log.view().version
    assert log.rewrap() == RewrapReport(11, 11)
    assert keys(bed) == ["new"] * 11
    assert stored_objects(bed) == before
    assert log.view().version - version == 4, "a commit for each page, and for the entries in the root"
    assert log.root is not None
    assert (log.root.change, log.root.reason) == (ChangeKind.REWRAP, "keys of 2 segments encrypted with the active key")
    assert (log.view().start_offset, log.view().end_offset, len(log.view().segments)) == (0, 110, 11)
    assert log.rewrap() == RewrapReport(11, 0)
    assert log.view().version - version == 4
    bed.clock.advance_ms(10 * 3_600_000)
    log.collect()
    assert stored_objects(bed) == before
    assert keys(bed) == ["new"] * 11


@pytest.mark.parametrize(
    "fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE, ObjectFault.THROTTLED], ids=str
)
@pytest.mark.long
def test_an_interrupted_rotation_continues_when_it_is_repeated(bed: TierBed, fault: ObjectFault) -> None:
    bed.config = replace(bed.config, store_retries=0)
    for number in range(60):
        store = SimObjectStore(bed.bucket)
        log = opened(bed, store)
        store.faults = scripted_faults({store.next_number + number: fault})
        with contextlib.suppress(StoreTimeoutError, StoreThrottledError):
            log.rewrap()
        assert set(keys(bed)) <= {"old", "new"}
    assert keys(bed) == ["new"] * 11


def test_some_are_rewrapped_before_a_key_is_missing(bed: TierBed, layout: KeyedLayout) -> None:
    log, looked = opened(bed), 0

    def lose() -> None:
        nonlocal looked
        looked += 1
        layout.without = "old" if looked > 7 else ""

    layout.before = lose
    with pytest.raises(ConfigError):
        log.rewrap()
    assert keys(bed) == ["new"] * 6 + ["old"] * 5
    layout.before, layout.without = lambda: None, ""
    assert log.rewrap() == RewrapReport(11, 5)


def rotated_beside_a_writer(bed: TierBed, layout: KeyedLayout) -> TierLog:
    """Return a writer that has offloaded [110, 120) with the old key, after another process has rotated the keys."""
    layout.active = "old"
    writer = opened(bed)
    offload(writer, 110, 120)
    layout.active = "new"
    opened(bed).rewrap()
    return writer


def test_a_writer_continues_during_the_rotation(bed: TierBed, layout: KeyedLayout) -> None:
    writer = rotated_beside_a_writer(bed, layout)
    offload(writer, 120, 130)
    assert keys(bed) == ["new"] * 13
    bed.clock.advance_ms(60_000)
    writer.expire(25, leader_epoch=0, reason="a test")
    assert keys(bed) == ["new"] * 11


def test_a_bulk_writer_continues_after_the_rotation() -> None:
    """The next batch of a streaming query once failed with LogInUseError."""
    layout = KeyedLayout()
    bed = TierBed(layout=layout)
    opened(bed).offload(made_segments(0, 10), layout="pair", leader_epoch=0, log_start=0, high_watermark=10)
    publisher = TierPublisher(opened(bed), 0, TopicConfig())
    publisher.add(Appending(entries=(), mark=WriteMark("query", 0)))
    layout.active = "new"
    log = opened(bed)
    assert log.rewrap() == RewrapReport(1, 1)
    assert check_single_writer(log.root, take_over=False) == 0
    publisher.add(Appending(entries=(), mark=WriteMark("query", 1)))
    assert keys(bed) == ["new"]


def test_segments_that_expire_meanwhile_stay_expired(bed: TierBed, layout: KeyedLayout) -> None:
    writer, log = opened(bed), opened(bed)
    writer.refresh()
    log.refresh()
    has_expired = False

    def expire() -> None:
        nonlocal has_expired
        if not has_expired:
            has_expired = True
            writer.expire(45, leader_epoch=0, reason="a test")

    layout.before = expire
    log.rewrap()
    layout.before = lambda: None
    assert opened(bed).rewrap() == RewrapReport(7, 0)
    assert keys(bed) == ["new"] * 7


def test_a_second_writer_is_not_hidden_by_keys_that_are_rewrapped(bed: TierBed) -> None:
    writer, other_writer = opened(bed), opened(bed)
    offload(writer, 110, 120)
    bed.clock.advance_ms(60_000)
    other_writer.refresh()
    offload(other_writer, 120, 130)
    opened(bed).rewrap()
    with pytest.raises(FencedEpochError):
        offload(writer, 130, 140)


def test_a_writer_continues_after_it_has_collected_the_roots_of_a_rotation(bed: TierBed, layout: KeyedLayout) -> None:
    writer = rotated_beside_a_writer(bed, layout)
    bed.clock.advance_ms(2 * 3_600_000)
    assert writer.collect(leader_epoch=0).roots
    offload(writer, 120, 130)
    assert keys(bed) == ["new"] * 13


def test_a_topic_that_left_the_tier_returns_after_the_rotation(bed: TierBed) -> None:
    """The rotation adds a root with the kind of the last one, which once fenced the log."""
    writer = opened(bed)
    writer.clear(110, leader_epoch=0, reason="a test")
    rotating_log = opened(bed)
    rotating_log.refresh()
    rotating_log.commit(0, mac_change)
    writer.refresh()
    bed.clock.advance_ms(2 * 3_600_000)
    writer.create(leader_epoch=0, log_start=110, high_watermark=120)
    offload(writer, 110, 120)
    assert keys(bed) == ["new"]


def test_a_second_writer_that_clears_the_log_fences_the_first(bed: TierBed) -> None:
    writer = opened(bed)
    offload(writer, 110, 120)
    opened(bed).clear(120, leader_epoch=0, reason="a test")
    writer.refresh()
    with pytest.raises(FencedEpochError):
        offload(writer, 120, 130)
