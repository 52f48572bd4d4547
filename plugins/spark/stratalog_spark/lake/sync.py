"""Streams that keep a table up to date with a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from stratalog.errors import ConfigError, UnknownTopicError
from stratalog_spark.lake.schemas import Schemas, SchemaSet
from stratalog_spark.lake.splits import SplitSource
from stratalog_spark.lake.syncer import Maintenance, Syncer, topic_id_text
from stratalog_spark.lake.table import BUCKETS, PERIODS, Layout, TableTarget
from stratalog_spark.options.read_options import EARLIEST, Options
from stratalog_spark.tasks.messages import SPLIT

_RESERVED: Final = ("path", "subscribe", "subscribepattern", "assign", "columns", "includeheaders")
_STARTS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")


def sync(
    spark: SparkSession,
    path: str,
    topic: str,
    table: TableTarget,
    *,
    checkpoint: str,
    schema: str = "raw",
    schemas: Schemas | None = None,
    partition_by: str = "day",
    upsert: bool = False,
    buckets: int = 16,
    quarantine: TableTarget | None = None,
    maintenance: Maintenance | None = None,
    options: Mapping[str, str] | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a stream that keeps an Iceberg or Delta table up to date with a topic.

    The columns are ``kafka_key``, ``kafka_partition``, ``kafka_offset``, ``kafka_timestamp`` and ``kafka_headers`` of
    the record, and the fields of its value. A table with ``upsert`` has the additional column ``kafka_bucket``. A Delta
    table that is partitioned by time has ``kafka_date``, and ``kafka_hour`` if it is partitioned by hour.

    Each micro-batch is one commit of the table. The commit stores the end offset of each partition, too. Therefore no
    record is lost or repeated after a repeated micro-batch, a killed driver, or a lost checkpoint. A table has the
    records of one topic, and only one stream may write to it.

    Args:
        spark: a session, classic or Connect.
        path: a log directory, or the URI of a tier.
        topic: name of one topic.
        table: an ``IcebergTable`` or a ``DeltaTable``. It is created if it does not exist.
        checkpoint: folder for Spark's checkpoint of the stream.
        schema: kind of the values: ``raw`` (the column ``value``), ``json``, ``avro`` or ``protobuf``.
        schemas: one of: schemas by their ids in a schema registry; a folder with a file ``ID.json``, ``ID.avsc``,
            ``ID.proto`` or ``ID.pb`` for each id; a function that returns the schema of an id, and raises LookupError
            if the id has none; ``{None: schema}`` for values without the prefix of a schema registry. None for ``raw``;
            the other kinds need schemas. New fields become columns. It is an error if the type of a field does not fit
            its column.
        partition_by: ``day`` or ``hour`` of the record's timestamp, in UTC, or ``none``. It has no effect with
            ``upsert``.
        upsert: True for compacted topics: the table then has one row for each key, the latest record. A record without
            value deletes the row of its key. In each micro-batch, only the latest record of a key is parsed. If it
            cannot be parsed, the earlier row of the key stays.
        buckets: number of partitions of a table with ``upsert``. A micro-batch rewrites the files that contain its
            keys.
        quarantine: table of bad records: records that cannot be parsed, and with ``upsert`` also records without a key.
            None means the name of ``table`` with ``_quarantine`` added.
        maintenance: limits for the rewriting of small files; None means the defaults.
        options: options of the source, such as ``maxOffsetsPerTrigger``, ``tier.NAME`` or ``startingTimestamp``. If the
            table stores end offsets, the options ``starting...`` have no effect: a partition with an end offset starts
            there, and other partitions start at their log start. Two defaults are different from those of reads:
            ``isolation`` is ``read_committed``, and ``startingOffsets`` is ``earliest``.
        trigger: arguments of ``DataStreamWriter.trigger``, such as ``{"processingTime": "1 minute"}``. The default is
            ``{"availableNow": True}``.

    Raises:
        ConfigError: an argument is invalid, or does not match the existing table; or a schema does not fit the table.
        UnknownSettingError: there is no such option.
        UnknownTopicError: the topic does not exist.
        PluginImportError: a library is not installed.
        TableConflictError: another program created or changed a table at the same time.
        StorageError: the source cannot be read.
    """
    if partition_by not in PERIODS:
        raise ConfigError(f"partition_by={partition_by!r} is not one of {', '.join(PERIODS)}")
    if buckets < 1:
        raise ConfigError("buckets must be 1 or more")
    source_options = {"isolation": "read_committed", "startingoffsets": "earliest"}
    source_options |= {name.lower(): value for name, value in (options or {}).items()}
    reserved = sorted(set(source_options).intersection(_RESERVED)) + (
        ["corruptBatches"] if source_options.get("corruptbatches") == "columns" else []
    )
    if reserved:
        raise ConfigError(f"option {reserved[0]} is set by sync: leave it out")
    source_options |= {"path": path, "subscribe": topic}
    read_options = Options(source_options, streaming=True)
    with read_options.source.open(peek=True) as reader:
        partitions = sorted(partition for partition in reader.partitions() if partition.topic == topic)
        if not partitions:
            raise UnknownTopicError(f"topic {topic} does not exist in {reader.location}")
        topic_id = topic_id_text(reader.log(*partitions[0]).topic_id)
    partitioning, count = (BUCKETS, buckets) if upsert else (partition_by, 0)
    syncer = Syncer(
        read_options,
        table,
        quarantine or table.quarantine(),
        Layout(topic, topic_id, schema, partitioning, count),
        SchemaSet(schema, schemas),
        maintenance or Maintenance(),
    )
    ends = syncer.prepare(partition.partition for partition in partitions)
    if ends:
        source_options = {name: value for name, value in source_options.items() if name not in _STARTS}
        # a new partition starts at earliest
        offsets = {str(partition.partition): ends.get(partition.partition, EARLIEST) for partition in partitions}
        source_options["startingoffsets"] = json.dumps({topic: offsets})
    return _start_query(spark, source_options, syncer, checkpoint, trigger or {"availableNow": True})


def _start_query(
    spark: SparkSession, source_options: Mapping[str, str], syncer: Syncer, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    def write(frame: DataFrame, _: int) -> None:
        texts = frame.toArrow()["split"].to_pylist()
        syncer.apply(frame.sparkSession, [SPLIT.unpack(str(text)) for text in texts])

    spark.dataSource.register(SplitSource)
    rows = spark.readStream.format(SplitSource.name()).options(**source_options).load()
    return (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(**dict(trigger))
        .queryName(f"sync of {syncer.layout.topic} to {syncer.target!r}")
        .start()
    )
