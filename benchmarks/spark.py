"""Spark reading a topic: all columns, an aggregate inside Python, a hundredth of the time, very many small segments.

Usage: python benchmarks/spark.py [--rows N] [--segments N] [--master local[2,4]]

Needs the extra ``spark``. Prints seconds, rows a second, and processor seconds of planning. One run: the first query of a
session also starts its Python workers, so each is run twice and the second one counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from stratalog import Record, TopicPartition, open_engine
from stratalog.reading import OffsetRange, ReadSource, plan_splits
from stratalog_spark import local_session

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

PARTITIONS = 4
BATCH_ROWS = 1000
VALUE = bytes(range(100))
KEEP = {"retention.ms": -1}
ALL = 1 << 62


def main() -> None:
    """Fill two directories, read them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--master", default="local[2,4]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        rows = fill_large(large, chosen.rows)
        segments = fill_small(small, chosen.segments)
        plan(small, segments)
        session = local_session(chosen.master, spark_log_level="ERROR", spark_ui_showConsoleProgress="false")
        topic = partial(session.read.format("stratalog").option("subscribe", "topic").load, str(large))
        report("all columns to noop", rows, lambda: topic().write.format("noop").mode("overwrite").save())
        report("value alone to noop", rows, lambda: value_alone(session, large))
        report("sums of sizes by key, in Python", rows, lambda: by_key(topic()))
        report("a hundredth of the time", rows // 100, lambda: hundredth(session, large, rows).count())
        many = partial(session.read.format("stratalog").option("subscribe", "topic").load, str(small))
        report(f"{segments} segments to noop", segments, lambda: many().write.format("noop").mode("overwrite").save())
        session.stop()


def report(name: str, rows: int, query: Callable[[], object]) -> None:
    """Run a query twice, tell of the second time."""
    query()
    start = perf_counter()
    query()
    seconds = perf_counter() - start
    print(f"{name:40} {seconds:8.2f} s {rows / seconds / 1e6:8.3f} M/s")


def value_alone(session: Any, folder: Path) -> None:
    """A projection, by the option. Any: Spark is not typed for who has not installed it."""
    reader = session.read.format("stratalog").option("subscribe", "topic").option("columns", "value")
    reader.load(str(folder)).write.format("noop").mode("overwrite").save()


def hundredth(session: Any, folder: Path, rows: int) -> Any:
    """Records of 1 % of the time, which is also 1 % of each partition."""
    last = rows // PARTITIONS
    return (
        session.read.format("stratalog")
        .option("subscribe", "topic")
        .option("startingTimestamp", str(last // 2))
        .option("endingTimestamp", str(last // 2 + last // 100))
        .load(str(folder))
    )


def by_key(frame: Any) -> None:
    """Arrow in, Arrow out: sums within each task, then one small aggregate."""

    def summed(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - runs in the tasks

        compute = import_module("pyarrow.compute")
        for batch in batches:
            sizes = compute.binary_length(batch.column("value")).cast(pa.int64())
            table = pa.table({"key": batch.column("key"), "bytes": sizes})
            grouped = table.group_by("key").aggregate([("bytes", "sum")])
            yield from grouped.select(["key", "bytes_sum"]).rename_columns(["key", "bytes"]).to_batches()

    pairs = frame.select("key", "value").mapInArrow(summed, "key binary, bytes bigint")
    pairs.groupBy("key").sum("bytes").write.format("noop").mode("overwrite").save()


def fill_large(folder: Path, rows: int) -> int:
    """A topic of 4 partitions; keys repeat after 10,000; record n of a partition has timestamp n."""
    per_partition = rows // PARTITIONS // BATCH_ROWS * BATCH_ROWS
    with open_engine(folder) as engine:
        engine.create_topic("topic", partitions=PARTITIONS, config={"segment.bytes": 64 << 20, **KEEP})
        for partition in range(PARTITIONS):
            log = engine.log("topic", partition)
            for start in range(0, per_partition, BATCH_ROWS):
                log.append(
                    [
                        Record(timestamp_ms=number, key=b"key-%06d" % (number % 10_000), value=VALUE)
                        for number in range(start, start + BATCH_ROWS)
                    ]
                )
    return per_partition * PARTITIONS


def fill_small(folder: Path, segments: int) -> int:
    """One partition of segments of 100 KB."""
    with open_engine(folder) as engine:
        engine.create_topic("topic", config={"segment.bytes": 100_000, **KEEP})
        log, rows = engine.log("topic", 0), [Record(timestamp_ms=1, value=bytes(980)) for _ in range(100)]
        for _ in range(segments):
            log.append(rows)
        return len(log.segments())


def plan(folder: Path, segments: int) -> None:
    """What planning alone costs."""
    start = process_time()
    with ReadSource(str(folder)).open(peek=True) as reader:
        splits = plan_splits(reader, [OffsetRange(TopicPartition("topic", 0), 0, ALL)])
    print(f"planning {segments} segments: {process_time() - start:.2f} processor seconds, {len(splits)} tasks")


if __name__ == "__main__":
    main()
