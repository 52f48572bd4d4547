"""Steps of a Spark user in one session: fill a topic, read, write, stream, run jobs.

    python spark_story.py FOLDER local|connect|submit

``submit`` is for ``spark-submit``, which configures the session. It only reads and writes a batch, because everything
takes longer without the compiled modules. The last printed line has the results as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import stratalog
from stratalog import Record, open_engine, open_reader

RECORDS, PARTITIONS, KEYS = 600, 2, 7
SETTINGS = {
    "spark_ui_enabled": "false",
    "spark_log_level": "ERROR",
    "spark_sql_shuffle_partitions": "2",
    "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def fill(folder: Path) -> None:
    """Create a topic of two partitions, and a folder for the tier."""
    with open_engine(folder / "data") as engine:
        engine.create_topic("orders", partitions=PARTITIONS, config={"segment.bytes": 5_000})
        for partition in range(PARTITIONS):
            for start in range(0, RECORDS // PARTITIONS, 20):
                rows = range(start, start + 20)
                records = [Record(timestamp_ms=row + 1, key=b"%d" % (row % KEYS), value=b"v%d" % row) for row in rows]
                engine.log("orders", partition).append(records)
    (folder / "tier").mkdir()


def session(how: str) -> Any:
    """Return a Spark session for ``local``, ``connect`` or ``submit``."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - where it is not installed, help is shown

    if how == "local":
        from stratalog_spark import local_session, use_java  # noqa: PLC0415 - needs pyspark

        use_java(bundled=True)
        return local_session("local[2]", **SETTINGS)
    if how == "submit":
        return SparkSession.builder.getOrCreate()
    from stratalog_spark.java import catalog_settings  # noqa: PLC0415 - needs pyspark

    builder = SparkSession.builder.remote("local[2]")
    for name, value in {**SETTINGS, **catalog_settings({})}.items():
        builder = builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()


def modules(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the path from which tasks import the library."""
    import pyarrow as pa  # noqa: PLC0415 - in the worker

    import stratalog as there  # noqa: PLC0415 - the same

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"file": [str(there.__file__)] * batch.num_rows})


def load(spark: Any, place: str, topic: str) -> Any:
    """Return the data frame of a whole topic."""
    return spark.read.format("stratalog").option("subscribe", topic).load(place)


def batch(spark: Any, folder: Path, tier: str) -> dict[str, object]:
    """Read a batch, write it, and read it back. Return the results."""
    orders = load(spark, str(folder / "data"), "orders")
    counts = orders.selectExpr("string(key)").groupBy("key").count().collect()
    tasks = {row["file"] for row in orders.mapInArrow(modules, "file string").collect()}
    writing = orders.select("key", "value").write.format("stratalog").mode("append")
    writing.option("topic", "copy").option("partitions", "2").save(tier)
    return {
        "keys": sorted(list(row) for row in counts),
        "tasks": sorted(tasks),
        "written": load(spark, tier, "copy").count(),
    }


def sql(spark: Any, folder: Path) -> list[object] | None:
    """Return the results of SQL queries with the catalog in the JVM; None without its jar."""
    if not spark.conf.get("spark.sql.catalog.stratalog", ""):
        return None
    place = folder / "data"
    tables = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN stratalog.`{place}`").collect()]
    later = f"SELECT count(*) FROM stratalog.`{place}`.orders WHERE offset >= 290"  # noqa: S608 - a path of its own
    explained = spark.sql(f"EXPLAIN {later}").first()[0]
    spark.sql(
        f"INSERT INTO stratalog.`{(folder / 'tier').as_uri()}`.copy (value)"  # noqa: S608 - the same
        f" SELECT value FROM stratalog.`{place}`.orders WHERE partition = 0 AND offset < 5"
    )
    copy_count = load(spark, (folder / "tier").as_uri(), "copy").count()
    return [tables, spark.sql(later).first()[0], "pushed offset >= 290; count" in explained, copy_count]


def stream(spark: Any, folder: Path, tier: str) -> int:
    """Return the number of records that a streaming query wrote."""
    query = (
        spark.readStream.format("stratalog")
        .options(subscribe="orders", startingOffsets="earliest")
        .load(str(folder / "data"))
        .select("key", "value")
        .writeStream.format("stratalog")
        .options(topic="streamed", partitions="2", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(tier)
    )
    query.awaitTermination()
    with open_reader(tier) as reader:
        names = [name for name in reader.partitions() if name.topic == "streamed"]
        return sum(len(list(reader.log(*name).records())) for name in names)


def main() -> None:
    """Run all steps, and print the results."""
    if len(sys.argv) != 3 or sys.argv[2] not in {"local", "connect", "submit"}:
        sys.exit(__doc__)
    folder, how = Path(sys.argv[1]), sys.argv[2]
    fill(folder)
    tier, spark = (folder / "tier").as_uri(), session(how)
    report = {"spark": spark.version, "session": type(spark).__module__, "driver": stratalog.__file__}
    report.update(batch(spark, folder, tier))
    if how != "submit":
        from stratalog_spark import compact, register  # noqa: PLC0415 - needs pyspark

        register(spark)
        report["sql"] = sql(spark, folder)
        report["streamed"] = stream(spark, folder, tier)
        compaction = compact(spark, tier, topics=["copy"], any_policy=True)
        report["compacted"] = [compaction.records_before, compaction.records_after]
    print(json.dumps(report))  # noqa: T201 - what the test reads
    spark.stop()


if __name__ == "__main__":
    main()
