"""A running broker and stratalog clean copies of one directory.

Clients read the same records from both. Each then cleans the directory that the other one has cleaned. Retention
deletes the same segments. ``ORACLE_SEED`` chooses another directory; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import corpus
import stratalog
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from stored_batches import batches_in
from stratalog import Record
from stratalog.log.log import Log
from stratalog.model.batches import DELETE_HORIZON_BIT
from stratalog.model.names import CLEANER_FILE
from stratalog.spi.formats import BatchHeader
from zookeeper_broker import ZooKeeperBroker

SEED: Final = int(os.environ.get("ORACLE_SEED", "4242"))
NOW_MS: Final = time.time_ns() // 1_000_000
DAY_MS: Final = 86_400_000
SEGMENT_BYTES: Final = 1 << 20  # the smallest size that Kafka 4 allows
LEVELS: Final = ("read_uncommitted", "read_committed")
BROKER: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
    "transaction.partition.verification.enable": "false",
}
COMMON: Final[dict[str, object]] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "segment.bytes": SEGMENT_BYTES,
    "index.interval.bytes": 300,
    "file.delete.delay.ms": 0,
}
COMPACTED: Final[dict[str, dict[str, object]]] = {
    "plain": COMMON,
    "brief": {**COMMON, "delete.retention.ms": 0},
    "zipped": COMMON,
    "transactional": COMMON,
    "brief-transactional": {**COMMON, "delete.retention.ms": 0},
    "both": {**COMMON, "cleanup.policy": "compact,delete", "retention.ms": 30 * DAY_MS},
}
RETAINED: Final[dict[str, dict[str, object]]] = {
    "by-time": {"retention.ms": 5 * DAY_MS},
    "by-size": {"retention.bytes": 6000, "retention.ms": -1},
    "by-both": {"retention.bytes": 20_000, "retention.ms": 3 * DAY_MS},
    "all-of-it": {"retention.ms": 1000},
}
OLDER: Final[dict[str, dict[str, object]]] = {
    f"v{version}{brief}-{codec}": {
        **COMMON,
        "segment.bytes": 3000,
        "record.version": version,
        **({"delete.retention.ms": 0} if brief else {}),
    }
    for version in (0, 1)
    for brief in ("", "-brief")
    for codec in ("none", "gzip")
}
FORMATS: Final = {0: "0.9.0", 1: "0.10.2"}
Logs = dict[tuple[str, str], list[Record]]


@dataclass(frozen=True)
class Side:
    """The files that the broker or stratalog left in a round, and the records in them, by topic and isolation."""

    folder: Path
    read: Logs


@dataclass(frozen=True)
class Results:
    """Results of the rounds.

    Attributes:
        rounds: for each round, the results of the broker and of stratalog.
        before: number of batches before each round, by topic.
        remarks: warnings of the broker.
    """

    rounds: list[tuple[Side, Side]]
    before: list[dict[str, int]]
    remarks: list[str]


class Filler:
    """Appends random records from a seed: repeated keys, tombstones, and transactions."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._sequences = dict[tuple[str, int], int]()

    def fill(self, topic: str, log: Log, batches: int) -> list[int]:
        """Append batches, and return the offsets at which segments end.

        The last record has its own key, so that cleaning keeps it in every format.
        """
        chance, ends = self._chance, []
        version = log.components.formats.for_version(log.config.record_version).magic
        for _ in range(batches):
            producer = chance.randrange(1, 5) if "transactional" in topic else -1
            codec = chance.choice(["gzip", "lz4", "zstd", None]) if topic == "zipped" else None
            if topic.endswith("gzip"):
                codec = "gzip"
            self._append(topic, log, producer, codec, [self._record(version) for _ in range(chance.choice([1, 2, 7]))])
            if producer > 0:
                log.end_transaction(producer, 0, commit=chance.random() < 0.6, coordinator_epoch=0)
            if chance.random() < 0.1:
                ends.append(log.roll())
        last = Record(key=b"last-%d" % log.offsets().log_end, value=b"v", timestamp_ms=NOW_MS)
        self._append(topic, log, -1, None, [last])
        return [*ends, log.roll()]

    def _append(self, topic: str, log: Log, producer: int, codec: str | None, records: list[Record]) -> None:
        sequence = self._sequences.get((topic, producer), 0) if producer > 0 else -1
        self._sequences[topic, producer] = sequence + len(records)
        header = BatchHeader(
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            base_sequence=sequence,
            transactional=producer > 0,
        )
        form = log.components.formats.for_version(log.config.record_version)
        compressor = None if codec is None else log.components.codecs.by_name(codec)
        log.append_as_leader(form.encode(records, header, compressor, None))

    def _record(self, version: int) -> Record:
        chance = self._chance
        key = b"key-%d" % int(chance.random() ** 2 * 60)
        value = None if chance.random() < 0.2 else bytes(chance.choices(b"abcdefgh", k=chance.choice([0, 10, 60])))
        headers = (("h", b"x"),) if version == 2 and chance.random() < 0.2 else ()
        return Record(key=key, value=value, timestamp_ms=NOW_MS - chance.randrange(DAY_MS), headers=headers)


