"""Directories of a killed broker: recovery has the result of Kafka's recovery; a reader sees it without a repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import golden_data
import stratalog
from golden_data import ISOLATIONS, Golden
from golden_reading import hashes
from stratalog import Engine, Reader, TopicPartition
from stratalog.epochs.checkpoint import parse_epochs
from stratalog.model.names import LEADER_EPOCHS_FILE, PARTITION_METADATA_FILE
from stratalog.model.offsets import EpochEntry
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot

Unpacked = Callable[[str], Golden]
DIRECTORIES = golden_data.crashed_directories()
LOGS = [pytest.param(*found, id="/".join(map(str, found))) for found in golden_data.expected_logs(*DIRECTORIES)]
every_log = pytest.mark.parametrize(("directory", "name"), LOGS)
SEGMENT_FILES = ("*.log", "*.index", "*.timeindex", "*.txnindex")


@pytest.fixture
def copy(golden: Unpacked, directory: str, name: TopicPartition, tmp_path: Path) -> Path:
    """Return a copy of the log directory that contains only this log."""
    return golden(directory).copy_logs(tmp_path / "logs", name)


def seen(opened: Engine | Reader, name: TopicPartition) -> list[object]:
    """Return the bounds and the records, for both isolation levels."""
    log = opened.log(*name)
    offsets = log.offsets()
    ends = (offsets.high_watermark, offsets.last_stable)
    return [
        (isolation, offsets.log_start, end, list(log.records(isolation=isolation)))
        for isolation, end in zip(ISOLATIONS, ends, strict=True)
    ]


def expected(golden: Golden, name: TopicPartition) -> list[object]:
    client_reads = [(isolation, golden.expected(name, isolation)) for isolation in ISOLATIONS]
    return [(isolation, client.log_start, client.end, client.records) for isolation, client in client_reads]


@every_log
def test_an_engine_recovers_what_a_client_read(
    golden: Unpacked, copy: Path, directory: str, name: TopicPartition
) -> None:
    with stratalog.open_engine(copy) as engine:
        assert seen(engine, name) == expected(golden(directory), name)


@every_log
@pytest.mark.parametrize("pattern", SEGMENT_FILES)
def test_segments_are_byte_for_byte_what_kafka_recovered(
    golden: Unpacked, copy: Path, directory: str, name: TopicPartition, pattern: str
) -> None:
    with stratalog.open_engine(copy):
        pass
    recovered = golden(directory).path / "recovered" / str(name)
    assert contents(copy / str(name), pattern) == contents(recovered, pattern)


@every_log
def test_everything_else_in_the_folder_is_what_kafka_recovered(
    golden: Unpacked, copy: Path, directory: str, name: TopicPartition
) -> None:
    """The other files have the content of Kafka's files.

    Snapshots are compared by their producers. Leader epochs are equal, except the epoch of Kafka's later leader.
    """
    with stratalog.open_engine(copy) as engine:
        log_end = engine.log(*name).offsets().log_end
    recovered_folder, kafka_folder = copy / str(name), golden(directory).path / "recovered" / str(name)
    assert {path.name for path in recovered_folder.iterdir()} == {path.name for path in kafka_folder.iterdir()}
    for path in recovered_folder.glob("*.snapshot"):
        assert producers(path) == producers(kafka_folder / path.name)
    assert epochs(recovered_folder) == [entry for entry in epochs(kafka_folder) if entry.start_offset < log_end]
    assert (recovered_folder / PARTITION_METADATA_FILE).read_bytes() == (
        kafka_folder / PARTITION_METADATA_FILE
    ).read_bytes()


@every_log
def test_opening_again_changes_no_segment(copy: Path, directory: str, name: TopicPartition) -> None:
    del directory
    with stratalog.open_engine(copy):
        pass
    once = [contents(copy / str(name), pattern) for pattern in SEGMENT_FILES]
    with stratalog.open_engine(copy) as engine:
        first = seen(engine, name)
    assert [contents(copy / str(name), pattern) for pattern in SEGMENT_FILES] == once
    with stratalog.open_reader(copy) as reader:
        assert seen(reader, name) == first


@every_log
def test_a_reader_sees_the_same_and_changes_nothing(golden: Unpacked, directory: str, name: TopicPartition) -> None:
    unpacked = golden(directory)
    original_hashes = hashes(unpacked.logs)
    with stratalog.open_reader(unpacked.logs) as reader:
        assert seen(reader, name) == expected(unpacked, name)
    assert hashes(unpacked.logs) == original_hashes


def producers(snapshot: Path) -> list[ProducerEntry]:
    return sorted(decode_snapshot(snapshot.read_bytes(), snapshot.name))


def epochs(folder: Path) -> list[EpochEntry]:
    return list(parse_epochs((folder / LEADER_EPOCHS_FILE).read_bytes(), folder.name))


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}
