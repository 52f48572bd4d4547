"""Writing with a real Spark: batches, streams that continue from a checkpoint, tasks and drivers that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from stratalog import Record, open_engine, open_reader

ROWS = 600

_DEADLY = """
import json, os, signal, sys
from pathlib import Path

from pyspark import TaskContext
from stratalog_spark import local_session
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.write.sink import StreamWriter, Written
from stratalog_spark.source import StratalogSource

folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])

class Deadly(StratalogSource):
    @classmethod
    def name(cls):
        return "deadly"

    def streamWriter(self, schema, overwrite):
        return DeadlyWriter(SinkOptions(self.options), schema)

class DeadlyWriter(StreamWriter):
    def commit(self, messages, batchId):
        if batchId < 1:
            return super().commit(messages, batchId)
        first = [Written([s for s in m.staged if s.log.partition == 0], m.mark) for m in messages]
        super().commit(first, batchId)
        os.kill(int((folder / "driver").read_text()), signal.SIGKILL)
        os._exit(1)

def failing_at_first(batches):
    for batch in batches:
        yield batch
    if TaskContext.get().attemptNumber() == 0:
        raise ZeroDivisionError("the first attempt of a task dies at its end")

spark = local_session("local[2, 4]", **settings)
spark.dataSource.register(Deadly)
(folder / "driver").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
rows = (
    spark.readStream.format("stratalog").option("subscribe", "orders").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "250").option("minPartitions", "4").load(str(folder / "data"))
    .select("key", "value").mapInArrow(failing_at_first, "key binary, value binary")
)
query = (
    rows.writeStream.format("deadly").option("topic", "copy").option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True).start(str(folder / "copies"))
)
query.awaitTermination()
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Return a directory with 600 different records in 3 partitions; some have no key."""
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("orders", partitions=3, config={"segment.bytes": 5_000, "index.interval.bytes": 500})
        add(engine, range(ROWS))
    return folder


def add(engine: Any, numbers: range) -> None:
    for partition in range(3):
        log = engine.log("orders", partition)
        for start in range(numbers.start, numbers.stop, 30):
            rows = range(start, start + 30)
            log.append(
                [
                    Record(timestamp_ms=1, key=None if row % 7 == 0 else b"%d" % row, value=b"value %d" % row)
                    for row in rows
                    if row % 3 == partition
                ]
            )


def values(place: str | Path, topic: str) -> list[str]:
    with open_reader(place) as reader:
        names = [name for name in reader.partitions() if name.topic == topic]
        log_values = [(record.value or b"").decode() for name in names for record in reader.log(*name).records(start=0)]
    return sorted(log_values)


def expected(count: int) -> list[str]:
    return sorted(f"value {number}" for number in range(count))


def stream(spark: Any, source: Path, place: str, checkpoint: Path, **options: str) -> list[Any]:
    """Run a stream over the existing records until its end, and return its progress."""
    rows = spark.readStream.format("stratalog").options(subscribe="orders", startingOffsets="earliest", **options)
    query = (
        rows.load(str(source))
        .select("key", "value")
        .writeStream.format("stratalog")
        .options(topic="copy", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start(place)
    )
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def test_a_batch_is_appended_and_read_back(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    place = (tmp_path / "tier").as_uri()
    frame = spark.range(0, ROWS, 1, 3).selectExpr(
        "concat('key ', id % 50) as key",
        "concat('value ', id) as value",
        "array(named_struct('key', 'h', 'value', cast(id as string))) as headers",
        "timestamp_millis(1700000000000 + id) as timestamp",
    )
    frame = frame.selectExpr(
        "key",
        "value",
        "transform(headers, h -> named_struct('key', h.key, 'value', cast(h.value as binary))) as headers",
        "timestamp",
    )
    writer = frame.write.format("stratalog").options(topic="orders", partitions="2", compression="lz4")
    writer.mode("append").save(place)
    assert values(place, "orders") == expected(ROWS)
    read = spark.read.format("stratalog").options(subscribe="orders", includeHeaders="true").load(place)
    row = read.where("value = cast('value 17' as binary)").first()
    assert row["headers"][0]["value"] == b"17"
    assert row["timestamp"].timestamp() == 1_700_000_000.017
    with pytest.raises(PySparkException, match="only be appended to"):
        writer.mode("overwrite").save(place)


def test_a_stream_continues_at_its_position(spark: Any, tmp_path: Path, orders: Path) -> None:
    """Micro-batches have the requested size. A second run reads the new records, also of new partitions."""
    (tmp_path / "tier").mkdir()
    place, checkpoint = (tmp_path / "tier").as_uri(), tmp_path / "checkpoint"
    spark.createDataFrame([("first",)], "value string").write.format("stratalog").options(
        topic="copy", partitions="2"
    ).mode("append").save(place)
    progress = stream(spark, orders, place, checkpoint, maxOffsetsPerTrigger="250")
    assert [batch_progress["numInputRows"] for batch_progress in progress] == [249, 249, 102], (
        "83 of each partition, then what is left"
    )
    assert json.loads(progress[-1]["sources"][0]["endOffset"])["orders"] == {"0": 200, "1": 200, "2": 200}
    assert values(place, "copy") == sorted(["first", *expected(ROWS)])
    with open_engine(orders) as engine:
        add(engine, range(ROWS, ROWS + 90))
    progress = stream(spark, orders, place, checkpoint)
    assert [batch_progress["numInputRows"] for batch_progress in progress] == [90]
    assert values(place, "copy") == sorted(["first", *expected(ROWS + 90)])


def test_a_driver_that_is_killed_between_two_commits_leaves_each_row_once(
    spark: Any, spark_settings: dict[str, str], tmp_path: Path, orders: Path
) -> None:
    """The first attempt of every task fails, too. Then another driver continues from the checkpoint."""
    with open_engine(tmp_path / "copies") as engine:
        engine.create_topic("copy", partitions=2)
    settings = {**spark_settings, "spark_local_dir": str(tmp_path / "local")}
    ran = subprocess.run(
        [sys.executable, "-c", _DEADLY, str(tmp_path), json.dumps(settings)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode != 0
    before = values(tmp_path / "copies", "copy")
    assert 249 < len(before) < 498, ran.stderr[-4000:]
    stream(spark, orders, str(tmp_path / "copies"), tmp_path / "checkpoint", maxOffsetsPerTrigger="250")
    assert values(tmp_path / "copies", "copy") == expected(ROWS)
