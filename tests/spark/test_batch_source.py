"""``spark.read.format("stratalog")`` has the columns, options and results of Spark's Kafka source, without a broker."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

import stratalog_spark
from pyspark_stratalog import DefaultSource
from stratalog import Record, open_engine, open_reader
from stratalog.errors import StorageError
from stratalog.reading import ReadSource
from stratalog.testing.s3 import LocalS3
from stratalog_spark import map_in_arrow
from stratalog_spark.options.read_options import Options
from stratalog_spark.source import BatchReader, StratalogSource

Read = Callable[..., Any]


def fill(folder: Path, *, topics: tuple[str, ...] = ("orders",), tier: str | None = None, options: Any = None) -> None:
    """Make topics of 2 partitions with 200 records each; record n of a partition has timestamp 1000 + n."""
    settings = {"segment.bytes": 4_000, "index.interval.bytes": 500, "retention.ms": -1}
    with open_engine(folder, tier=tier, tier_options=options) as engine:
        for topic in topics:
            engine.create_topic(topic, partitions=2, config=settings)
            for partition in (0, 1):
                log = engine.log(topic, partition)
                for start in range(0, 200, 10):
                    log.append([row(partition, number) for number in range(start, start + 10)])
                if tier is not None:
                    log.roll()
        if tier is not None:
            engine.offload()


def row(partition: int, number: int) -> Record:
    key = None if number % 10 == 3 else b"k%d" % number
    value = None if number % 10 == 7 else b"v%d-%d" % (partition, number)
    headers = (("h", b"x"), ("empty", None)) if number % 2 else ()
    return Record(timestamp_ms=1000 + number, key=key, value=value, headers=headers)


@pytest.fixture
def read(spark: Any) -> Read:
    def load(path: object, schema: str | None = None, **options: object) -> Any:
        reader = spark.read.format("stratalog").options(**{name: str(value) for name, value in options.items()})
        return (reader.schema(schema) if schema else reader).load(str(path))

    return load


@pytest.fixture
def mapped(spark: Any) -> Read:
    def load(path: object, function: Any, schema: str, **options: object) -> Any:
        text_options = {name: str(value) for name, value in options.items()}
        return map_in_arrow(spark, str(path), function, schema, options=text_options)

    return load


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    fill(folder, topics=("orders", "payments"))
    return folder


def planned(path: Path, options: dict[str, object]) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of all records that Spark would read.

    Calls the source without Spark's processes, because a query takes seconds.
    """
    source = StratalogSource({"path": str(path), **{name: str(value) for name, value in options.items()}})
    assert source.schema()
    reader = BatchReader(Options(source.options), ("topic", "partition", "offset"))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted((row["topic"], row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())


def positions(frame: Any) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["partition"], row["offset"]) for row in frame.collect())


def expected(topics: tuple[str, ...], numbers: range) -> list[tuple[str, int, int]]:
    return sorted((topic, partition, number) for topic in topics for partition in (0, 1) for number in numbers)


