"""A ``.swap`` file that is truncated or damaged: after a crash, Kafka and stratalog recover the same files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_cleaner import KafkaCleaner
from kafka_tools import KafkaTools
from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.model.records import Record
from stratalog.registry.registry import Registry

_PROGRAM = Path(__file__).with_name("java") / "KafkaCleaner.java"
COMPARED = {".log", ".index", ".timeindex", ".txnindex"}
BASES = (0, 3, 6, 9)  # base offsets of old segments with three records each; cleaning merges the first three
KEPT = (0, 2, 4, 5, 7)  # offsets of the batches in the new segment


@pytest.fixture(scope="module")
def kafka_cleaner(kafka_tools: KafkaTools) -> Iterator[KafkaCleaner]:
    with KafkaCleaner(kafka_tools.command(str(_PROGRAM))) as cleaner:
        yield cleaner


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def beds(tmp_path: Path, registry: Registry) -> Iterator[tuple[LogBed, LogBed]]:
    topic = TopicConfig(index_interval_bytes=0, cleanup_policy=("compact",))
    with (
        LogBed(tmp_path / "ours", registry, topic) as our_bed,
        LogBed(tmp_path / "theirs", registry, topic) as kafka_bed,
    ):
        yield our_bed, kafka_bed


def batch(bed: LogBed, offset: int, magic: int) -> bytes:
    return bed.batch(offset, [Record(key=b"k", value=b"%d" % offset, timestamp_ms=offset + 1)], magic=magic)


def write(bed: LogBed, magic: int = 2) -> tuple[Path, list[int]]:
    """Write old segments, and the complete ``.swap`` file of a new segment, which Kafka then uses after a crash.

    Return the path of the ``.swap`` file, and the positions at which its batches begin and end.
    """
    for base in BASES:
        bed.write_segment(base, [batch(bed, offset, magic) for offset in range(base, base + 3)])
    new = [batch(bed, offset, magic) for offset in KEPT]
    path = bed.path(0, ".log.swap")
    path.write_bytes(b"".join(new))
    return path, [sum(map(len, new[:count])) for count in range(len(new) + 1)]


def files(bed: LogBed) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(bed.folder.iterdir()) if path.suffix in COMPARED}


def offsets(bed: LogBed) -> list[int]:
    return [record.offset for record in bed.open_reader(clean=False).records()]


def check(beds: tuple[LogBed, LogBed], kafka: KafkaCleaner) -> list[int]:
    """Open copies of the folder of the first bed with Kafka and with stratalog, and compare the files.

    Return the offsets of the remaining records.
    """
    our_bed, kafka_bed = beds
    shutil.copytree(our_bed.folder, kafka_bed.folder)
    remaining_offsets = offsets(our_bed)
    end = kafka.recover(kafka_bed.folder, our_bed.clock.now_ms(), our_bed.topic)
    log = our_bed.open(clean=False)
    assert log.offsets().log_end == end
    our_bed.close()
    assert files(our_bed) == files(kafka_bed)
    assert offsets(our_bed) == offsets(kafka_bed) == remaining_offsets
    return remaining_offsets


@pytest.mark.parametrize("magic", [2, 0])
@pytest.mark.parametrize("whole", range(len(KEPT) + 1))
@pytest.mark.parametrize("more", [0, 1, 17, -1])
def test_a_torn_swap_file_is_swapped_in_and_truncated(
    beds: tuple[LogBed, LogBed], kafka_cleaner: KafkaCleaner, whole: int, more: int, magic: int
) -> None:
    """The file has some complete batches and a part of the next one, or lacks only the last byte."""
    path, bounds = write(beds[0], magic)
    size = bounds[whole + 1] - 1 if more < 0 and whole < len(KEPT) else bounds[whole] + max(more, 0)
    path.write_bytes(path.read_bytes()[:size])
    check(beds, kafka_cleaner)


@pytest.mark.parametrize("whole", range(len(KEPT)))
@pytest.mark.parametrize("at", [40, 62])
def test_a_swap_file_with_a_bad_batch_is_swapped_in_and_truncated_there(
    beds: tuple[LogBed, LogBed], kafka_cleaner: KafkaCleaner, whole: int, at: int
) -> None:
    path, bounds = write(beds[0])
    data = bytearray(path.read_bytes())
    data[bounds[whole] + at] ^= 1
    path.write_bytes(data)
    check(beds, kafka_cleaner)
