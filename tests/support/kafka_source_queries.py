"""Equal queries with Spark's Kafka source and with stratalog's source, in one Spark session.

    python kafka_source_queries.py ADDRESS JARS DIRECTORY FOLDER

Only the format and the path differ between the two sources. For each query, the last printed line has the schema and
the rows of both sources, or the error. ``DIRECTORY`` is the log directory of the broker, and ``FOLDER`` is empty.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

FIRST_MS: Final = 1_700_000_000_000
ORDERS, PER_PARTITION = 3, 40  # partitions of "orders", and records of each, one second apart
OPTIONS: Final = {  # options beside the servers: some that jobs set, and some that only a consumer understands
    "groupIdPrefix": "nightly",
    "kafka.max.poll.records": "7",
    "kafkaConsumer.pollTimeoutMs": "60000",
    "fetchOffset.numRetries": "5",
    "fetchOffset.retryIntervalMs": "20",
}
SETTINGS: Final = {
    "spark_ui_enabled": "false",
    "spark_ui_showConsoleProgress": "false",
    "spark_log_level": "ERROR",
    "spark_sql_shuffle_partitions": "2",
    "spark_sql_session_timeZone": "UTC",
    "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Query(NamedTuple):
    """Options of the source, and a function of its data frame."""

    options: dict[str, str]
    use: Callable[[Any], Any] = lambda frame: frame


def offsets(**partitions: int) -> str:
    """Return the JSON text of offsets in ``orders``; the arguments are p0=3, p1=-2 for partitions 0 and 1."""
    return json.dumps({"orders": {name.removeprefix("p"): value for name, value in partitions.items()}})


def _joined(frame: Any) -> Any:
    stamped_rows = frame.where("topic = 'stamped'").selectExpr("key AS k", "offset AS o")
    return (
        frame.where("topic = 'orders'")
        .join(stamped_rows, frame["key"] == stamped_rows["k"])
        .select("partition", "offset", "o")
    )


def _viewed(frame: Any) -> Any:
    frame.createOrReplaceTempView("events")
    return frame.sparkSession.sql(
        "SELECT partition, max(offset) AS last, count(DISTINCT key) AS keys FROM events "
        "WHERE timestamp >= '2023-11-14 22:13:30' AND offset % 2 = 0 GROUP BY partition"
    )


def _seen(name: str) -> str:
    return f"date_format({name}, 'HH:mm:ss')"


BATCHES: Final = {
    "a topic": Query({"subscribe": "orders"}),
    "two topics": Query({"subscribe": "orders , stamped"}),
    "a pattern of all topics": Query({"subscribePattern": ".*"}, lambda frame: frame.groupBy("topic").count()),
    "a pattern": Query({"subscribePattern": "rders|^e"}),
    "partitions": Query({"assign": '{"orders": [2, 0], "stamped": [0]}'}),
    "offsets": Query(
        {
            "subscribe": "orders",
            "startingOffsets": offsets(p0=7, p1=-2, p2=39),
            "endingOffsets": offsets(p0=-1, p1=5, p2=-1),
        }
    ),
    "words": Query({"subscribe": "orders", "startingOffsets": "earliest", "endingOffsets": "latest"}),
    "one timestamp for all partitions": Query(
        {"subscribe": "orders", "startingTimestamp": str(FIRST_MS + 10_500), "endingTimestamp": str(FIRST_MS + 20_000)}
    ),
    "a timestamp for each partition": Query(
        {
            "subscribe": "orders",
            "startingOffsetsByTimestamp": offsets(p0=FIRST_MS, p1=FIRST_MS + 30_000, p2=FIRST_MS + 1),
            "endingOffsetsByTimestamp": offsets(p0=FIRST_MS + 5_000, p1=FIRST_MS + 999_999, p2=FIRST_MS + 3_000),
        }
    ),
    "timestamps before offsets": Query(
        {
            "subscribe": "orders",
            "startingTimestamp": str(FIRST_MS + 38_000),
            "startingOffsets": offsets(p0=1, p1=1, p2=1),
        }
    ),
    "no record as late": Query(
        {
            "subscribe": "orders",
            "startingTimestamp": str(FIRST_MS + 999_999),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    ),
    "headers": Query({"subscribe": "orders,empty", "includeHeaders": "true"}),
    "committed transactions": Query({"subscribe": "ledger", "kafka.isolation.level": "read_committed"}),
    "all transactions": Query({"subscribe": "ledger"}),
    "a trimmed log": Query({"subscribe": "trimmed"}),
    "lost offsets": Query(
        {"subscribe": "trimmed", "startingOffsets": '{"trimmed": {"0": 3}}', "failOnDataLoss": "false"}
    ),
    "more tasks": Query({"subscribe": "orders", "minPartitions": "7"}, lambda frame: frame.where("partition < 2")),
    "small tasks": Query({"subscribe": "orders", "maxRecordsPerPartition": "11"}),
    "limits of a stream": Query({"subscribe": "orders", "maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "2"}),
    "names in any case": Query(
        {"SUBSCRIBE": "orders", "STARTINGOFFSETS": "EARLIEST", "includeheaders": "TRUE"},
        lambda frame: frame.selectExpr("cast(KEY AS string) AS k", "OFFSET", "size(Headers) AS n"),
    ),
    "windows": Query(
        {"subscribe": "orders,stamped"},
        lambda frame: (
            frame.where("topic = 'orders'")
            .groupBy(_function("window")("timestamp", "10 seconds"), "timestampType")
            .agg(_function("count")("*").alias("n"), _function("max")("value").alias("last"))
            .selectExpr(_seen("window.start"), "timestampType", "n", "last")
        ),
    ),
    "a join": Query({"subscribe": "orders,stamped"}, _joined),
    "a view": Query({"subscribe": "orders"}, _viewed),
    "nothing": Query({"subscribe": "empty"}),
}
WRONG: Final = {
    "latest as the start of a batch": {"subscribe": "orders", "startingOffsets": "latest"},
    "earliest as the end of a batch": {"subscribe": "orders", "endingOffsets": "earliest"},
    "a topic that does not exist": {"subscribe": "strangers"},
    "two ways to choose topics": {"subscribe": "orders", "assign": '{"orders": [0]}'},
    "no way to choose topics": {},
    "a partition without an offset": {"subscribe": "orders", "startingOffsets": offsets(p0=1)},
    "a timestamp after all records": {"subscribe": "orders", "startingTimestamp": str(FIRST_MS + 999_999)},
    "no JSON": {"subscribe": "orders", "startingOffsets": "{"},
    "lost offsets that must not be lost": {"subscribe": "trimmed", "startingOffsets": '{"trimmed": {"0": 3}}'},
}
STREAMS: Final = {
    "a stream from the start": {"subscribe": "orders", "startingOffsets": "earliest"},
    "a stream in small batches": {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "17"},
    "a stream from timestamps": {
        "subscribePattern": "^orders$",
        "startingTimestamp": str(FIRST_MS + 30_000),
        "includeHeaders": "true",
        "kafka.group.id": "billing",
    },
    "a stream from the end": {"subscribe": "orders"},
}
SIDES: Final = ("kafka", "stratalog")


def _function(name: str) -> Callable[..., Any]:
    from pyspark.sql import functions  # noqa: PLC0415 - needs pyspark

    function: Callable[..., Any] = getattr(functions, name)
    return function


class Program:
    """Runs queries with either source (``side``: ``kafka`` or ``stratalog``) in a Spark session.

    Args:
        spark: the session. Any: a process may lack Spark and its types.
        address: address of the broker.
        directory: log directory of the broker.
        folder: an empty folder.
    """

    def __init__(self, spark: Any, address: str, directory: str, folder: Path) -> None:
        self._spark, self._address, self._folder = spark, address, folder
        self._paths = {"kafka": (), "stratalog": (directory,)}

    def load(self, side: str, options: dict[str, str], *, streaming: bool = False) -> Any:
        """Return the data frame of a source."""
        reader = self._spark.readStream if streaming else self._spark.read
        source_options = {"kafka.bootstrap.servers": self._address, **OPTIONS, **options}
        return reader.format(side).options(**source_options).load(*self._paths[side])

    def batch(self, side: str, query: Query) -> dict[str, Any]:
        """Return the result of a query."""
        return contents_of(query.use(self.load(side, query.options)))

    def failure(self, side: str, options: dict[str, str]) -> dict[str, Any]:
        """Return ``failed``, True if the query fails, and then the text of the error."""
        try:
            self.load(side, options).collect()
        except Exception as error:  # noqa: BLE001 - the two sides raise different ones
            return {"failed": True, "text": str(error)[:500]}
        return {"failed": False}

    def stream(self, side: str, options: dict[str, str], number: int) -> dict[str, Any]:
        """Run a streaming query until it has read everything. Return its rows and its last checkpoint."""
        checkpoint, table = self._folder / f"checkpoint-{side}-{number}", f"{side}_{number}"
        query = (
            self.load(side, options, streaming=True)
            .writeStream.format("memory")
            .queryName(table)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        files = sorted((int(path.name), path) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
        end = json.loads(files[-1][1].read_text().splitlines()[-1]) if files else {}
        end.pop("#topic-ids", None)  # only the checkpoints of stratalog have them
        return {**contents_of(self._spark.table(table)), "batches": len(files), "end": end}

    def written(self, side: str, target: dict[str, str], options: dict[str, str]) -> None:
        """Write records with either sink. The topic is an option or a column; column types and option names vary."""
        frame = self.load("stratalog", {"subscribe": "orders", "includeHeaders": "true"})
        rows = frame.selectExpr(
            "string(key) AS key", "value", "'copies' AS topic", "(partition + 1) % 3 AS partition", "headers",
            "offset", "timestampType",
        )  # fmt: skip
        path = (target["path"],) if "path" in target else ()
        sink_options = {"kafka.bootstrap.servers": self._address, "kafka.compression.type": "gzip", **options}
        rows.write.format(side).options(**sink_options).mode("append").save(*path)


def contents_of(frame: Any) -> dict[str, Any]:
    """Return the schema and the sorted rows of a data frame."""
    schema = [[field.name, field.dataType.simpleString(), field.nullable] for field in frame.schema.fields]
    return {"schema": schema, "rows": sorted(str(tuple(row)) for row in frame.collect())}


def main() -> None:
    """Run all queries with both sources, and print the results as JSON."""
    from stratalog_spark import local_session  # noqa: PLC0415 - needs pyspark

    address, jars, directory, place = sys.argv[1:]
    folder = Path(place)
    places = {"spark_local_dir": str(folder / "local"), "spark_sql_warehouse_dir": str(folder / "warehouse")}
    spark = local_session("local[2]", spark_jars=jars, **SETTINGS, **places)
    program, results = Program(spark, address, directory, folder), dict[str, dict[str, Any]]()
    for name, query in BATCHES.items():
        results[name] = {side: program.batch(side, query) for side in SIDES}
    for name, options in WRONG.items():
        results[name] = {side: program.failure(side, options) for side in SIDES}
    for number, (name, options) in enumerate(STREAMS.items()):
        results[name] = {side: program.stream(side, options, number) for side in SIDES}
    program.written("kafka", {}, {})
    program.written("stratalog", {"path": str(folder / "copies")}, {"topic": "copies", "partitions": "3"})
    print(json.dumps(results))  # noqa: T201 - what the test reads
    spark.stop()


if __name__ == "__main__":
    main()
