"""Formats V0 and V1: a broker and stratalog write them to one log in turns; both convert batches of newer formats."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import corpus
import stratalog
from kafka_tools import KafkaTools
from kafka_wire import KafkaWire
from stratalog import Engine, Record
from stratalog.spi.formats import BatchHeader
from zookeeper_broker import ZooKeeperBroker

VERSIONS: Final = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
CODECS: Final = ("none", "gzip", "snappy", "lz4")
TOPICS: Final = {f"v{version}-{codec}": version for version in (0, 1) for codec in CODECS}
UPGRADED, CONVERTED = "upgraded", {0: "converted-v0", 1: "converted-v1"}
EVERY: Final = (*TOPICS, UPGRADED, *CONVERTED.values())
SEGMENT_BYTES: Final = 12_000
SETTINGS: Final = {"segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 200}
OURS: Final[dict[str, dict[str, object]]] = {
    **{
        f"v{version}-{codec}": {
            "record.version": version,
            "compression.type": "uncompressed" if codec == "none" else codec,
            **SETTINGS,
        }
        for version in (0, 1)
        for codec in CODECS
    },
    UPGRADED: {"record.version": 2, "compression.type": "gzip", **SETTINGS},
    **{name: {"record.version": version} for version, name in CONVERTED.items()},
}
SOME: Final = list(corpus.some_records("older", 60, headers=False))
Logs = dict[str, list[Record]]


@dataclass(frozen=True)
class Results:
    """Records that each side read, by topic.

    Attributes:
        by_us: records that stratalog read after its appends.
        by_broker: records that clients of the broker read after that.
        at_the_end: records that they read after the broker's next appends.
        again: records that stratalog read after that.
        converted: segments that the broker and stratalog converted from the same batches.
        remarks: warnings of the broker.
    """

    by_us: Logs
    by_broker: Logs
    at_the_end: Logs
    again: Logs
    converted: tuple[dict[str, bytes], dict[str, bytes]]
    remarks: list[str]


@pytest.fixture(scope="module")
def older_tools(kafka_tools: KafkaTools) -> KafkaTools:
    """Return the tools of Kafka 2.8.2. ``kafka_tools`` is requested only to skip or fail if there is no Java."""
    del kafka_tools
    return KafkaTools.find(Path(__file__).with_name("pom-2.8.2.xml"))


@pytest.fixture(scope="module")
def results(older_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("older")
    with ZooKeeperBroker(older_tools, folder) as broker:
        configs: dict[str, dict[str, object]] = {
            name: {"message.format.version": VERSIONS[version], **SETTINGS} for name, version in TOPICS.items()
        }
        configs |= {name: {"message.format.version": VERSIONS[version]} for version, name in CONVERTED.items()}
        configs[UPGRADED] = {"message.format.version": VERSIONS[0], **SETTINGS}
        broker.create_topics(dict.fromkeys(EVERY, 1), configs)
        for name in TOPICS:
            broker.send(broker.producer(**{"compression.type": name.partition("-")[2]}), name, SOME)
        for version in (0, 1):
            broker.alter(UPGRADED, "message.format.version", VERSIONS[version])
            broker.send(broker.producer(), UPGRADED, SOME)
        broker.alter(UPGRADED, "message.format.version", VERSIONS[2])  # the format in which stratalog continues
        broker.stop()
        copy = shutil.copytree(broker.log_dir, folder / "copy")
        with stratalog.open_engine(copy) as engine:
            for name in CONVERTED.values():
                engine.alter_topic(name, OURS[name])
                for data in _batches(engine):
                    engine.log(name, 0).append_as_leader(data)
            batches = list(_batches(engine))
        with stratalog.open_engine(broker.log_dir) as engine:
            for name in (*TOPICS, UPGRADED):
                engine.alter_topic(name, OURS[name])
                for records in corpus.in_appends(iter(SOME), 1, 9, 25):
                    engine.log(name, 0).append(records)
            by_us = _read(engine)
        broker.start()
        producer = broker.producer()
        by_broker = broker.read(EVERY)
        with KafkaWire(broker.address) as wire:
            for name in CONVERTED.values():
                for data in batches:
                    assert not wire.produce(name, data).code
        for name in (*TOPICS, UPGRADED):
            broker.send(producer, name, SOME[:5])
        at_the_end = broker.read(EVERY)
        broker.stop()
        with stratalog.open_engine(broker.log_dir) as engine:
            final_records = _read(engine)
        converted = (_segments(broker.log_dir), _segments(copy))
        return Results(by_us, by_broker, at_the_end, final_records, converted, broker.remarks())


def _batches(engine: Engine) -> Iterator[bytes]:
    """Yield uncompressed batches of format V2. Only without compression, the result of their conversion is unique."""
    form = engine.log(UPGRADED, 0).components.formats.of(2, "", 0)
    for records in corpus.in_appends(iter(SOME), 1, 7):
        yield bytes(form.encode(records, BatchHeader(), None, None))


def _read(engine: Engine) -> Logs:
    return {name: corpus.without_epochs(engine.log(name, 0).records()) for name in EVERY}


def _segments(log_dir: Path) -> dict[str, bytes]:
    return {
        f"{name}/{path.name}": path.read_bytes()
        for name in CONVERTED.values()
        for path in (log_dir / f"{name}-0").glob("*.log")
    }


@pytest.mark.parametrize("name", EVERY)
def test_the_broker_reads_what_stratalog_appended(results: Results, name: str) -> None:
    assert results.by_broker[name] == results.by_us[name]


@pytest.mark.parametrize("name", EVERY)
def test_stratalog_reads_what_the_broker_appended_then(results: Results, name: str) -> None:
    assert len(results.again[name]) > len(results.by_us[name])
    assert results.again[name] == results.at_the_end[name]


@pytest.mark.parametrize("name", [*TOPICS, UPGRADED])
def test_every_record_is_there(results: Results, name: str) -> None:
    times = 3 if name == UPGRADED else 2
    expected = [(record.key, record.value) for record in [*SOME * times, *SOME[:5]]]
    assert [(record.key, record.value) for record in results.again[name]] == expected


def test_both_convert_to_the_same_bytes(results: Results) -> None:
    kafka_segments, our_segments = results.converted
    assert all(kafka_segments.values())
    assert kafka_segments == our_segments


def test_the_broker_logs_no_warning_about_the_directory(results: Results) -> None:
    assert results.remarks == []
