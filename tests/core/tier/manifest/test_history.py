from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sim_objects import SimObjectStore
from stratalog.errors import ConfigError
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS
from tier_bed import TierBed, offload

PREFIX = log_prefix(LOG, TOPIC_ID)


def grown(bed: TierBed, store: SimObjectStore | None = None) -> TierLog:
    """Return a log with the versions 1 to 5, a minute apart. Version 5 does not refer to the first two segments."""
    log = bed.open(store).log(LOG, TOPIC_ID)
    for base in range(0, 40, 10):
        offload(log, base, base + 10)
        bed.clock.advance_ms(60_000)
    log.expire(20, leader_epoch=0, reason="retention.bytes")
    return log


def test_the_history_shows_each_change_and_its_reason() -> None:
    log = grown(TierBed())
    changes = [(root.version, root.change, root.reason, root.log_start, root.segments) for root in log.history()]
    assert changes[0] == (5, "expire", "retention.bytes", 20, 2)
    assert changes[1:] == [
        (number, "offload", f"segment [{number * 10 - 10}, {number * 10})", 0, number) for number in (4, 3, 2, 1)
    ]


def test_an_earlier_version_is_read_as_it_was() -> None:
    log = grown(TierBed())
    view = log.view_as_of(3)
    assert [(segment.base_offset, segment.end_offset) for segment in view.segments] == [(0, 10), (10, 20), (20, 30)]
    assert all(segment.read(0, segment.size_bytes) for segment in view.segments)
    assert (view.log_start, log.view().log_start) == (0, 20)


def test_a_moment_means_the_newest_state_that_was_made_by_then() -> None:
    bed = TierBed()
    began = bed.clock.now_ms()
    store = SimObjectStore(bed.bucket)
    log = grown(bed, store)
    for after_ms, version in ((0, 1), (59_999, 1), (60_000, 2), (200_000, 4), (240_000, 5), (10**9, 5)):
        moment = datetime.fromtimestamp((began + after_ms) / 1000, UTC)
        before = store.counts["read"]
        assert log.view_as_of(moment).version == version
        assert store.counts["read"] - before <= 5
        assert log.view_as_of(moment.replace(tzinfo=None)).version == version
    with pytest.raises(ConfigError, match=r"has version 1.* to version 5"):
        log.view_as_of(datetime.fromtimestamp((began - 1) / 1000, UTC))


@pytest.mark.parametrize("version", [-1, 0, 6, 2**62])
def test_a_missing_version_is_reported(version: int) -> None:
    with pytest.raises(ConfigError, match="cannot be read as of"):
        grown(TierBed()).view_as_of(version)


@pytest.mark.parametrize("wanted", ["2026-01-01", "3", 3.0, True])
def test_text_that_is_neither_a_version_nor_a_time_is_refused(wanted: Any) -> None:
    with pytest.raises(ConfigError, match="must be an integer or a datetime"):
        grown(TierBed()).view_as_of(wanted)


def test_a_log_without_roots_has_no_history() -> None:
    log = TierBed().open().log(LOG, TOPIC_ID)
    assert (list(log.history()), log.view_as_of(7).version) == ([], 0)


def test_history_is_kept_for_the_time_of_the_setting() -> None:
    bed = TierBed()
    log = grown(bed)
    bed.clock.advance_ms(5 * GRACE_MS)
    log.collect(history_ms=6 * GRACE_MS)
    assert [root.version for root in log.history()] == [5, 4, 3, 2, 1]
    assert all(segment.read(0, segment.size_bytes) for segment in log.view_as_of(1).segments)
    bed.clock.advance_ms(GRACE_MS)
    log.collect(history_ms=6 * GRACE_MS)
    assert [root.version for root in log.history()] == [5]
    assert all(segment.read(0, segment.size_bytes) for segment in log.view().segments)


def test_a_stale_root_is_no_part_of_the_history() -> None:
    bed = TierBed()
    log = grown(bed)
    other_bed = TierBed()
    other_bed.seed = 77
    grown(other_bed)
    bed.bucket.write(manifest_key(PREFIX, 2), other_bed.bucket.objects[manifest_key(PREFIX, 2)][0])
    assert [root.version for root in log.history()] == [5, 4, 3, 1]


def test_a_stale_root_is_read_neither_by_its_version_nor_by_its_time() -> None:
    """This holds even if the roots between the stale root and the chain have been collected."""
    bed = TierBed()
    log = grown(bed)
    other_bed = TierBed()
    other_bed.seed = 77
    grown(other_bed)
    for version in (1, 2):
        del bed.bucket.objects[manifest_key(PREFIX, version)]
    stale = other_bed.bucket.objects[manifest_key(PREFIX, 1)][0]
    bed.bucket.write(manifest_key(PREFIX, 1), stale)
    assert [root.version for root in log.history()] == [5, 4, 3]
    other_roots = other_bed.open().log(LOG, TOPIC_ID).history()
    first_ms = min(root.created_ms for root in other_roots)
    for version_or_time in (1, datetime.fromtimestamp(first_ms / 1000, UTC)):
        with pytest.raises(ConfigError, match="cannot be read as of"):
            log.view_as_of(version_or_time)
    assert log.view_as_of(3).version == 3
