"""Plans for very many segments: memory, number of requests, and division of segments of very different sizes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog import Reader, Record, TopicPartition, open_engine, open_reader
from stratalog.reading import OffsetRange, ReadSource, Split, plan_splits, scan, split_plan
from stratalog.spi.layouts import StoredSegment

PARTITIONS, SEGMENTS, END = 6, 7, 1 << 62
NAMES = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URI of a tier of 6 partitions with 7 segments each."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "tier").mkdir()
    with open_engine(folder / "data", tier=(folder / "tier").as_uri()) as engine:
        engine.create_topic("orders", partitions=PARTITIONS)
        for name in NAMES:
            log = engine.log(*name)
            for number in range(SEGMENTS):
                log.append([Record(timestamp_ms=number, value=b"%d" % number) for _ in range(3)])
                log.roll()
        engine.offload()
    return (folder / "tier").as_uri()


def planned(reader: Reader, most_entries: list[int]) -> list[Split]:
    """Return the splits of all partitions.

    ``most_entries`` gets the number of manifest entries in memory before each log.
    """

    def ranges() -> Iterator[OffsetRange]:
        for name in NAMES:
            gc.collect()
            most_entries.append(sum(isinstance(item, StoredSegment) for item in gc.get_objects()))
            yield OffsetRange(name, 0, END)

    return plan_splits(reader, ranges(), split_bytes=1 << 20)


@pytest.mark.usefixtures("only_new_objects")
def test_a_large_plan_keeps_no_manifests_and_needs_no_further_requests(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, most_entries, requests = list[list[Split]](), list[int](), list[int]()
    for limit in (split_plan._KEPT_SEGMENTS, 0):  # noqa: SLF001 - a plan of 10,000 segments takes seconds
        monkeypatch.setattr(split_plan, "_KEPT_SEGMENTS", limit)
        with open_reader(uri) as reader:
            entries = list[int]()
            plans.append(planned(reader, entries))
            most_entries.append(max(entries))
            assert reader.tier is not None
            requests.append(reader.tier.metrics().store.requests)
    assert plans[0] == plans[1]
    assert sum(len(split.pieces) for split in plans[0]) == PARTITIONS * SEGMENTS
    assert most_entries[0] >= (PARTITIONS - 1) * SEGMENTS
    assert most_entries[1] <= 2 * SEGMENTS
    assert requests[0] == requests[1] <= 2 * PARTITIONS + 2


def test_more_bytes_than_splits_should_have_make_larger_splits(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_plan, "SMALLEST_SPLIT_BYTES", 1)
    monkeypatch.setattr(split_plan, "LARGEST_SPLIT_BYTES", 1)
    monkeypatch.setattr(split_plan, "MAX_SPLITS", 7)
    with open_reader(uri) as reader:
        splits = plan_splits(reader, [OffsetRange(name, 0, END) for name in NAMES], usual_splits=1)
    assert len(splits) == 7
    sizes = [split.size_bytes for split in splits]
    assert max(sizes) < 1.5 * min(sizes)


def test_a_partition_of_a_hundred_times_the_others_is_divided_among_tasks(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tier = (tmp_path / "tier").as_uri()
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("orders", partitions=11, config={"segment.bytes": 1 << 20, "index.interval.bytes": 512})
        for partition in range(11):
            log = engine.log("orders", partition)
            for _ in range(200 if partition == 5 else 2):
                log.append([Record(timestamp_ms=1, value=bytes(10_000))])
            log.roll()
        engine.offload()
    source, rows = ReadSource(tier), Counter[int]()
    with source.open(peek=True) as reader:
        ranges = [OffsetRange(TopicPartition("orders", partition), 0, END) for partition in range(11)]
        splits = plan_splits(reader, ranges, min_splits=22)
    sizes = [split.size_bytes for split in splits]
    assert len(splits) >= 20
    assert max(sizes) <= 2 * sum(sizes) / len(sizes)
    assert sum(any(piece.log.partition == 5 for piece in split.pieces) for split in splits) >= 18
    for split in splits:
        for scanned in scan(source, split):
            rows[scanned.log.partition] += scanned.batch.num_rows
    assert rows == {partition: 200 if partition == 5 else 2 for partition in range(11)}
