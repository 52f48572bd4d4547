"""All closed segments are in S3 and not on local disk: records, bounds and results stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import golden_data
import stratalog
from golden_data import ISOLATIONS, Golden
from golden_reading import fetched_records, from_arrow
from stored_batches import batches_in
from stratalog import Engine, LogReader, Reader, TopicPartition
from stratalog.segment.components import Components
from stratalog.testing.s3 import LocalS3

Unpacked = Callable[[str], Golden]

DIRECTORIES = [
    *golden_data.plain_directories(),
    *golden_data.crashed_directories(),
    *golden_data.tiered_directories(),
]
LOGS = [pytest.param(*found, id="/".join(map(str, found))) for found in golden_data.expected_logs(*DIRECTORIES)]
every_directory = pytest.mark.parametrize("directory", DIRECTORIES)
every_log = pytest.mark.parametrize(("directory", "name"), LOGS)
both_isolations = pytest.mark.parametrize("isolation", ISOLATIONS)
EVICT_EVERYTHING = {"retention.ms": -1, "local.retention.bytes": 0, "file.delete.delay.ms": 0}


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A golden directory, opened in three ways.

    Attributes:
        whole: reader of a copy with all segments on local disk.
        engine: engine of another copy, which has offloaded all segments.
        bucket: reader of the bucket alone.
        local_bases: base offsets of the segments that each log of the engine still has on local disk.
    """

    whole: Reader
    engine: Engine
    bucket: Reader
    local_bases: dict[TopicPartition, list[int]]


OffloadedDirectories = Callable[[str], Offloaded]


@pytest.fixture(scope="module")
def offloaded(
    golden: Unpacked, local_s3: LocalS3, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OffloadedDirectories]:
    """Yield a function that returns an offloaded and evicted directory by name; each is offloaded once."""
    with ExitStack() as stack:

        @cache
        def offload_once(directory: str) -> Offloaded:
            source, copy = (tmp_path_factory.mktemp("offloaded") / "logs" for _ in range(2))
            for target in (source, copy):
                golden(directory).assemble(target)
            uri = local_s3.uri(f"golden/{directory}")
            engine = stack.enter_context(
                stratalog.open_engine(copy, tier=uri, tier_options=local_s3.options, topic_defaults=EVICT_EVERYTHING)
            )
            engine.offload()
            engine.apply_retention()
            return Offloaded(
                stack.enter_context(stratalog.open_reader(source)),
                engine,
                stack.enter_context(stratalog.open_reader(uri, tier_options=local_s3.options)),
                {name: base_offsets(copy / str(name)) for name in engine.partitions()},
            )

        yield offload_once