def play(broker: KafkaBroker, folder: Path, topics: Mapping[str, dict[str, object]]) -> Results:
    """Clean in two rounds. In the second round, each side cleans what the other one left in the first round."""
    filler = Filler(random.Random(SEED))  # noqa: S311 - the same in every run
    rounds, batch_counts = [], []
    with stratalog.open_engine(broker.log_dir) as engine:
        for topic, config in topics.items():
            engine.alter_topic(topic, config)
            if topic in RETAINED:
                fill_by_age(engine.log(topic, 0))
            else:
                filler.fill(topic, engine.log(topic, 0), 60)
    our_folder = shutil.copytree(broker.log_dir, folder / "ours")
    for number in range(2):
        batch_counts.append({topic: len(batches(broker.log_dir, topic)) for topic in topics})
        ends = {topic: base_offsets(our_folder, topic)[-1] for topic in topics if topic not in RETAINED}
        by_us = clean_here(our_folder, topics)
        retained_offsets = {topic: base_offsets(our_folder, topic) for topic in topics if topic in RETAINED}
        broker.start()
        broker.await_state(partial(_is_cleaned, ends=ends), f"cleaned up to {ends}")
        broker.await_state(partial(_is_left_with, kept=retained_offsets), f"left with {retained_offsets}")
        broker_reads = {
            (topic, level): records
            for level in LEVELS
            for topic, records in broker.read(topics, isolation=level).items()
        }
        broker.stop()
        kafka_folder = shutil.copytree(broker.log_dir, folder / f"theirs-{number}")
        rounds.append(
            (Side(kafka_folder, broker_reads), Side(shutil.copytree(our_folder, folder / f"ours-{number}"), by_us))
        )
        append_to_both(filler, broker.log_dir, our_folder, topics)
        swapped = shutil.move(broker.log_dir, folder / "swapped")
        shutil.move(our_folder, broker.log_dir)
        our_folder = Path(shutil.move(swapped, our_folder))
    return Results(rounds, batch_counts, broker.remarks())


def _is_cleaned(folder: Path, ends: Mapping[str, int]) -> bool:
    return checkpoint(folder).items() >= ends.items()


def _is_left_with(folder: Path, kept: Mapping[str, list[int]]) -> bool:
    return all(base_offsets(folder, topic) == bases for topic, bases in kept.items())


def clean_here(folder: Path, topics: Mapping[str, object]) -> Logs:
    with stratalog.open_engine(folder) as engine:
        results = [*engine.run_cleaner()]
        assert not [result.error for result in results if result.error is not None], f"seed={SEED}"
        engine.apply_retention()
        return {
            (topic, level): corpus.without_epochs(engine.log(topic, 0).records(isolation=level))
            for level in LEVELS
            for topic in topics
        }


def append_to_both(filler: Filler, source: Path, target: Path, topics: Mapping[str, object]) -> None:
    """Append the same dirty batches to both directories: the second one follows the first one."""
    with stratalog.open_engine(source) as leading, stratalog.open_engine(target) as following:
        for topic in topics:
            if topic in RETAINED:
                continue
            leader, follower = leading.log(topic, 0), following.log(topic, 0)
            offset = leader.offsets().log_end
            assert offset == follower.offsets().log_end
            ends = filler.fill(topic, leader, 20)
            follower.follow(max(leader.leader_epoch, follower.leader_epoch))
            for end in ends:
                while offset < end:
                    with leader.fetch(offset, 1 << 20) as fetched:
                        offset = follower.append_as_follower(fetched.read(), leader.offsets().high_watermark, 0).log_end
                follower.roll()