def test_the_schema_is_that_of_the_kafka_source(read: Read, data: Path) -> None:
    kafka = [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert read(data, subscribe="orders").dtypes == kafka
    with_headers = read(data, subscribe="orders", includeHeaders="true")
    assert with_headers.dtypes == [*kafka, ("headers", "array<struct<key:string,value:binary>>")]


def test_every_column_of_every_record_arrives(read: Read, data: Path) -> None:
    rows_by_position = {
        (row["partition"], row["offset"]): row
        for row in read(data, subscribe="orders", includeHeaders="true", minPartitions=5).collect()
    }
    assert len(rows_by_position) == 400
    for (partition, number), actual in rows_by_position.items():
        expected = row(partition, number)
        assert actual["key"] == expected.key
        assert actual["value"] == expected.value
        assert actual["topic"] == "orders"
        assert actual["timestamp"].astimezone(UTC) == datetime.fromtimestamp(expected.timestamp_ms / 1000, UTC)
        assert actual["timestampType"] == 0
        assert [(header["key"], header["value"]) for header in actual["headers"] or ()] == list(expected.headers)


@pytest.mark.parametrize(
    ("options", "topics", "numbers"),
    [
        ({"subscribe": "orders, payments"}, ("orders", "payments"), range(200)),
        ({"SUBSCRIBEPATTERN": "ord.*"}, ("orders",), range(200)),
        ({"subscribePattern": "nothing.*"}, (), range(0)),
        ({"subscribePattern": "der"}, ("orders",), range(200)),
        ({"subscribePattern": "^(der|pay)"}, ("payments",), range(200)),
        ({"SUBSCRIBE": "orders", "StartingTimestamp": 1190}, ("orders",), range(190, 200)),
        ({"assign": '{"payments": [0, 1]}'}, ("payments",), range(200)),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 50, "1": 50}}'},
            ("orders",),
            range(50, 200),
        ),
        (
            {"subscribe": "orders", "startingOffsets": "earliest", "endingOffsets": '{"orders": {"0": 50, "1": 50}}'},
            ("orders",),
            range(50),
        ),
        ({"subscribe": "orders", "startingTimestamp": 1120}, ("orders",), range(120, 200)),
        (
            {
                "subscribe": "orders",
                "startingOffsetsByTimestamp": '{"orders": {"0": 1020, "1": 1020}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 1030, "1": 1030}}',
            },
            ("orders",),
            range(20, 30),
        ),
        ({"subscribe": "orders", "startingTimestamp": 1195, "endingTimestamp": 9999}, ("orders",), range(195, 200)),
        (
            {"subscribe": "orders", "startingTimestamp": 9999, "startingOffsetsByTimestampStrategy": "latest"},
            (),
            range(0),
        ),
    ],
)
def test_topics_and_ranges_are_chosen_as_in_the_kafka_source(
    data: Path, options: dict[str, object], topics: tuple[str, ...], numbers: range
) -> None:
    assert planned(data, options) == expected(topics, numbers)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribee": "orders"}, "did you mean 'subscribe'"),
        ({"subscribe": "orders", "kafka.": "x"}, "unknown setting"),
        ({"subscribe": "orders", "kafka.group.id": "g", "commitGroupOffsets": "true"}, "is only for streaming queries"),
        ({"subscribe": "orders", "maxRecordsPerPartition": 0}, "1 or more"),
        ({"subscribe": "orders", "columns": "key,Key"}, "given twice: key, Key"),
        ({}, "give one of subscribe"),
        ({"subscribe": "orders", "assign": "{}"}, "not subscribe and assign"),
        ({"subscribe": "orders,strangers"}, "there is no topic strangers"),
        ({"subscribe": "orders", "startingOffsets": "latest"}, "cannot be latest"),
        ({"subscribe": "orders", "endingOffsets": '{"orders": {"0": -2}}'}, "cannot be earliest"),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 1}}'}, "lacks orders-1"),
        ({"subscribe": "orders", "startingOffsets": "{"}, "startingOffsets"),
        ({"subscribe": "orders", "startingTimestamp": 9999}, "no record at or after 9999"),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 900, "1": 0}}'}, "offset out of range"),
        ({"subscribe": "orders", "isolation": "dirty"}, "is not one of"),
        ({"subscribe": "orders", "minPartitions": 0}, "1 or more"),
        ({"subscribe": "orders", "columns": "key,valeu"}, "did you mean 'value'"),
        ({"subscribe": "orders", "as_of": 3}, "give the tier.s URI"),
        ({"subscribe": "orders", "as_of": "\u00b2"}, "option as_of='\u00b2' is not valid"),
        ({"subscribe": "orders", "as_of": "9" * 5000}, "option as_of"),
        ({"subscribe": "orders", "maxTriggerDelay": "9" * 5000 + "d"}, "option maxTriggerDelay"),
    ],
)
def test_a_wrong_option_is_named_in_the_error(data: Path, options: dict[str, object], text: str) -> None:
    with pytest.raises(StorageError, match=text):
        planned(data, options)


