"""Number of data records of a segment and their smallest timestamp, compared with the records that a reader returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest

from stratalog import Engine, Record, open_engine, open_reader
from stratalog.spi import SegmentInfo
from stratalog.tier.read.remote_segment import RemoteSegment

START_MS = 1_700_000_000_000


def append(engine: Engine, *stamps: int, **config: object) -> None:
    engine.create_topic("t", config={"message.timestamp.type": "CreateTime", **config})
    log = engine.log("t", 0)
    for first in range(0, len(stamps), 3):
        log.append([Record(timestamp_ms=stamp, key=b"k", value=bytes(50)) for stamp in stamps[first : first + 3]])


def infos(uri: str) -> list[SegmentInfo]:
    """Return the segments in the manifest of a tier."""
    with open_reader(uri) as reader:
        segments = list(reader.log("t", 0).view().readable())
    assert all(isinstance(segment, RemoteSegment) for segment in segments)
    return [segment.info for segment in segments if isinstance(segment, RemoteSegment)]


def stored(engine: Engine, uri: str) -> SegmentInfo:
    """Offload the log, and return the manifest entry of its only segment."""
    engine.log("t", 0).roll()
    engine.offload()
    [info] = infos(uri)
    return info


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the URI of an empty tier."""
    (tmp_path / "tier").mkdir()
    return (tmp_path / "tier").as_uri()


@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
def test_the_least_timestamp_is_that_of_a_record_and_not_of_a_batch(tmp_path: Path, uri: str, codec: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        stamps = [START_MS + late for late in (5, 3, 9, 8, 7, 4, 10)]
        append(engine, *stamps, **{"compression.type": codec})
        info = stored(engine, uri)
    assert (info.records, info.min_timestamp_ms, info.max_timestamp_ms) == (7, min(stamps), max(stamps))


def transactions(engine: Engine) -> None:
    engine.create_topic("t")
    with engine.producer(transactional_id="x") as producer:
        for number in range(6):
            producer.begin_transaction()
            for _ in range(4):
                producer.send("t", value=b"v", partition=0)
            producer.flush()
            producer.abort_transaction() if number % 2 else producer.commit_transaction()


def append_times(engine: Engine) -> None:
    append(engine, *range(START_MS, START_MS + 8), **{"message.timestamp.type": "LogAppendTime"})


@pytest.mark.parametrize("fill", [transactions, append_times])
def test_the_facts_match_the_records_of_a_read_uncommitted_reader(
    tmp_path: Path, uri: str, fill: Callable[[Engine], None]
) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        fill(engine)
        info = stored(engine, uri)
    with open_reader(uri) as reader:
        records = list(reader.log("t", 0).records())
    assert info.records == len(records) > 0
    assert info.min_timestamp_ms == min(record.timestamp_ms for record in records)


def test_a_segment_that_compaction_wrote_is_counted_again(tmp_path: Path, uri: str) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.bytes": 1_000}
    with open_engine(tmp_path / "data", tier=uri) as engine:
        append(engine, *range(START_MS, START_MS + 60), **config)
        engine.log("t", 0).roll()
        engine.offload()
        before = [info.records for info in infos(uri)]
        list(engine.run_cleaner())
        expected = len(list(engine.log("t", 0).records()))
        local = sum(segment.end_offset - segment.base_offset for segment in engine.log("t", 0).view().segments[-1:])
    after = [info.records for info in infos(uri)]
    assert sum(map(int, filter(None, before))) == 60
    assert local == 0
    assert sum(map(int, filter(None, after))) == expected < 60
    assert None not in after


def test_a_segment_with_an_unknown_codec_is_uploaded_without_the_number_of_its_records(
    tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        append(engine, START_MS)
        log = engine.log("t", 0)
        with log.fetch(0) as fetched:
            batch = bytearray(fetched.read())
        batch[:8] = (1).to_bytes(8, "big")  # base offset
        batch[22] |= 6  # attributes: the number of a codec that is not installed
        batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
        log.follow(1)
        log.append_as_follower(bytes(batch), 2, 0)
        log.lead(2)
        info = stored(engine, uri)
    assert info.records is None
    assert "without the number of its records" in caplog.text