def fill_by_age(log: Log) -> None:
    """Append segments of about 2,000 bytes; the oldest one is ten days old."""
    for number in range(20):
        stamp_ms = NOW_MS - (20 - number) * DAY_MS // 2
        log.append([Record(key=b"k", value=b"." * 1900, timestamp_ms=stamp_ms)])
        log.roll()
    log.append([Record(key=b"k", value=b"." * 1900, timestamp_ms=NOW_MS - DAY_MS)])


def checkpoint(folder: Path) -> dict[str, int]:
    """Return the cleaner's checkpoint offsets by topic."""
    path = folder / CLEANER_FILE
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {topic: int(offset) for topic, _, offset in (line.split() for line in lines)}


def base_offsets(folder: Path, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (folder / f"{topic}-0").glob("*.log"))


def batches(folder: Path, topic: str) -> list[object]:
    """Return the headers and records of all batches, without fields that depend on compression or on the clock."""
    host = stratalog.open_reader(folder)
    batches: list[object] = []
    with host as reader:
        components = reader.log(topic, 0).components
        for base in base_offsets(folder, topic):
            data = (folder / f"{topic}-0" / f"{base:020d}.log").read_bytes()
            for batch, batch_records in batches_in(data, components):
                records = [record._replace(leader_epoch=-1) for record in batch_records]
                header = replace(batch, position=0, size_bytes=0, crc=0, leader_epoch=0)
                if batch.attributes & DELETE_HORIZON_BIT:
                    header = replace(header, base_timestamp_ms=0)
                batches.append((base, header, records) if batch.magic == 2 else (base, records))
    return batches


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder, every = tmp_path_factory.mktemp("cleaning"), {**COMPACTED, **RETAINED}
    with KafkaBroker(kafka_tools, folder, BROKER) as broker:
        broker.create_topics(dict.fromkeys(every, 1), every)
        broker.stop()
        return play(broker, folder, every)


@pytest.fixture(scope="module")
def older_results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    del kafka_tools  # requested only to skip or fail if there is no Java
    tools = KafkaTools.find(Path(__file__).with_name("pom-2.8.2.xml"))
    folder = tmp_path_factory.mktemp("older-cleaning")
    with ZooKeeperBroker(tools, folder, {"log.cleaner.backoff.ms": "100"}) as broker:
        configs = {
            name: {
                **{key: value for key, value in config.items() if key != "record.version"},
                "message.format.version": FORMATS[int(name[1])],
            }
            for name, config in OLDER.items()
        }
        broker.create_topics(dict.fromkeys(OLDER, 1), configs)
        broker.stop()
        yield play(broker, folder, OLDER)


def check(results: Results, topic: str) -> None:
    for number, (kafka_side, our_side) in enumerate(results.rounds):
        for level in LEVELS:
            assert kafka_side.read[topic, level] == our_side.read[topic, level], f"seed={SEED} round={number} {level}"
        remaining_batches = batches(our_side.folder, topic)
        assert batches(kafka_side.folder, topic) == remaining_batches, f"seed={SEED} round={number}"
        assert len(remaining_batches) < results.before[number][topic] or topic in RETAINED, (
            f"seed={SEED} round={number}"
        )


@pytest.mark.parametrize("topic", COMPACTED)
def test_both_clean_the_same(results: Results, topic: str) -> None:
    check(results, topic)


@pytest.mark.parametrize("topic", RETAINED)
def test_retention_takes_the_same_segments(results: Results, topic: str) -> None:
    check(results, topic)
    for kafka_side, our_side in results.rounds:
        assert base_offsets(kafka_side.folder, topic) == base_offsets(our_side.folder, topic)
        assert len(base_offsets(our_side.folder, topic)) < 20


@pytest.mark.parametrize("topic", OLDER)
def test_both_clean_older_formats_the_same(older_results: Results, topic: str) -> None:
    check(older_results, topic)


def test_the_brokers_log_no_warning_about_the_directories(results: Results, older_results: Results) -> None:
    assert [*results.remarks, *older_results.remarks] == [], f"seed={SEED}"
