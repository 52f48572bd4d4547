"""``sync`` as a stream of Spark, and its tables as other programs read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import stratalog_spark
from lake import TOPIC, Lake, prefixed, record
from stratalog import open_engine
from stratalog.errors import ConfigError, UnknownTopicError

pytestmark = pytest.mark.usefixtures("has_java", "has_lakes")

SCHEMA = {"type": "object", "properties": {"user": {"type": "string"}, "amount": {"type": "number"}}}


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic(TOPIC, partitions=2, config={"retention.ms": -1})
        yield Lake(tmp_path, engine, request.param)


def run_stream(spark: Any, lake: Lake, **settings: Any) -> None:
    """Run the stream until it has read the existing records."""
    arguments = {"checkpoint": str(lake.folder / "checkpoint"), "partition_by": "hour", **settings}
    query = stratalog_spark.sync(spark, str(lake.folder / "data"), TOPIC, lake.target(), **arguments)
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def places(counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in counts.items() for offset in range(count)]


def in_duckdb(lake: Lake, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query of the table's data files.

    It reads the files, because DuckDB's extensions for Iceberg and Delta need a download.
    """
    import duckdb  # noqa: PLC0415 - only here

    rows: list[tuple[Any, ...]] = duckdb.sql(
        query.format(f"read_parquet({lake.files()!r}, union_by_name=true)")
    ).fetchall()
    return rows


def test_a_stream_continues_where_the_table_ends(spark: Any, lake: Lake) -> None:
    """The stream is restarted with its checkpoint, and then without it."""
    schemas: dict[int | None, object] = {7: SCHEMA}
    bodies = [b'{"user": "u%d", "amount": %d.5}' % (number % 3, number) for number in range(40)]
    lake.append(0, [record(b"k", prefixed(7, body), hour=number / 20) for number, body in enumerate(bodies)])
    lake.append(1, [record(b"k", prefixed(7, b"{broken"))])
    run_stream(spark, lake, schema="json", schemas=schemas)
    assert lake.places() == places({0: 40})
    assert [row["error"][:22] for row in lake.rows("orders_quarantine")] == ["the value is not JSON:"]
    lake.append(1, [record(b"k", prefixed(7, bodies[0]))])
    run_stream(spark, lake, schema="json", schemas=schemas)
    assert lake.places() == [*places({0: 40}), (1, 1)]
    shutil.rmtree(lake.folder / "checkpoint")
    lake.append(0, [record(b"k", prefixed(7, bodies[1]))])
    run_stream(spark, lake, schema="json", schemas=schemas)
    assert lake.places() == [*places({0: 41}), (1, 1)]
    assert len(lake.rows("orders_quarantine")) == 1
    sums = in_duckdb(lake, 'SELECT "user", count(*), sum(amount) FROM {} GROUP BY 1 ORDER BY 1')
    assert sums == expected_sums([*bodies, bodies[0], bodies[1]])


def expected_sums(bodies: list[bytes]) -> list[tuple[Any, ...]]:
    sums: dict[str, list[float]] = {}
    for body in bodies:
        value = json.loads(body)
        sums.setdefault(value["user"], []).append(value["amount"])
    return [(user, len(amounts), sum(amounts)) for user, amounts in sorted(sums.items())]


def test_a_limited_stream_upserts_a_compacted_topic(spark: Any, lake: Lake) -> None:
    lake.append(0, [record(b"k%d" % (number % 7), b"%d" % number) for number in range(100)])
    lake.append(1, [record(b"j%d" % (number % 5), b"%d" % number) for number in range(50)])
    lake.append(0, [record(b"k0", None)])
    run_stream(spark, lake, upsert=True, buckets=3, options={"maxOffsetsPerTrigger": "40"})
    actual = in_duckdb(lake, "SELECT kafka_key, value FROM {}")
    expected = {b"k%d" % (number % 7): b"%d" % number for number in range(100) if number % 7}
    expected |= {b"j%d" % (number % 5): b"%d" % number for number in range(50)}
    assert dict(actual) == expected
    assert len(actual) == len(expected)


def test_a_failed_micro_batch_is_repeated(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = type(lake.target().open_table())
    commit = table.commit

    def committed(self: Any, *arguments: Any) -> None:
        commit(self, *arguments)
        raise OSError("the driver is gone")

    lake.append(0, [record(b"k", b"1")] * 3)
    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", committed)
        with pytest.raises(StreamingQueryException, match="the driver is gone"):
            run_stream(spark, lake)
    run_stream(spark, lake)
    assert lake.places() == places({0: 3})


def test_wrong_arguments_are_refused_before_the_stream_starts(spark: Any, lake: Lake) -> None:
    def start(topic: str = TOPIC, **settings: Any) -> None:
        stratalog_spark.sync(spark, str(lake.folder / "data"), topic, lake.target(), checkpoint="c", **settings)

    with pytest.raises(UnknownTopicError, match="other"):
        start("other")
    for settings, text in (
        ({"partition_by": "week"}, "day, hour, none"),
        ({"buckets": 0}, "buckets"),
        ({"options": {"Subscribe": "x"}}, "option subscribe is set by sync"),
        ({"schema": "avro"}, "needs schemas"),
        ({"schema": "json", "schemas": {1: {"type": "string"}}}, "must describe an object"),
    ):
        with pytest.raises(ConfigError, match=text):
            start(**settings)