def test_options_of_the_kafka_source_are_accepted_with_one_warning_that_has_no_values(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = {
        "kafka.bootstrap.servers": "x:9092",
        "kafka.sasl.jaas.config": "canary-5d1f",
        "kafka.group.id": "billing",
        "groupIdPrefix": "nightly",
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "1",
        "maxOffsetsPerTrigger": "1",
        "minOffsetsPerTrigger": "1",
        "maxTriggerDelay": "1s",
    }
    source = StratalogSource({"path": str(data), "subscribe": "orders", **kafka})
    assert source.schema()

    reader = source.reader(StructType().add("offset", LongType()))
    read = [batch.num_rows for task in reader.partitions() for batch in reader.read(task)]
    assert sum(read) == 400
    (warning,) = caplog.messages
    assert all(name in warning for name in kafka)
    assert b"canary" not in pickle.dumps(reader)
    assert "canary" not in caplog.text


def test_internal_topics_are_read_by_name_and_match_no_pattern(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
        with engine.consumer(group="billing", topics=["orders"], auto_offset_reset="earliest") as consumer:
            consumer.poll()
            consumer.commit()
    assert planned(tmp_path, {"subscribePattern": ".*"}) == [("orders", 0, 0)]
    assert {topic for topic, _, _ in planned(tmp_path, {"subscribe": "__consumer_offsets"})} == {"__consumer_offsets"}


@pytest.mark.parametrize("limit", [1, 7, 10, 33, 1_000])
def test_no_task_has_more_than_the_wanted_number_of_records(data: Path, limit: int) -> None:
    options = {"path": str(data), "subscribe": "orders", "maxRecordsPerPartition": str(limit)}
    reader = BatchReader(Options(options), ("partition", "offset"))
    tasks = [[row for batch in reader.read(task) for row in batch.to_pylist()] for task in reader.partitions()]
    assert max(map(len, tasks)) == min(limit, 400)
    positions_read = [(row["partition"], row["offset"]) for task in tasks for row in task]
    assert positions_read == [(partition, number) for partition in (0, 1) for number in range(200)]


def test_the_isolation_of_kafkas_consumer_is_that_of_the_read(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id="t") as producer:
            for is_aborted in (False, True):
                producer.begin_transaction()
                producer.send("orders", value=b"v")
                producer.flush()
                producer.abort_transaction() if is_aborted else producer.commit_transaction()
    kafka: dict[str, object] = {"subscribe": "orders", "kafka.isolation.level": "read_committed"}
    assert planned(tmp_path, kafka) == [("orders", 0, 0)]
    assert len(planned(tmp_path, {**kafka, "isolation": "read_uncommitted"})) == 2


def test_lost_offsets_are_left_out_if_asked_for(read: Read, data: Path) -> None:
    starting_offsets = '{"orders": {"0": 190, "1": 900}}'
    frame = read(data, subscribe="orders", startingOffsets=starting_offsets, failOnDataLoss="false")
    assert positions(frame) == [("orders", 0, number) for number in range(190, 200)]


def test_the_users_schema_and_the_option_choose_columns(read: Read, data: Path) -> None:
    by_schema = read(data, "offset bigint, value binary", subscribe="orders")
    by_option = read(data, subscribe="orders", columns="offset, value")
    assert by_schema.columns == by_option.columns == ["offset", "value"]
    assert sorted(by_schema.collect()) == sorted(by_option.collect())
    upper = read(data, "OFFSET bigint, Value binary", subscribe="orders")
    assert upper.columns == ["OFFSET", "Value"]
    assert sorted(tuple(row) for row in upper.collect()) == sorted(tuple(row) for row in by_schema.collect())
    assert read(data, subscribe="orders", columns="OFFSET").columns == ["OFFSET"]
    with pytest.raises(Exception, match="is of type binary, not string"):
        read(data, "value string", subscribe="orders").collect()


def test_a_filter_changes_no_other_use_of_the_frame(read: Read, data: Path) -> None:
    """Spark plans a DataFrame once. If the source had ``pushFilters``, the second count would be filtered, too."""
    frame = read(data, subscribe="orders")
    assert frame.where("partition = 1 AND offset < 5").count() == 5
    assert frame.count() == 400


def damage(folder: Path) -> tuple[Path, int]:
    """Change a bit in the middle of the second segment of orders-0, and return its path and its size."""
    path = sorted((folder / "orders-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path, len(content)


def test_corrupt_batches_fail_or_are_left_out_or_come_as_rows(read: Read, tmp_path: Path) -> None:
    fill(tmp_path)
    path, size_bytes = damage(tmp_path)
    with pytest.raises(Exception, match="CorruptBatchError"):
        read(tmp_path, subscribe="orders").collect()
    assert read(tmp_path, subscribe="orders", corruptBatches="skip").count() == 390
    rows = read(tmp_path, subscribe="orders", corruptBatches="columns").collect()
    [corrupt_row] = [row for row in rows if row["corruptReason"] is not None]
    assert len(rows) == 391
    assert (corrupt_row["topic"], corrupt_row["partition"], corrupt_row["key"], corrupt_row["timestamp"]) == (
        "orders",
        0,
        None,
        None,
    )
    assert corrupt_row["corruptFile"] == str(path)
    assert 0 < corrupt_row["corruptPosition"] < size_bytes
    missing = set(range(200)) - {row["offset"] for row in rows if row["partition"] == 0 and row is not corrupt_row}
    assert missing == set(range(corrupt_row["offset"], corrupt_row["offset"] + 10))


def counting() -> Any:
    """Return a function for ``mapInArrow``, which counts by partition and key.

    The function is nested, because Spark sends nested functions by value. Workers cannot import this module.
    """

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        columns = ["partition", "key"]
        tables = [pa.Table.from_batches([batch]).select(columns) for batch in batches]
        if tables:
            key_counts = pa.concat_tables(tables).group_by(columns).aggregate([([], "count_all")])
            yield from key_counts.rename_columns([*columns, "n"]).to_batches()

    return count


COUNTS = "partition int, key binary, n bigint"


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "orders", "columns": "partition,key"},
        {"subscribePattern": ".*", "minPartitions": 7, "includeHeaders": "true"},
        {"assign": '{"payments": [1]}', "startingTimestamp": 1120, "endingTimestamp": 1150},
        {"subscribePattern": "nothing.*"},
    ],
)
def test_a_function_where_rows_are_read_sees_what_it_sees_behind_the_source(
    read: Read, mapped: Read, data: Path, options: dict[str, object]
) -> None:
    frames = read(data, **options).mapInArrow(counting(), COUNTS), mapped(data, counting(), COUNTS, **options)
    expected, actual = (frame.groupBy("partition", "key").sum("n").collect() for frame in frames)
    assert sorted(actual, key=str) == sorted(expected, key=str)


def test_a_function_where_rows_are_read_gets_corrupt_batches_by_the_same_policy(mapped: Read, tmp_path: Path) -> None:
    fill(tmp_path)
    path, _ = damage(tmp_path)

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    def rows(policy: str) -> list[Any]:
        columns = {"columns": "offset,corruptFile", "corruptBatches": policy}
        read_rows: list[Any] = mapped(
            tmp_path, same, "offset bigint, corruptFile string", subscribe="orders", **columns
        ).collect()
        return read_rows

    with pytest.raises(Exception, match="CorruptBatchError"):
        rows("fail")
    assert len(rows("skip")) == 390
    assert [row["corruptFile"] for row in rows("columns") if row["corruptFile"]] == [str(path)]


def test_a_function_where_rows_are_read_may_leave_them_and_sees_what_the_plan_saw(mapped: Read, tmp_path: Path) -> None:
    fill(tmp_path)

    def first(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            return

    frame = mapped(tmp_path, first, "offset bigint", subscribe="orders", columns="offset", minPartitions=4)
    before = frame.collect()
    with open_engine(tmp_path) as engine:
        engine.log("orders", 0).append([Record(value=b"late")])
    assert sorted(frame.collect()) == sorted(before)
    for options, text in (({"subscribe": "strangers"}, "no topic strangers"), ({"subscribee": "x"}, "'subscribe'")):
        with pytest.raises(StorageError, match=text):
            mapped(tmp_path, first, "offset bigint", **options)


def test_read_committed_hides_aborted_transactions(read: Read, tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id="t") as producer:
            for number in range(4):
                producer.begin_transaction()
                producer.send("orders", value=b"%d" % number)
                producer.flush()  # otherwise the records might not be sent
                producer.abort_transaction() if number % 2 else producer.commit_transaction()
    values = {
        isolation: sorted(row["value"] for row in read(tmp_path, subscribe="orders", isolation=isolation).collect())
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert values["read_committed"] == [b"0", b"2"]
    assert values["read_uncommitted"] == [b"0", b"1", b"2", b"3"]


def test_a_log_that_is_being_written_is_read_up_to_its_checkpoint(read: Read, tmp_path: Path) -> None:
    fill(tmp_path)
    with open_engine(tmp_path) as engine:
        with open_reader(tmp_path) as reader:
            bound = reader.log("orders", 0).offsets().high_watermark
        engine.log("orders", 0).append([Record(value=b"late")])
        frame = read(tmp_path, subscribe="orders")
        assert frame.where("partition = 0").count() == bound


def test_a_tier_is_read_alone_and_as_of_an_earlier_version(read: Read, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    uri = bucket.as_uri()
    fill(tmp_path / "data", tier=uri)
    assert positions(read(uri, subscribe="orders", minPartitions=3)) == expected(("orders",), range(200))
    before = datetime.now(UTC).replace(tzinfo=None).isoformat()  # counts as UTC
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.log("orders", 0).append([Record(value=b"late")])
        engine.log("orders", 0).roll()
        engine.offload()
    assert read(uri, subscribe="orders").count() == 401
    assert read(uri, subscribe="orders", as_of=before).count() == 400
    assert read(uri, assign='{"orders": [0]}', as_of=1, columns="offset").count() < 200


def test_credentials_reach_the_tasks_and_show_nowhere(
    spark: Any, read: Read, mapped: Read, tmp_path: Path, s3_tier: str, local_s3: LocalS3, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    canary = "canary-f3a9c1d7"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    options = {**local_s3.options, "key": "someone", "secret": canary}
    fill(tmp_path / "data", tier=s3_tier, options=options)
    source_options = {f"tier.{name}": json.dumps(v) if isinstance(v, dict) else str(v) for name, v in options.items()}
    frame = read(s3_tier, subscribe="orders", **source_options)
    mapped_frame = mapped(s3_tier, counting(), COUNTS, subscribe="orders", **source_options)
    texts = []
    for checked_frame, rows in ((frame, 400), (mapped_frame.groupBy("key").sum("n"), 181)):
        assert checked_frame.count() == rows
        texts += [checked_frame._jdf.queryExecution().toString(), str(checked_frame), str(checked_frame.schema)]  # noqa: SLF001 - Spark shows its plan nowhere else
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            checked_frame.explain(mode)
    with pytest.raises(Exception, match="there is no topic strangers") as raised:
        read(s3_tier, subscribe="strangers", **source_options).collect()
    texts += [str(raised.value)]
    writing = (
        frame.select("key", "value").write.format("stratalog").options(topic="copy", partitions="2", **source_options)
    )
    writing.mode("append").save(s3_tier)
    with pytest.raises(Exception, match="there is no topic nobody") as raised:
        frame.select("value").write.format("stratalog").options(topic="nobody", **source_options).mode("append").save(
            s3_tier
        )
    source = ReadSource(s3_tier, tier_options=options)
    assert sum(log_stats.records for log_stats in stratalog_spark.stats(spark, source, topics=["copy"])) == 400
    assert stratalog_spark.compact(spark, source, topics=["copy"], any_policy=True).records_before == 400
    texts += [str(raised.value), repr(source), "".join(capfd.readouterr())]
    events = Path(urlsplit(spark.conf.get("spark.eventLog.dir")).path)
    event_logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert all(canary not in text for text in texts)
    assert any(b"stratalog" in text for text in event_logs)
    assert all(canary.encode() not in text for text in event_logs)


def test_spark_finds_the_source_by_itself(spark: Any, data: Path) -> None:
    assert DefaultSource is StratalogSource
    new_session = spark.newSession()
    assert new_session.read.format("stratalog").option("subscribe", "orders").load(str(data)).count() == 400
