"""A count by key with SQL: ``stratalog sql`` on a topic, DuckDB on the same records as Parquet, Spark on the topic.

Usage: python benchmarks/sql.py [--rows N] [--rounds N] [--quick] [--json]

Needs the extra ``sql``. The sides of Spark also need the extra ``spark``; without it, they are left out. The sides are
measured alternately in one process, and each writes or collects the whole result. Bounds compare wall seconds;
processor seconds are those of this process, the JVM and the Python workers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import duckdb

from harness import Machine, Reporter
from spark_parts.data import TOPIC, fill_large
from spark_parts.measure import result_of, sample_in_turns
from stratalog.cli.app import run
from stratalog.errors import PluginImportError

CASE: Final = "sql/count"
_QUERY: Final = "select key, count(*) as records from {} group by key"


def main(arguments: list[str] | None = None) -> None:
    """Fill a topic, copy it to Parquet, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: shows that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.rounds = 40_000, 1
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog", "duckdb", "pyspark")))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        data, parquet = scratch / "data", scratch / "topic.parquet"
        rows = fill_large(data, options.rows)
        _command(f"from {TOPIC}", data, parquet)
        log_bytes = sum(file.stat().st_size for file in data.glob("*/*.log"))
        sides = dict(_sides(data, parquet, scratch / "result.parquet", stack, reporter))
        check(sides, rows)
        samples = sample_in_turns(sides, options.rounds)
        title = f"count {rows:,} records by key; Parquet (snappy) has {parquet.stat().st_size / 1e6:,.0f} MB"
        reporter.result(result_of(CASE, title, rows, samples, log_bytes))


def _sides(
    data: Path, parquet: Path, result: Path, stack: ExitStack, reporter: Reporter
) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the name and the function of each side; the function counts and returns the sum of the counts."""
    yield "stratalog", lambda: _command(_QUERY.format(TOPIC), data, result)
    yield "DuckDB over Parquet", lambda: _count_parquet(parquet, result)
    try:
        from stratalog_spark import local_session  # noqa: PLC0415 - an extra
    except PluginImportError as error:
        reporter.missing([f"Spark is left out: {error}"])
        return
    spark = stack.enter_context(
        local_session(spark_log_level="ERROR", spark_ui_showConsoleProgress="false", spark_ui_enabled="false")
    )
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    topic = spark.read.format("stratalog").option("path", str(data)).option("subscribe", TOPIC).load()
    yield "Spark over the topic", lambda: _collect_count(topic)
    yield "Spark over Parquet", lambda: _collect_count(spark.read.parquet(str(parquet)))


def check(sides: Mapping[str, Callable[[], int]], rows: int) -> None:
    """Raise ValueError if a side does not count all records."""
    for name, count in sides.items():
        record_count = count()
        if record_count != rows:
            raise ValueError(f"{name} counted {record_count} of {rows} records")


def _command(query: str, data: Path, result: Path) -> int:
    if run(["sql", query, str(data), "--output", str(result)]):
        raise ValueError(f"the query failed: {query}")
    return _sum_of(result) if "count" in query else 0


def _count_parquet(parquet: Path, result: Path) -> int:
    with duckdb.connect() as connection:
        relation = connection.sql(_QUERY.format(f"'{parquet}'"))
        relation.write_parquet(str(result))
    return _sum_of(result)


def _sum_of(result: Path) -> int:
    with duckdb.connect() as connection:
        ((total,),) = connection.sql(f"select sum(records) from '{result}'").fetchall()  # noqa: S608 - a path of ours
    return int(total)


def _collect_count(frame: object) -> int:
    return sum(row[1] for row in frame.groupBy("key").count().collect())  # type: ignore[attr-defined]  # of Spark, which has no types here


if __name__ == "__main__":
    main()
