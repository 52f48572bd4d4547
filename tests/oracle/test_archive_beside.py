"""An archiver reads the directory of a running broker that writes, rolls, compacts, deletes, is killed and restarts."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import corpus
import stratalog
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from own_command import own_command
from stratalog import Record
from stratalog.cli.app import run

PLAIN, COMPACTED, TRANSACTIONS, SHORT = "plain", "compacted", "transactions", "short"
SMALL: Final[dict[str, object]] = {"internal.segment.bytes": 16_000, "file.delete.delay.ms": 0}
TOPICS: Final[dict[str, dict[str, object]]] = {
    PLAIN: SMALL,
    COMPACTED: {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": 1},
    TRANSACTIONS: SMALL,
    SHORT: {**SMALL, "retention.bytes": 30_000},
}
SETTINGS: Final = {
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
}
ROUNDS: Final = 9
Logs = dict[str, list[Record]]


@dataclass(frozen=True)
class Results:
    """Records of the broker and of the archive.

    Attributes:
        sent: acknowledged records.
        archived: all records of the archive at the end, by topic.
        committed: records that read_committed shows of the archive, by topic.
        committed_there: records that read_committed shows to clients of the broker at the end.
        left_there: all records that clients of the broker read at the end.
        bounds: log start offset and end offset of the archive, by topic.
        ended: exit code of the archiver.
        errors: errors of the archiver.
        errors_of_broker: errors in the log of the broker.
    """

    sent: Logs
    archived: Logs
    committed: Logs
    committed_there: Logs
    left_there: Logs
    bounds: dict[str, tuple[int, int]]
    ended: int
    errors: list[object]
    errors_of_broker: list[str]


def _batch_of_work(broker: KafkaBroker, number: int) -> list[Record]:
    """Produce records to each topic, and return them. Keys repeat, so that the cleaner can remove records."""
    records = [
        record._replace(key=b"key-%d" % (index % 7), value=(record.value or b"") + b"x" * 150, partition=0)
        for index, record in enumerate(corpus.some_records(f"archive {number}", 40))
    ]
    broker.produce([PLAIN, COMPACTED, SHORT], records)
    broker.produce_transactions(TRANSACTIONS, [(records[:20], True), (records[20:], False)], f"t{number}")
    return records


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    bucket = tmp_path_factory.mktemp("bucket")
    folder = tmp_path_factory.mktemp("beside")
    sent: Logs = {PLAIN: []}
    with KafkaBroker(kafka_tools, folder, SETTINGS) as broker:
        broker.create_topics(dict.fromkeys(TOPICS, 1), TOPICS)
        archiver = _follow(broker.log_dir, bucket)
        try:
            for number in range(ROUNDS):
                sent[PLAIN] += _batch_of_work(broker, number)
                if number == ROUNDS // 2:
                    broker.kill()
                    broker.start()
        finally:
            archiver.send_signal(signal.SIGINT)
            output, _ = archiver.communicate()
        committed_there = broker.read([TRANSACTIONS], isolation="read_committed")
        left_there = broker.read([COMPACTED, SHORT])
        broker.stop()
        # Only errors, because the broker also warns about its crash.
        errors_of_broker = [line for line in broker.remarks() if "] ERROR " in line]
    assert run(["archive", str(broker.log_dir), f"file://{bucket}"]) == 0
    with stratalog.open_reader(f"file://{bucket}") as reader:
        logs = {name: reader.log(name, 0) for name in TOPICS}
        return Results(
            sent,
            {name: corpus.without_epochs(log.records()) for name, log in logs.items()},
            {name: corpus.without_epochs(log.records(isolation="read_committed")) for name, log in logs.items()},
            committed_there,
            left_there,
            {name: (log.offsets().log_start, log.offsets().log_end) for name, log in logs.items()},
            archiver.returncode,
            [json.loads(line)["error"] for line in output.splitlines()],
            errors_of_broker,
        )


def _follow(source: Path, bucket: Path) -> subprocess.Popen[str]:
    arguments = ["archive", str(source), f"file://{bucket}", "--follow", "--interval", "0.1", "--json"]
    return subprocess.Popen(own_command(*arguments), stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own interpreter


def test_every_record_that_was_confirmed_and_closed_is_in_the_archive(results: Results) -> None:
    start, end = results.bounds[PLAIN]
    assert start == 0
    assert end > len(results.sent[PLAIN]) // 2
    archived = [(record.key, record.value, record.headers) for record in results.archived[PLAIN]]
    assert archived == [(record.key, record.value, record.headers) for record in results.sent[PLAIN][:end]]
    assert [record.offset for record in results.archived[PLAIN]] == list(range(end))


def test_of_what_the_broker_compacts_the_newest_value_of_each_key_is_kept(results: Results) -> None:
    _, end = results.bounds[COMPACTED]
    newest = {record.key: record.value for record in results.sent[PLAIN][:end]}
    assert {record.key: record.value for record in results.archived[COMPACTED]} == newest
    offsets = [record.offset for record in results.archived[COMPACTED]]
    assert offsets == sorted(set(offsets))


def test_records_that_the_broker_deletes_stay_in_the_archive_without_gaps(results: Results) -> None:
    start, end = results.bounds[SHORT]
    assert [record.offset for record in results.archived[SHORT]] == list(range(start, end))
    assert sum(len(record.value or b"") for record in results.archived[SHORT]) > 30_000


def test_the_broker_did_compact_and_delete_meanwhile(results: Results) -> None:
    assert len(results.left_there[COMPACTED]) < len(results.sent[PLAIN])
    assert results.left_there[SHORT][0].offset > results.bounds[SHORT][0]


def test_transactions_end_in_the_archive_as_they_did(results: Results) -> None:
    archived = results.committed[TRANSACTIONS]
    assert archived
    assert archived == results.committed_there[TRANSACTIONS][: len(archived)]
    assert len(results.archived[TRANSACTIONS]) > len(archived)


def test_the_archiver_stops_cleanly_and_causes_no_error_in_the_broker(results: Results) -> None:
    assert (results.ended, results.errors_of_broker) == (0, [])
    assert not any("different records" in str(error) for error in results.errors)
