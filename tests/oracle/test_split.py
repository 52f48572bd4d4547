"""Segments whose offsets overflow 31 bits: Kafka and stratalog split the same folder into the same files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import cleaning_logs
from kafka_cleaner import KafkaCleaner
from kafka_tools import KafkaTools
from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.model.messages.control import ControlType
from stratalog.model.records import Record
from stratalog.registry.registry import Registry

_PROGRAM = Path(__file__).with_name("java") / "KafkaCleaner.java"
SPAN = 1 << 31
COMPARED = {".log", ".index", ".timeindex", ".txnindex"}


@pytest.fixture(scope="module")
def kafka_cleaner(kafka_tools: KafkaTools) -> Iterator[KafkaCleaner]:
    with KafkaCleaner(kafka_tools.command(str(_PROGRAM))) as cleaner:
        yield cleaner


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def beds(tmp_path: Path, registry: Registry) -> Iterator[tuple[LogBed, LogBed]]:
    topic = TopicConfig(index_interval_bytes=100, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    with (
        LogBed(tmp_path / "ours", registry, topic) as our_bed,
        LogBed(tmp_path / "theirs", registry, topic) as kafka_bed,
    ):
        yield our_bed, kafka_bed


def write(bed: LogBed, seed: int, magic: int, codec: str | None, *, closed: bool = True) -> list[int]:
    """Write a segment whose offsets overflow, and return the first offsets of its batches.

    An old cleaner may have left such a segment. With ``closed``, write another segment after it.
    """
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    batches, starts, offset = list[bytes](), list[int](), chance.choice([0, 0, 30])
    for _ in range(chance.randrange(8, 14)):
        offset += chance.choice([0, 0, 3, 500, SPAN - 3, SPAN // 2, SPAN, 2 * SPAN])
        count = chance.randrange(1, 5)
        records = [
            Record(
                key=b"k%d" % chance.randrange(6),
                value=b"%d" % record_offset,
                timestamp_ms=1_700_000_000_000 + record_offset % 5000,
            )
            for record_offset in range(offset, offset + count)
        ]
        batches.append(bed.batch(offset, records, magic=magic, codec=codec))
        starts.append(offset)
        offset += count
    if magic == 2 and seed % 2:
        records = [Record(key=b"in", value=b"doubt", timestamp_ms=1)]
        offset += 2 * SPAN
        batches.append(bed.batch(offset, records, producer=(9, 0, 0), transactional=True))
        batches.append(bed.marker(offset + 1, 9, ControlType.ABORT))
        starts.append(offset)
        offset += 2
    bed.write_segment(0, batches)
    if closed:
        bed.write_segment(offset + 7, [bed.batch(offset + 7, [Record(key=b"end", timestamp_ms=5)], magic=magic)])
    return starts


def files(bed: LogBed) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(bed.folder.iterdir()) if path.suffix in COMPARED}


@pytest.mark.parametrize(("magic", "codec"), [(2, None), (2, "lz4"), (1, None), (1, "gzip"), (0, None), (0, "gzip")])
@pytest.mark.parametrize("seed", range(4))
def test_both_split_a_segment_into_the_same_files(
    beds: tuple[LogBed, LogBed], kafka_cleaner: KafkaCleaner, seed: int, magic: int, codec: str | None
) -> None:
    our_bed, kafka_bed = beds
    starts = write(our_bed, seed, magic, codec, closed=seed != 3)
    assert starts[-1] >= SPAN
    shutil.copytree(our_bed.folder, kafka_bed.folder)
    records = [(record.offset, record.value) for record in our_bed.open_reader(clean=False).records()]
    end = kafka_cleaner.recover(kafka_bed.folder, our_bed.clock.now_ms(), our_bed.topic)
    log = our_bed.open(clean=False)
    assert log.offsets().log_end == end
    our_bed.close()
    assert len([name for name in files(our_bed) if name.endswith(".log")]) > 2
    assert files(our_bed) == files(kafka_bed)
    for bed in beds:
        assert [(record.offset, record.value) for record in bed.open_reader(clean=False).records()] == records


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("magic", [2, 1])
@pytest.mark.parametrize("indexed", [True, False])
def test_cleaning_keeps_the_same_records_as_the_broker(
    beds: tuple[LogBed, LogBed], kafka_cleaner: KafkaCleaner, seed: int, magic: int, *, indexed: bool
) -> None:
    """If indexes exist, Kafka detects the overflow only during cleaning, and splits only segments that still overflow.

    There are no aborted transactions: segments that Kafka splits have no transaction index, so aborted records become
    visible.
    """
    our_bed, kafka_bed = beds
    write(our_bed, seed, magic, None)
    for suffix in (".index", ".timeindex") if indexed else ():
        our_bed.path(0, suffix).touch()
    shutil.copytree(our_bed.folder, kafka_bed.folder)
    end, *_ = kafka_cleaner.clean(kafka_bed.folder, our_bed.clock.now_ms(), 0, 1 << 20, our_bed.topic)
    log = our_bed.open()
    log.maintenance.resume_cleaning(0)
    result = cleaning_logs.clean(our_bed, log, cleaning_logs.LIMITS)
    assert result is not None
    assert result.error is None
    assert result.end == end
    our_bed.close()
    contents = [
        [(record.offset, record.key, record.value) for record in bed.open_reader(clean=False).records()] for bed in beds
    ]
    assert contents[0] == contents[1]
