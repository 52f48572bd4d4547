"""Kafka's own DumpLogSegments reads every file that stratalog writes and reports no error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import corpus
from kafka_tools import KafkaTools


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    corpus.write(directory, corpus.topics())
    return directory


def test_kafka_finds_nothing_wrong_with_what_stratalog_writes(kafka_tools: KafkaTools, written: Path) -> None:
    assert kafka_tools.complaints(written) == []


@pytest.mark.parametrize("codec", corpus.CODECS)
def test_the_corpus_has_many_segments_with_index_entries(written: Path, codec: str) -> None:
    folder = written / f"v2-{codec}-0"
    assert len(list(folder.glob("*.log"))) > 2
    assert sum(file.stat().st_size for file in folder.glob("*.index")) > 2 * 8
    assert len(list(folder.glob("*.snapshot"))) > 2


def test_a_torn_tail_that_stratalog_recovered_is_clean_to_kafka(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    topic = corpus.Topic("torn", {"compression.type": "lz4"}, corpus.in_appends(corpus.some_records("torn", 90), 1, 6))
    corpus.write(tmp_path, [topic])
    (tmp_path / ".kafka_cleanshutdown").unlink()
    log = max((tmp_path / "torn-0").glob("*.log"))
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 11)
    assert kafka_tools.complaints(tmp_path) != []
    new_topic = corpus.Topic("more", {}, [list(corpus.some_records("more", 5))])
    corpus.write(tmp_path, [new_topic])
    assert kafka_tools.complaints(tmp_path) == []


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def raise_the_last_offset(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1  # the low byte of an offset entry's offset
    file.write_bytes(data)


def lower_the_last_offset(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".log", flip_a_byte),
        (".index", raise_the_last_offset),
        (".timeindex", lower_the_last_offset),
        (".snapshot", flip_a_byte),
    ],
)
def test_the_dump_tool_reports_damage(
    kafka_tools: KafkaTools, written: Path, tmp_path: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(written / "v2-lz4-0", tmp_path / "v2-lz4-0")
    damage(max(file for file in folder.glob(f"*{suffix}") if file.stat().st_size))
    assert kafka_tools.complaints(tmp_path) != []
