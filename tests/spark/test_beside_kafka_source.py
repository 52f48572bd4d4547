"""Jobs for Spark's Kafka source and sink run with stratalog on the data of a real broker, and have the same results.

Only the format and the path of the jobs are changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafka_broker import KafkaBroker
from kafka_source_queries import BATCHES, FIRST_MS, ORDERS, PER_PARTITION, STREAMS, WRONG
from kafka_tools import KafkaTools, OracleMissingError
from requirement import Requirement, missing
from stratalog import Record, open_reader

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("has_java")]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "kafka_source_queries.py"


def tools(pom: Path) -> KafkaTools:
    try:
        return KafkaTools.find(pom)
    except OracleMissingError as error:
        missing(Requirement.KAFKA, f"real Kafka cannot run here: {error}")


def fill(broker: KafkaBroker) -> None:
    """Fill topics: null and other keys, values and headers, trimmed and empty logs, transactions, internal topics."""
    broker.create_topics(
        {"orders": ORDERS, "orders-eu": 1, "stamped": 1, "ledger": 1, "trimmed": 1, "empty": 2, "copies": 3},
        {"stamped": {"message.timestamp.type": "LogAppendTime"}},
    )
    producer = broker.producer()
    for partition in range(ORDERS):
        for number in range(PER_PARTITION):
            producer.produce(
                "orders",
                partition=partition,
                timestamp=FIRST_MS + 1000 * number,
                key=None if number % 10 == 3 else b"k%d" % (number % 12),
                value=None if number % 10 == 7 else b"v%d-%d" % (partition, number),
                headers=[("h", b"x"), ("empty", None), ("h", b"\xff\x00")] if number % 2 else [],
            )
        assert producer.flush() == 0
    rows = [Record(timestamp_ms=FIRST_MS + number, key=b"k%d" % number, value=b"s%d" % number) for number in range(12)]
    broker.produce(["stamped", "orders-eu", "trimmed"], rows)
    broker.produce_transactions("ledger", [(rows[:4], True), (rows[4:8], False), (rows[8:], True)])
    assert broker.delete_records("trimmed", 0.5) == 6
    broker.commit("someone", "orders", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beside")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """Return the results of both sources, by query.

    The broker was restarted before, so that all its checkpoints are written.
    """
    kafka, source = (tools(ROOT / pom) for pom in ("tests/oracle/pom.xml", "benchmarks/java/spark-kafka.xml"))
    for name in ("broker", "program"):
        (folder / name).mkdir()
    with KafkaBroker(kafka, folder / "broker") as broker:
        fill(broker)
        broker.stop()  # writes the checkpoints, which limit the reads of a directory in use
        broker.start()
        jars = ",".join(str(jar) for jar in sorted(source.libraries.glob("*.jar")))
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), broker.address, jars, str(broker.log_dir), str(folder / "program")],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    (folder / "told").write_text(ran.stderr)
    sides: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return sides


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_has_the_same_rows_and_schema(found: dict[str, Any], name: str) -> None:
    assert found[name]["stratalog"] == found[name]["kafka"]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_same_rows_schema_batches_and_offsets(found: dict[str, Any], name: str) -> None:
    assert found[name]["stratalog"] == found[name]["kafka"]


@pytest.mark.parametrize("name", WRONG)
def test_queries_that_fail_with_kafkas_source_fail_here(found: dict[str, Any], name: str) -> None:
    assert [found[name][side]["failed"] for side in ("kafka", "stratalog")] == [True, True]


def test_the_queries_are_about_records(found: dict[str, Any]) -> None:
    """The compared results have rows, except those of three queries without results."""
    assert len(BATCHES) >= 20
    empty = {name for name in (*BATCHES, *STREAMS) if not found[name]["kafka"]["rows"]}
    assert empty == {"nothing", "no record as late", "a stream from the end"}


def test_rows_are_written_as_by_the_kafka_sink(found: dict[str, Any], folder: Path) -> None:
    assert found
    written_rows = []
    for place in (folder / "broker" / "logs", folder / "program" / "copies"):
        with open_reader(place) as reader:
            logs = [reader.log("copies", partition) for partition in range(3)]
            written_rows.append(
                [sorted((str(r.key), str(r.value), str(r.headers)) for r in log.records()) for log in logs]
            )
    assert written_rows[1] == written_rows[0]
    assert [len(rows) for rows in written_rows[0]] == [PER_PARTITION] * 3


def test_one_warning_a_query_names_the_options_without_effect(found: dict[str, Any], folder: Path) -> None:
    assert found
    warnings = [line for line in (folder / "told").read_text().splitlines() if "options without effect" in line]
    assert warnings
    assert all("kafka.bootstrap.servers" in line for line in warnings)
    queries = len(BATCHES) + len(WRONG) + len(STREAMS) + 2  # two more reads for the sinks
    assert len(warnings) <= queries + 1
