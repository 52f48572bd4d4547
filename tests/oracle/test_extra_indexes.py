"""A broker serves, deletes and compacts logs with files of extra indexes, and logs nothing about these files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import stratalog
from extra_indexes import ExtraPlugin
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Engine, Record
from stratalog.model.names import EXTRA_SUFFIX, LOG_SUFFIX

KEPT, SHORTENED, COMPACTED = "kept", "shortened", "compacted"
TOPICS: Final = (KEPT, SHORTENED, COMPACTED)
SEGMENTS: Final = 4
KEYS: Final = [b"key %d" % number for number in range(12)]
BROKER: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "0",
}
CONFIG: Final[dict[str, object]] = {"file.delete.delay.ms": 0}
CONFIGS: Final = {
    KEPT: CONFIG,
    SHORTENED: CONFIG,
    COMPACTED: {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
}


def files(folder: Path, topic: str, suffix: str) -> list[str]:
    return sorted(path.name for path in (folder / f"{topic}-0").iterdir() if path.suffix == suffix)


def by_key(records: Iterable[Record]) -> dict[bytes | None, list[tuple[int, bytes | None]]]:
    records_by_key = defaultdict(list)
    for record in records:
        records_by_key[record.key].append((record.offset, record.value))
    return records_by_key


def check_keys(engine: Engine) -> None:
    """Check that a search by key finds the same records as a read of the whole log."""
    for topic in TOPICS:
        log = engine.log(topic, 0)
        every = by_key(log.records())
        for key in (*KEYS, b"of nobody"):
            assert [(record.offset, record.value) for record in log.records_with_key(key)] == every.get(key, [])


def test_a_broker_ignores_files_of_extra_indexes(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    plugin = ExtraPlugin()
    with KafkaBroker(kafka_tools, tmp_path, BROKER) as broker:
        broker.create_topics(dict.fromkeys(TOPICS, 1), CONFIGS)
        broker.produce(TOPICS, [Record(key=key, value=b"by the broker") for key in KEYS])
        broker.stop()
        with stratalog.open_engine(broker.log_dir, plugins=[plugin]) as engine:
            for topic in TOPICS:
                engine.alter_topic(topic, {"index.extra": "keyset,valueset", **CONFIG})
                log = engine.log(topic, 0)
                for number in range(SEGMENTS):
                    log.append([Record(key=KEYS[number], value=b"here"), Record(key=KEYS[number + 1], value=b"here")])
                    log.roll()
                assert log.maintenance.make_extra_indexes().segments == SEGMENTS
            check_keys(engine)
            by_us = {topic: list(engine.log(topic, 0).records()) for topic in (KEPT, SHORTENED)}
        assert all(len(files(broker.log_dir, topic, EXTRA_SUFFIX)) == SEGMENTS for topic in TOPICS)
        assert kafka_tools.complaints(broker.log_dir) == []
        broker.start()
        read = broker.read([KEPT])
        assert by_key(read[KEPT]) == by_key(by_us[KEPT])
        start = broker.delete_records(SHORTENED, 0.7)
        broker.await_state(
            lambda folder: len(files(folder, SHORTENED, LOG_SUFFIX)) < SEGMENTS + 1, "deleted below its log start"
        )
        broker.await_state(lambda folder: len(files(folder, COMPACTED, LOG_SUFFIX)) < SEGMENTS + 1, "compacted")
        broker.produce(TOPICS, [Record(key=KEYS[-1], value=b"afterwards")])
        broker.kill()
        assert broker.remarks() == []
        assert len(files(broker.log_dir, KEPT, EXTRA_SUFFIX)) == SEGMENTS
        with stratalog.open_engine(broker.log_dir, plugins=[plugin]) as engine:
            check_keys(engine)
            (*index_results,) = engine.make_extra_indexes()
            assert {
                result.log.topic: result.removed > 0
                for result in index_results
                if result.log.topic in {KEPT, SHORTENED}
            } == {
                KEPT: False,
                SHORTENED: True,
            }
            check_keys(engine)
            assert next(iter(engine.log(SHORTENED, 0).records())).offset == start
            for topic in TOPICS:
                closed = list(engine.log(topic, 0).extra_index("keyset"))[:-1]
                assert all(index.reader is not None for index in closed)
                assert len(files(broker.log_dir, topic, EXTRA_SUFFIX)) == len(closed)
