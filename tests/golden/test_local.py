"""Directories of brokers that stopped cleanly, read in place, and through an engine over a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

import golden_data
import stratalog
from golden_data import ISOLATIONS, Golden
from golden_reading import fetched_records, from_arrow, hashes
from stratalog import Engine, Reader, TopicPartition
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_TOPIC,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    parse_segment_file,
    segment_file,
)
from stratalog.segment.components import Components

Unpacked = Callable[[str], Golden]
Opened = Callable[[str, str], Engine | Reader]

DIRECTORIES = golden_data.plain_directories()
LOGS = [pytest.param(*found, id="/".join(map(str, found))) for found in golden_data.expected_logs(*DIRECTORIES)]
WAYS = ("reader", "engine")

every_log = pytest.mark.parametrize(("directory", "name"), LOGS)
both_ways = pytest.mark.parametrize("way", WAYS)
both_isolations = pytest.mark.parametrize("isolation", ISOLATIONS)


@pytest.fixture(scope="module")
def opened(golden: Unpacked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Yield a function that opens a golden directory by a reader, or a copy of it by an engine; each is opened once."""
    with ExitStack() as stack:

        @cache
        def open_once(way: str, directory: str) -> Engine | Reader:
            if way == "reader":
                return stack.enter_context(stratalog.open_reader(golden(directory).logs))
            copy = golden(directory).copy_logs(tmp_path_factory.mktemp("copy") / "logs")
            return stack.enter_context(stratalog.open_engine(copy))

        yield open_once


@both_ways
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_all_topics_are_found(golden: Unpacked, opened: Opened, directory: str, way: str) -> None:
    folders = golden(directory).partitions()
    if way == "engine":  # an engine does not open the log of cluster metadata
        folders = [name for name in folders if name.topic != CLUSTER_METADATA_TOPIC]
    host = opened(way, directory)
    assert list(host.partitions()) == folders
    assert {
        TopicPartition(topic, partition) for topic, info in host.topics().items() for partition in info.partitions
    } == set(folders)


@both_ways
@both_isolations
@every_log
def test_every_record_is_what_a_client_read(
    golden: Unpacked, opened: Opened, directory: str, name: TopicPartition, isolation: str, way: str
) -> None:
    log = opened(way, directory).log(*name)
    assert list(log.records(isolation=isolation)) == golden(directory).expected(name, isolation).records


@both_ways
@every_log
def test_bounds_are_what_a_client_saw(
    golden: Unpacked, opened: Opened, directory: str, name: TopicPartition, way: str
) -> None:
    uncommitted, committed = (golden(directory).expected(name, isolation) for isolation in ISOLATIONS)
    offsets = opened(way, directory).log(*name).offsets()
    assert (offsets.log_start, offsets.high_watermark) == (uncommitted.log_start, uncommitted.end)
    assert (offsets.log_start, offsets.last_stable) == (committed.log_start, committed.end)
    assert offsets.log_end == offsets.recovery_point == uncommitted.end


@both_isolations
@every_log
@pytest.mark.parametrize("max_bytes", [1, 1500])
@pytest.mark.long
def test_fetched_bytes_hold_the_same_records(
    golden: Unpacked,
    opened: Opened,
    components: Components,
    directory: str,
    name: TopicPartition,
    isolation: str,
    max_bytes: int,
) -> None:
    log = opened("reader", directory).log(*name)
    assert fetched_records(log, max_bytes, isolation, components) == golden(directory).expected(name, isolation).records


@both_isolations
@every_log
def test_arrow_tables_hold_the_same_records(
    golden: Unpacked, opened: Opened, directory: str, name: TopicPartition, isolation: str
) -> None:
    table = opened("reader", directory).log(*name).to_arrow(isolation=isolation)
    assert from_arrow(table) == golden(directory).expected(name, isolation).records


@every_log
def test_any_range_holds_the_records_in_it(
    golden: Unpacked, opened: Opened, directory: str, name: TopicPartition
) -> None:
    expected = golden(directory).expected(name, "read_uncommitted")
    log = opened("reader", directory).log(*name)
    step = max(1, (expected.end - expected.log_start) // 12)
    for start in range(expected.log_start, expected.end + 1, step):
        for end in (start, start + 1, start + 2 * step + 1):
            expected_records = [r for r in expected.records if max(start, expected.log_start) <= r.offset < end]
            if start > 0:
                assert list(log.records(start, end)) == expected_records, (start, end)


@every_log
def test_the_first_record_at_or_after_a_time_is_found(
    golden: Unpacked, opened: Opened, directory: str, name: TopicPartition
) -> None:
    expected = golden(directory).expected(name, "read_uncommitted")
    log = opened("reader", directory).log(*name)
    for stamp in sorted({r.timestamp_ms for r in expected.records})[:: max(1, len(expected.records) // 20)]:
        expected_offset = next(r.offset for r in expected.records if r.timestamp_ms >= stamp)
        offset = log.offset_for_timestamp(stamp)
        # Control records count too, as in Kafka, and a client does not see them.
        assert offset is not None
        assert offset <= expected_offset
        assert offset == expected_offset or offset not in {r.offset for r in expected.records}, stamp


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_reader_changes_nothing(golden: Unpacked, directory: str) -> None:
    before = hashes(golden(directory).path)
    with stratalog.open_reader(golden(directory).logs) as reader:
        for name in reader.partitions():
            reader.log(*name).to_arrow()
            reader.log(*name).offset_for_timestamp(0)
    assert hashes(golden(directory).path) == before


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_an_engine_that_only_opens_and_closes_leaves_all_segments_as_they_were(
    golden: Unpacked, tmp_path: Path, directory: str
) -> None:
    copy = golden(directory).copy_logs(tmp_path / "logs")
    before = segment_files(copy)
    with stratalog.open_engine(copy) as engine:
        assert all(engine.log(*name).healthy for name in engine.partitions())
    assert segment_files(copy) == before
    assert (copy / CLEAN_SHUTDOWN_FILE).exists()


def segment_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the remaining segment files by path.

    Files that Kafka and the engine delete when they open a log are left out: ``.deleted`` files, and snapshots that are
    neither the newest nor at a segment's base offset.
    """
    contents = {}
    for log in folder.iterdir():
        names = [parse_segment_file(file.name) for file in (log.iterdir() if log.is_dir() else ())]
        current_names = [name for name in names if name and not name.state]
        bases = {name.base_offset for name in current_names if name.suffix == LOG_SUFFIX}
        newest = max((name.base_offset for name in current_names if name.suffix == SNAPSHOT_SUFFIX), default=-1)
        for base, suffix, _ in current_names:
            if suffix != SNAPSHOT_SUFFIX or base in {*bases, newest}:
                file = log / segment_file(base, suffix)
                contents[str(file.relative_to(folder))] = file.read_bytes()
    return contents
