"""Spark's rows for directories of a real broker, compared with the records that a client of the broker read."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden_data
from stratalog_spark.options.read_options import Options
from stratalog_spark.source import BatchReader

TYPES = {None: -1, "CreateTime": 0, "LogAppendTime": 1}
COLUMNS = "key,value,offset,timestamp,timestampType,headers"


@pytest.fixture(scope="module")
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> golden_data.Golden:
    return golden_data.unpack(request.param, tmp_path_factory.mktemp("golden"))


def rows(logs: Path, log: str, isolation: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one log, from the source without Spark's processes, because a query takes seconds."""
    topic, partition = log.rsplit("-", 1)
    assigned = json.dumps({topic: [int(partition)]})
    options = Options({"path": str(logs), "assign": assigned, "isolation": f"read_{isolation}", "columns": COLUMNS})
    reader = BatchReader(options, options.column_names)
    for task in reader.partitions():
        for batch in reader.read(task):
            micros: Any = batch["timestamp"]
            times = [None if time is None else time // 1000 for time in micros.cast("int64").to_pylist()]
            yield from ({**row, "timestamp": time} for row, time in zip(batch.to_pylist(), times, strict=True))


def seen(path: Path) -> list[dict[str, Any]]:
    """Return the records that the broker's client read."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[1:]]


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.mark.parametrize("unpacked", ["kafka-2.8.2", "kafka-4.1.0"], indirect=True)
@pytest.mark.parametrize("isolation", ["uncommitted", "committed"])
def test_rows_differ_from_a_client_only_in_the_timestamps_of_records_that_have_none(
    unpacked: golden_data.Golden, isolation: str
) -> None:
    """Kafka stores messages of V0 without a timestamp.

    The client shows the time 0 and no type for them, stratalog a null timestamp and the type -1.
    """
    differences, compared = Counter[str](), 0
    for expected in sorted((unpacked.path / "expected").glob(f"*.{isolation}.jsonl.gz")):
        log = expected.name.removesuffix(f".{isolation}.jsonl.gz")
        log_rows = sorted(rows(unpacked.logs, log, isolation), key=lambda row: row["offset"])
        records = seen(expected)
        assert [row["offset"] for row in log_rows] == [record["offset"] for record in records], log
        for row, record in zip(log_rows, records, strict=True):
            assert (row["key"], row["value"]) == (decoded(record["key"]), decoded(record["value"]))
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            assert headers == [(name, decoded(value)) for name, value in record["headers"]]
            assert (row["headers"] is None) == (not record["headers"]), "null without headers, as Spark's Kafka source"
            assert row["timestampType"] == TYPES[record["timestamp_type"]]
            if row["timestamp"] != record["timestamp"]:
                assert (row["timestamp"], record["timestamp"], record["timestamp_type"]) == (None, 0, None)
                differences[log] += 1
            compared += 1
    assert compared
    assert all(log.startswith(("v0-", "upgraded-")) for log in differences), differences
    assert bool(differences) == ("2.8.2" in unpacked.path.name)