def base_offsets(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.log"))


@every_directory
@pytest.mark.long
def test_only_segments_that_kafka_would_not_upload_remain_on_local_disk(
    offloaded: OffloadedDirectories, directory: str
) -> None:
    """The active segment stays, and each segment that ends above the last stable offset: Kafka uploads neither.

    If local retention will evict the active segment next, and the tier has all records before it, the segment is
    closed.
    """
    offloaded_directory = offloaded(directory)
    for name in offloaded_directory.engine.partitions():
        segments, offsets = (
            offloaded_directory.whole.log(*name).segments(),
            offloaded_directory.whole.log(*name).offsets(),
        )
        staying = [
            segment.base_offset for segment in segments if segment.is_active or segment.end_offset > offsets.last_stable
        ]
        if segments[-1].size_bytes and staying == [segments[-1].base_offset]:
            staying.append(offsets.log_end)
        assert offloaded_directory.local_bases[name] == staying, name
        assert [
            segment.base_offset for segment in offloaded_directory.engine.log(*name).segments() if segment.is_local
        ] == staying, name


@every_directory
def test_the_directories_have_something_to_offload(offloaded: OffloadedDirectories, directory: str) -> None:
    offloaded_directory = offloaded(directory)
    evicted = [
        segment
        for name in offloaded_directory.engine.partitions()
        for segment in offloaded_directory.engine.log(*name).segments()
        if not segment.is_local
    ]
    assert len(evicted) > 3


@both_isolations
@every_log
@pytest.mark.long
def test_every_record_is_read_across_both_tiers(
    golden: Unpacked, offloaded: OffloadedDirectories, directory: str, name: TopicPartition, isolation: str
) -> None:
    log = offloaded(directory).engine.log(*name)
    expected = golden(directory).expected(name, isolation)
    assert list(log.records(isolation=isolation)) == expected.records
    assert bounds(log, isolation) == (expected.log_start, expected.end)


@both_isolations
@every_log
def test_fetched_bytes_and_tables_hold_the_same_across_both_tiers(
    golden: Unpacked,
    offloaded: OffloadedDirectories,
    components: Components,
    directory: str,
    name: TopicPartition,
    isolation: str,
) -> None:
    log = offloaded(directory).engine.log(*name)
    expected = golden(directory).expected(name, isolation).records
    assert fetched_records(log, 10_000, isolation, components) == expected
    assert from_arrow(log.to_arrow(isolation=isolation)) == expected


@every_directory
def test_the_bucket_names_every_log_that_has_a_tier(offloaded: OffloadedDirectories, directory: str) -> None:
    offloaded_directory = offloaded(directory)
    partitions = offloaded_directory.engine.partitions()
    assert offloaded_directory.bucket.partitions() == partitions
    assert {topic: info.topic_id for topic, info in offloaded_directory.bucket.topics().items()} == {
        name.topic: offloaded_directory.engine.log(*name).topic_id for name in partitions
    }


@both_isolations
@every_log
@pytest.mark.long
def test_the_bucket_alone_holds_every_record_below_the_local_ones(
    golden: Unpacked,
    offloaded: OffloadedDirectories,
    components: Components,
    directory: str,
    name: TopicPartition,
    isolation: str,
) -> None:
    """The bucket must not show records of a transaction whose marker is only in a local segment.

    An earlier release showed them.
    """
    offloaded_directory = offloaded(directory)
    expected = golden(directory).expected(name, isolation)
    end = offloaded_directory.local_bases[name][0]
    if name not in offloaded_directory.bucket.partitions():
        assert not any(not segment.is_local for segment in offloaded_directory.engine.log(*name).segments())
        return
    log = offloaded_directory.bucket.log(*name)
    start, shown_end = bounds(log, isolation)
    if isolation == "read_committed":
        end = min([end, *first_offsets_of_undecided(offloaded_directory.whole.log(*name), end, components)])
        assert shown_end <= end  # compaction may have removed the first records of an undecided transaction
    else:
        assert shown_end == end
    assert start == expected.log_start
    assert list(log.records(isolation=isolation)) == [r for r in expected.records if r.offset < end]


@both_isolations
@every_log
def test_offsets_for_timestamps_are_those_of_the_whole_local_log(
    golden: Unpacked, offloaded: OffloadedDirectories, directory: str, name: TopicPartition, isolation: str
) -> None:
    offloaded_directory = offloaded(directory)
    stamps = {record.timestamp_ms for record in golden(directory).expected(name, isolation).records}
    timestamps = sorted({0, *stamps, *(stamp + 1 for stamp in stamps)})[:: 1 + len(stamps) // 15]
    assert {ms: offloaded_directory.engine.log(*name).offset_for_timestamp(ms, isolation) for ms in timestamps} == {
        ms: offloaded_directory.whole.log(*name).offset_for_timestamp(ms, isolation) for ms in timestamps
    }


def bounds(log: LogReader, isolation: str) -> tuple[int, int]:
    offsets = log.offsets()
    return offsets.log_start, offsets.high_watermark if isolation == "read_uncommitted" else offsets.last_stable


def first_offsets_of_undecided(log: LogReader, end: int, components: Components) -> list[int]:
    """Return the first offsets of transactions that have records below ``end`` and no marker there."""
    offset, began = log.offsets().log_start, dict[int, int]()
    while offset < end:
        with log.fetch(offset, 1) as fetched:
            for batch, _ in batches_in(fetched.read(), components):
                if batch.is_control:
                    began.pop(batch.producer_id, None)
                elif batch.is_transactional:
                    began.setdefault(batch.producer_id, batch.base_offset)
            offset = fetched.next_offset
    return list(began.values())
