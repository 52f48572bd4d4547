from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import made_segment
from stratalog.tier.upkeep.cost import COMMIT_WRITES, Bill, Prices, bill, estimate, tiny_segments, upload_writes

MIB = 1 << 20
MONTH_S = 730 * 3600


def config(**values: object) -> TopicConfig:
    return TopicConfig.from_mapping({name.replace("_", "."): value for name, value in values.items()}, "test")


@pytest.mark.parametrize(
    ("size_bytes", "requests"), [(0, 1), (64 * MIB, 1), (64 * MIB + 1, 4), (1 << 30, 18), ((1 << 30) + 1, 19)]
)
def test_an_upload_is_one_request_or_its_parts_and_two(size_bytes: int, requests: int) -> None:
    assert upload_writes(size_bytes) == requests


def test_a_mebibyte_a_second_is_at_most_21_writes_a_gib() -> None:
    cost = estimate(config(), MIB)
    assert cost.segment_bytes == 1 << 30
    assert cost.writes_per_gib <= 21
    assert cost.segments == round(MONTH_S / 1024)
    assert cost.reads == cost.segments
    assert cost.warning == ""


def test_a_topic_without_writes_costs_nothing() -> None:
    cost = estimate(config(), 0)
    assert (cost.segments, cost.writes, cost.reads, cost.stored_bytes) == (0, 0, 0, 0)
    assert (cost.request_cost, cost.storage_cost, cost.writes_per_gib, cost.warning) == (0, 0, 0, "")


def test_prices_are_of_a_thousand_requests_and_a_gib() -> None:
    cost = estimate(config(retention_ms=86_400_000), MIB, prices=Prices(5, 3, 2))
    assert cost.request_cost == pytest.approx((cost.writes * 5 + cost.reads * 3) / 1000)
    assert cost.storage_cost == pytest.approx(86_400 / 1024 * 2)


def test_retention_bounds_what_is_stored() -> None:
    assert estimate(config(retention_ms=1_000_000), MIB).stored_bytes == 1_000 * MIB
    assert estimate(config(retention_bytes=MIB), MIB, partitions=3).stored_bytes == 3 * MIB
    assert estimate(config(retention_ms=-1), MIB).stored_bytes == MONTH_S * MIB


def test_retention_bounds_nothing_without_the_policy_delete() -> None:
    assert estimate(config(cleanup_policy="compact", retention_ms=1_000), MIB).stored_bytes == MONTH_S * MIB
    assert estimate(config(cleanup_policy="compact,delete", retention_ms=1_000), MIB).stored_bytes == MIB


def test_partitions_make_segments_smaller_once_time_rolls_them() -> None:
    one_partition = estimate(config(segment_ms=3_600_000), MIB)
    many_partitions = estimate(config(segment_ms=3_600_000), MIB, partitions=100)
    assert one_partition.segment_bytes == 1 << 30
    assert many_partitions.segment_bytes == round(3_600 * MIB / 100)
    assert many_partitions.writes > one_partition.writes


@pytest.mark.parametrize(
    ("segment_bytes", "dear"), [(64 * MIB, False), (8 * MIB, False), (4 * MIB, True), (1000, True)]
)
def test_requests_that_are_dear_beside_storage_are_warned_about(segment_bytes: int, *, dear: bool) -> None:
    """At about 7 MiB, three writes and a read cost a tenth of a month of storage, at the published prices."""
    assert bool(estimate(config(segment_bytes=segment_bytes), MIB).warning) == dear
    assert estimate(config(segment_bytes=segment_bytes), MIB, prices=Prices(0, 0, 1)).warning == ""
    assert estimate(config(segment_bytes=segment_bytes), MIB, prices=Prices(1, 1, 0)).warning == ""


def test_a_layout_with_more_objects_costs_more_requests() -> None:
    single_cost, plain_cost = estimate(config(), MIB), estimate(config(tier_layout="plain"), MIB)
    assert plain_cost.writes == single_cost.writes + 5 * single_cost.segments
    assert single_cost.writes == single_cost.segments * (upload_writes(1 << 30) + COMMIT_WRITES)


def entry(number: int, log_bytes: int, *, objects: int = 1) -> StoredSegment:
    """Return a segment with a log and an index of a tenth of its size, in one object or in two."""
    info = replace(made_segment(number * 10, number * 10 + 10).info, size_bytes=log_bytes)
    log, index = ("a", "b") if objects == 2 else ("a", "a")
    slices = {
        FileKind.LOG: ObjectSlice(f"{number}-{log}", 0, log_bytes),
        FileKind.OFFSET_INDEX: ObjectSlice(f"{number}-{index}", log_bytes if objects == 1 else 0, log_bytes // 10),
    }
    return StoredSegment(info, "some@1", slices, "0" * 64)


def test_a_tier_is_priced_by_its_objects() -> None:
    cost = bill([entry(0, 640 * MIB), entry(1, 20 * MIB, objects=2)], 7, prices=Prices(1, 10, 100))
    assert (cost.segments, cost.objects, cost.commits) == (2, 3, 7)
    assert (cost.log_bytes, cost.stored_bytes) == (660 * MIB, 726 * MIB)
    assert (cost.smallest_bytes, cost.largest_bytes) == (20 * MIB, 640 * MIB)
    assert cost.writes == upload_writes(704 * MIB) + 2 + 2 * COMMIT_WRITES
    assert cost.writes_per_gib == pytest.approx(cost.writes * 1024 / 660)
    assert cost.request_cost == pytest.approx((cost.writes * 1 + 2 * 10) / 1000)
    assert cost.storage_cost == pytest.approx(726 / 1024 * 100)


def test_smaller_parts_are_more_requests() -> None:
    assert (
        bill([entry(0, 640 * MIB)], 1, part_bytes=16 * MIB).writes == upload_writes(704 * MIB, 16 * MIB) + COMMIT_WRITES
    )


def test_an_empty_log_costs_nothing() -> None:
    assert bill([], 3) == Bill(0, 0, 0, 0, 0, 0, 3, 0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("log_bytes", "dear"), [(64 * MIB, False), (8 * MIB, False), (4 * MIB, True), (1000, True)])
def test_a_tier_of_tiny_segments_is_warned_about(log_bytes: int, *, dear: bool) -> None:
    assert bool(bill([entry(number, log_bytes) for number in range(3)], 3).warning) == dear
    assert bool(tiny_segments(config(segment_bytes=log_bytes, remote_storage_enable=True))) == dear
    assert tiny_segments(config(segment_bytes=log_bytes)) == ""
    assert tiny_segments(config(segment_bytes=log_bytes, remote_storage_enable=True), Prices(0, 0, 1)) == ""
