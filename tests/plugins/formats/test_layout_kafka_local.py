"""Kafka's own remote layout: refused input, and the texts of errors. tests/golden compares reads with real Kafka."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from log_bed import LogBed, records
from stratalog.errors import ConfigError, CorruptBatchError, CorruptObjectError, StorageError
from stratalog.registry.registry import Registry

FOLDER = "orders-0-AAAAAAAAAAAAAAAAAAAAAQ"
SEGMENT = "BBBBBBBBBBBBBBBBBBBBBA"


def put(folder: Path, base: int, data: bytes, segment: str = SEGMENT, **files: bytes) -> None:
    target = folder / "kafka-tiered-storage" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for suffix, content in {"log": data, **files}.items():
        (target / f"{base:020}-{segment}.{suffix}").write_bytes(content)


@pytest.fixture
def batches(tmp_path: Path) -> list[bytes]:
    """Return three batches of five records each."""
    with LogBed(tmp_path / "unused", Registry.load()) as bed:
        return [bed.batch(base, records(5, start=base)) for base in (0, 5, 10)]


def offsets(folder: Path) -> list[int]:
    with stratalog.open_reader(f"file://{folder}") as reader:
        return [record.offset for record in reader.log("orders", 0).records()]


def test_segments_are_put_together_and_copies_count_once(tmp_path: Path, batches: list[bytes]) -> None:
    put(tmp_path, 0, batches[0] + batches[1], leader_epoch_checkpoint=b"0\n1\n3 0\n")
    put(tmp_path, 0, batches[0] + batches[1], "CCCCCCCCCCCCCCCCCCCCCA")
    put(tmp_path, 5, batches[1], "DDDDDDDDDDDDDDDDDDDDDA")
    put(tmp_path, 10, batches[2])
    assert offsets(tmp_path) == list(range(15))


def test_a_gap_is_reported(tmp_path: Path, batches: list[bytes]) -> None:
    put(tmp_path, 0, batches[0])
    put(tmp_path, 10, batches[2])
    with pytest.raises(StorageError, match="leave a gap: one ends at 5"):
        offsets(tmp_path)


def test_a_log_that_was_cut_is_reported(tmp_path: Path, batches: list[bytes]) -> None:
    put(tmp_path, 0, batches[0] + batches[1][:-1])
    with pytest.raises(CorruptObjectError, match="whole batch"):
        offsets(tmp_path)


@pytest.mark.parametrize("position", [-1, 1 << 30])
def test_an_index_that_leads_nowhere_is_reported(tmp_path: Path, batches: list[bytes], position: int) -> None:
    put(tmp_path, 0, batches[0], index=struct.pack(">ii", 4, position))
    with pytest.raises(CorruptObjectError, match="offset index"):
        offsets(tmp_path)


# --- segments whose offsets span more than 31 bits -------------------------------------------------------------------


FAR = 5_000_000_000


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[LogBed]:
    with LogBed(tmp_path / "unused", Registry.load()) as log_bed:
        yield log_bed


def filled(bed: LogBed, *bases: int) -> bytes:
    """Return batches of five records of 400 bytes, with these base offsets."""
    return b"".join(bed.batch(base, records(5, start=base, value_bytes=400)) for base in bases)


def expected(*bases: int) -> list[int]:
    return [offset for base in bases for offset in range(base, base + 5)]


@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
def test_a_segment_that_reaches_too_far_is_read_as_kafka_reads_it(
    tmp_path: Path, bed: LogBed, chunk_bytes: int
) -> None:
    bases = (0, 5, FAR, FAR + 5, FAR + 10, 3 * FAR, 3 * FAR + 5)
    first = filled(bed, 0)
    index = struct.pack(">ii", 9, len(first))
    put(tmp_path, 0, filled(bed, *bases), index=index, leader_epoch_checkpoint=f"0\n2\n0 0\n4 {FAR + 5}\n".encode())
    put(tmp_path, 3 * FAR + 10, filled(bed, 3 * FAR + 10), "CCCCCCCCCCCCCCCCCCCCCA")
    config = {"limits.fetch.chunk.bytes": chunk_bytes}
    with stratalog.open_reader(f"file://{tmp_path}", config=config) as reader:
        log = reader.log("orders", 0)
        all_expected = expected(*bases, 3 * FAR + 10)
        assert [record.offset for record in log.records()] == all_expected
        for start in (4, 7, 100, FAR - 1, FAR + 7, 2 * FAR, 3 * FAR + 4, 3 * FAR + 12):
            assert [record.offset for record in log.records(start)] == [
                offset for offset in all_expected if offset >= start
            ]
            with log.fetch(start) as fetched:
                assert fetched.next_offset > start
        assert [(entry.epoch, entry.start_offset) for entry in log.view().epochs.entries] == [(0, 0), (4, FAR + 5)]


def test_a_batch_far_ahead_is_accepted_if_the_next_segment_begins_after_it(tmp_path: Path, bed: LogBed) -> None:
    put(tmp_path, 0, filled(bed, 0, FAR))
    put(tmp_path, FAR + 5, filled(bed, FAR + 5), "CCCCCCCCCCCCCCCCCCCCCA")
    assert offsets(tmp_path) == expected(0, FAR, FAR + 5)


def test_a_batch_far_ahead_without_a_matching_next_segment_is_damage(tmp_path: Path, bed: LogBed) -> None:
    put(tmp_path, 0, filled(bed, 0, FAR))
    with pytest.raises(CorruptBatchError, match="are not between"):
        offsets(tmp_path)


def test_a_damaged_offset_in_the_middle_is_damage(tmp_path: Path, bed: LogBed) -> None:
    put(tmp_path, 0, filled(bed, 0, FAR, 10, 15))
    with pytest.raises(CorruptBatchError, match="are not between"):
        offsets(tmp_path)


@pytest.mark.parametrize("text", [b"", b"0\n2\n1 0\n", b"0\n1\nx 0\n", b"1\n1\n1 0\n", b"\xff"])
def test_epochs_that_are_malformed_are_reported(tmp_path: Path, batches: list[bytes], text: bytes) -> None:
    put(tmp_path, 0, batches[0], leader_epoch_checkpoint=text)
    with pytest.raises(CorruptObjectError, match="epochs are malformed"):
        offsets(tmp_path)


def test_segments_cannot_be_written_in_this_layout(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tmp_path}/bucket") as engine:
        engine.create_topic("orders", config={"tier.layout": "kafka_local_tiered"})
        log = engine.log("orders", 0)
        log.append([stratalog.Record(value=b"v")])
        log.roll()
        with pytest.raises(ConfigError, match="only reads segments that Kafka wrote"):
            engine.offload()
