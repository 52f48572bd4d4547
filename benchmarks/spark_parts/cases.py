"""Measured cases. Each function gets a Spark session and the input, and returns the sides or figures of a case."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import stratalog_spark
from spark_parts.data import PARTITIONS, TOPIC, hundredth
from spark_parts.peer import Peer
from stratalog import TopicPartition, open_engine
from stratalog.reading import OffsetRange, ReadSource, plan_splits
from stratalog_spark.jobs import compact
from stratalog_spark.jobs.compact import CompactReport

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

ALL: Final = 1 << 62
Sides = dict[str, Callable[[], object]]


def load(session: Any, folder: Path, **options: str) -> Any:
    """Return the topic as a data frame of the source of stratalog. Its type is Any, because pyspark is optional."""
    return session.read.format("stratalog").option("subscribe", TOPIC).options(**options).load(str(folder))


def noop(frame: Any) -> None:
    """Compute the whole data frame, and drop the rows."""
    frame.write.format("noop").mode("overwrite").save()


def check(session: Any, folder: Path, peer: Peer | None, rows: int) -> None:
    """Check, outside of the measured time, that every side has the same rows."""
    frames = [load(session, folder)] + ([peer.read(session)] if peer else [])
    expression = "count(*)", "sum(length(value))", "sum(offset)", "count(distinct key)"
    answers = [frame.selectExpr(*expression).collect()[0] for frame in frames]
    assert len(set(answers)) == 1
    assert answers[0][0] == rows


def reading(session: Any, folder: Path, peer: Peer | None) -> Sides:
    """Return the sides that read all columns of all rows into Spark's noop sink."""
    sides: Sides = {"stratalog": lambda: noop(load(session, folder))}
    if peer:
        sides["Spark's Kafka source"] = lambda: noop(peer.read(session))
    return sides


def aggregating(session: Any, folder: Path, peer: Peer | None) -> Sides:
    """Return the sides that sum the bytes of values by key in Python, with Arrow as input and output.

    All sides use the function of ``summing``. With ``map_in_arrow``, stratalog calls it inside of its reading tasks.
    """
    columns, schema = {"columns": "key,value"}, "key binary, bytes bigint"

    def inside() -> None:
        options = {"subscribe": TOPIC, **columns}
        sum_by_key(stratalog_spark.map_in_arrow(session, str(folder), summing(), schema, options=options))

    sides: Sides = {"stratalog": inside}
    if peer:
        sides["Spark's Kafka source"] = lambda: sum_by_key(
            peer.read(session).select("key", "value").mapInArrow(summing(), schema)
        )
    sides["stratalog, mapInArrow after load"] = lambda: sum_by_key(
        load(session, folder, **columns).mapInArrow(summing(), schema)
    )
    return sides


def sum_by_key(frame: Any) -> None:
    """Add up the sums of all tasks by key."""
    noop(frame.groupBy("key").sum("bytes"))


def summing() -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return a function that sums by key within a task.

    The function is nested, because Spark sends nested functions to its tasks by value. Tasks cannot import this module.
    """

    def sum_batches(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - runs in the tasks

        compute = import_module("pyarrow.compute")
        tables = [
            pa.table({"key": batch.column("key"), "bytes": compute.binary_length(batch.column("value"))})
            for batch in batches
        ]
        if tables:
            sums = pa.concat_tables(tables).group_by("key").aggregate([("bytes", "sum")])
            yield from sums.select(["key", "bytes_sum"]).rename_columns(["key", "bytes"]).to_batches()

    return sum_batches


def exporting(session: Any, folder: Path, peer: Peer | None, scratch: Path) -> Sides:
    """Return the sides that write all rows as Parquet, compressed with snappy."""

    def ours() -> None:
        shutil.rmtree(scratch / "ours", ignore_errors=True)
        stratalog_spark.export(session, str(folder), str(scratch / "ours"), partition_by="none", compression="snappy")

    sides: Sides = {"stratalog": ours}
    if peer:
        target = str(scratch / "peer")
        sides["Spark's Kafka source"] = lambda: peer.read(session).write.mode("overwrite").parquet(target)
    return sides


def compacting(session: Any, folder: Path, tier: Path, scratch: Path, figures: list[float]) -> Sides:
    """Make copies, and return the sides that compact them: Spark compacts a tier, the engine a directory.

    Each side can run only once. Spark has two ways to compact: one for logs that fit a task, as these logs do, and one
    for larger logs. The last side forces the way for larger logs; it replaces the content of ``figures`` with the bytes
    of messages for each record and the number of remaining records.
    """
    copies = {}
    for name, source in (("tier", tier), ("wide", tier), ("folder", folder)):
        shutil.rmtree(scratch / f"fresh-{name}", ignore_errors=True)
        copies[name] = Path(shutil.copytree(source, scratch / f"fresh-{name}"))

    def compact_on_spark(name: str) -> CompactReport:
        return stratalog_spark.compact(session, copies[name].as_uri(), topics=[TOPIC], take_over=True)

    def compact_shuffled() -> None:
        with mock.patch.object(compact, "ALONE_RECORDS", 0):
            report = compact_on_spark("wide")
        figures[:] = report.shuffled_bytes / report.records_before, report.records_after

    def compact_by_engine() -> None:
        with open_engine(copies["folder"]) as engine:
            engine.run_cleaner()

    return {
        "stratalog on Spark": lambda: compact_on_spark("tier"),
        "the engine, one thread": compact_by_engine,
        "on Spark, as of larger logs": compact_shuffled,
    }


def pruning(folder: Path, rows: int) -> float:
    """Return the bytes that a read of 1 % of the time range reads, as a share of all bytes."""
    start, end = hundredth(rows)
    with ReadSource(str(folder)).open(peek=True) as reader:
        names = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        logs = [reader.log(*name) for name in names]
        bounds = [(log.offset_for_timestamp(start), log.offset_for_timestamp(end)) for log in logs]
        ranges = [
            OffsetRange(name, first or 0, last if last is not None else ALL)
            for name, (first, last) in zip(names, bounds, strict=True)
        ]
        read_bytes = sum(split.size_bytes for split in plan_splits(reader, ranges))
        total_bytes = sum(
            split.size_bytes for split in plan_splits(reader, [OffsetRange(name, 0, ALL) for name in names])
        )
    return read_bytes / total_bytes


def planning(folder: Path) -> tuple[float, float, int]:
    """Plan a read of the topic, and return wall seconds, processor seconds, and the number of tasks."""
    wall, cpu = perf_counter(), process_time()
    with ReadSource(str(folder)).open(peek=True) as reader:
        splits = plan_splits(reader, [OffsetRange(TopicPartition(TOPIC, 0), 0, ALL)])
    return perf_counter() - wall, process_time() - cpu, len(splits)
