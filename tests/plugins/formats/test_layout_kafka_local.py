"""Kafka's own remote layout: what is refused, and with what words. What is read is compared with real Kafka elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import ConfigError, CorruptObjectError, StorageError
from stratalog.registry.registry import Registry
from stratalog.testing.logs import LogBed, records

FOLDER = "orders-0-AAAAAAAAAAAAAAAAAAAAAQ"
SEGMENT = "BBBBBBBBBBBBBBBBBBBBBA"


def put(folder: Path, base: int, data: bytes, segment: str = SEGMENT, **files: bytes) -> None:
    target = folder / "kafka-tiered-storage" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for suffix, content in {"log": data, **files}.items():
        (target / f"{base:020}-{segment}.{suffix}").write_bytes(content)


@pytest.fixture
def batches(tmp_path: Path) -> list[bytes]:
    """Three of five records each."""
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


def test_a_gap_is_told_of(tmp_path: Path, batches: list[bytes]) -> None:
    put(tmp_path, 0, batches[0])
    put(tmp_path, 10, batches[2])
    with pytest.raises(StorageError, match="do not meet: one ends at 5"):
        offsets(tmp_path)


def test_a_log_that_was_cut_is_told_of(tmp_path: Path, batches: list[bytes]) -> None:
    put(tmp_path, 0, batches[0] + batches[1][:-1])
    with pytest.raises(CorruptObjectError, match="whole batch"):
        offsets(tmp_path)


@pytest.mark.parametrize("position", [-1, 1 << 30])
def test_an_index_that_leads_nowhere_is_told_of(tmp_path: Path, batches: list[bytes], position: int) -> None:
    put(tmp_path, 0, batches[0], index=struct.pack(">ii", 4, position))
    with pytest.raises(CorruptObjectError, match="offset index"):
        offsets(tmp_path)


@pytest.mark.parametrize("text", [b"", b"0\n2\n1 0\n", b"0\n1\nx 0\n", b"1\n1\n1 0\n", b"\xff"])
def test_epochs_that_are_malformed_are_told_of(tmp_path: Path, batches: list[bytes], text: bytes) -> None:
    put(tmp_path, 0, batches[0], leader_epoch_checkpoint=text)
    with pytest.raises(CorruptObjectError, match="epochs are malformed"):
        offsets(tmp_path)


def test_nothing_is_written_in_it(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tmp_path}/bucket") as engine:
        engine.create_topic("orders", config={"tier.layout": "kafka_local_tiered"})
        log = engine.log("orders", 0)
        log.append([stratalog.Record(value=b"v")])
        log.roll()
        with pytest.raises(ConfigError, match="for reading what Kafka wrote"):
            engine.offload()
