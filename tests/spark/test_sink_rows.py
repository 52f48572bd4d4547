"""The sink without Spark's processes: rows become records in the right partitions, and rounds are published once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from stratalog import Engine, Record, TopicPartition, open_engine, open_reader
from stratalog.client.partitioner import partition_of_key
from stratalog.errors import ConfigError, InvalidRecordError, LogInUseError, StorageError, UnknownTopicError
from stratalog.tier.store.requests import Requests
from stratalog.writing import WriteMark, WriteTarget
from stratalog_spark.columns import row_columns
from stratalog_spark.columns.kafka_columns import check_schema
from stratalog_spark.columns.row_columns import convert_rows, partitions_of
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.write import open_writers
from stratalog_spark.write import sink as sinks
from stratalog_spark.write import stage as staging
from stratalog_spark.write.open_writers import close_kept, merger_of
from stratalog_spark.write.sink import BatchWriter, StreamWriter, Written
from stratalog_spark.write.stage import convert_to_arrow

HEADERS = "array<struct<key:string,value:binary>>"


def arrow(rows: Sequence[dict[str, Any]], *, large: bool = False) -> Any:
    text, binary = (pa.large_string(), pa.large_binary()) if large else (pa.string(), pa.binary())
    kinds = {
        "key": binary,
        "value": binary,
        "headers": pa.list_(pa.struct([("key", text), ("value", binary)])),
        "topic": text,
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema([(name, kinds[name]) for name in rows[0]]))


def made_rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "key": None if number % 5 == 2 else b"key %d" % (number % 40),
            "value": None if number % 11 == 3 else b"value %d" % number,
            "headers": None
            if number % 4 == 1
            else [{"key": "h", "value": b"%d" % number}, {"key": "none", "value": None}][: number % 3],
            "timestamp": datetime.fromtimestamp(1_700_000_000 + number, UTC),
        }
        for number in range(start, start + count)
    ]


@pytest.fixture(autouse=True)
def _no_writer_stays_open() -> Iterator[None]:
    yield

    close_kept()


@pytest.fixture(params=["directory", "tier"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "data")
    (tmp_path / "tier").mkdir()
    return (tmp_path / "tier").as_uri()


def sink(place: str, **options: object) -> Any:
    sink_options = {"path": place, "topic": "orders", **{name: str(value) for name, value in options.items()}}
    return SinkOptions({name: value for name, value in sink_options.items() if value})


@pytest.fixture
def topic(place: str) -> None:
    with sink(place).target.open() as writer:
        writer.create_topic("orders", 3)


def read(place: str, topic: str = "orders") -> list[Record]:
    with open_reader(place) as reader:
        return [
            record._replace(partition=name.partition)
            for name in reader.partitions()
            if name.topic == topic
            for record in reader.log(*name).records(start=0)
        ]


def stage(options: Any, batches: Iterator[Any], mark: WriteMark | None = None) -> Any:
    return Written(staging.stage(options, batches), mark)


def publish(options: Any, messages: list[Any], mark: WriteMark | None = None, **settings: bool) -> Any:
    return sinks.publish(options, messages, mark, **settings)


def test_a_key_is_hashed_as_kafka_hashes_it() -> None:
    chance = random.Random(1)  # noqa: S311 - the same in every run
    keys = [chance.randbytes(chance.randrange(24)) for _ in range(500)]
    for large in (False, True):
        batch = arrow([{"key": key, "value": b"v"} for key in keys], large=large)
        for part in (batch, batch.slice(100, 50)):
            part_keys = part.column("key").to_pylist()
            assert partitions_of(part, 7).tolist() == [partition_of_key(key, 7) for key in part_keys]


def test_a_row_without_a_key_is_placed_by_its_value_each_time() -> None:
    rows = [{"key": None, "value": b"%d" % number} for number in range(100)]
    shuffled = random.Random(2).sample(rows, 100)  # noqa: S311 - the same in every run
    first, second = (
        {
            row["value"]: place
            for row, place in zip(ordered_rows, partitions_of(arrow(ordered_rows), 5).tolist(), strict=True)
        }
        for ordered_rows in (rows, shuffled)
    )
    assert first == second
    assert set(first.values()) == set(range(5))
    assert partitions_of(arrow([{"key": None, "value": None}]), 5).tolist()[0] in range(5)


def test_a_partition_that_a_row_names_is_taken() -> None:
    rows = [{"key": b"k", "value": b"v", "partition": number} for number in (2, None, 0)]
    assert partitions_of(arrow(rows), 3).tolist() == [2, partition_of_key(b"k", 3), 0]
    for invalid_partition in (3, -1, -2):
        with pytest.raises(InvalidRecordError, match=f"partition {invalid_partition}, but the topic has 3"):
            partitions_of(arrow([{"value": b"v", "partition": invalid_partition}]), 3)


def test_keys_of_any_size_are_hashed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [bytes([number % 251]) * size for size in (0, 3, 7, 100) for number in range(40)]
    monkeypatch.setattr(row_columns, "_HASHED_BYTES", 64)
    partitions = row_columns.partitions_of(arrow([{"key": key, "value": b"v"} for key in keys]), 11)
    assert partitions.tolist() == [partition_of_key(key, 11) for key in keys]


def test_a_header_without_a_key_is_refused() -> None:
    for header in ({"key": None, "value": b"v"}, None):
        with pytest.raises(InvalidRecordError, match="header"):
            convert_rows(arrow([{"value": b"v", "headers": [{"key": "k", "value": None}, header]}]))


def test_only_null_and_the_time_of_sparks_kafka_source_are_no_timestamp() -> None:
    start = datetime(1970, 1, 1, tzinfo=UTC)
    times = [None, start - timedelta(milliseconds=1), start - timedelta(microseconds=1001), start]
    columns = convert_rows(arrow([{"value": b"v", "timestamp": time} for time in times]))
    assert list(columns.timestamp_ms) == [-1, -1, -2, 0]
    for early_us in (1, 999):
        rows = [{"value": b"v", "timestamp": start - timedelta(microseconds=early_us)}]
        with pytest.raises(InvalidRecordError, match="less than 1 ms before 1970"):
            convert_rows(arrow(rows))


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("compression", ["", "zstd"])
def test_rows_arrive_as_records_with_all_they_have(place: str, compression: str) -> None:
    options = sink(place, compression=compression)
    rows = made_rows(400)
    batches = [arrow(rows[:150]), arrow(rows[150:300], large=True), arrow(rows[290:]).slice(10)]
    publish(options, [stage(options, iter(batches))])
    expected = sorted((row["timestamp"], row["key"], row["value"], row["headers"] or []) for row in rows)
    actual = sorted(
        (
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            record.key,
            record.value,
            [{"key": name, "value": value} for name, value in record.headers],
        )
        for record in read(place)
    )
    assert actual == expected
    assert {record.partition for record in read(place) if record.key == b"key 0"} == {partition_of_key(b"key 0", 3)}


@pytest.mark.usefixtures("topic")
def test_rows_name_their_topic_if_the_option_does_not(place: str) -> None:
    options = sink(place, topic="")
    with options.target.open() as writer:
        writer.create_topic("payments", 1)
    rows = [{"topic": name, "value": name.encode()} for name in ("orders", "payments", "orders")]
    publish(options, [stage(options, iter([arrow(rows)]))])
    assert [record.value for record in read(place)] == [b"orders", b"orders"]
    assert [record.value for record in read(place, "payments")] == [b"payments"]
    with pytest.raises(InvalidRecordError, match="no topic"):
        stage(options, iter([arrow([{"topic": None, "value": b"v"}])]))
    with pytest.raises(UnknownTopicError, match="nowhere"):
        stage(options, iter([arrow([{"topic": "nowhere", "value": b"v"}])]))


def dying_after_the_first_log(open_target: Callable[..., Any]) -> Callable[..., Any]:
    """Return an ``open`` whose writer publishes to one log, and then raises KeyboardInterrupt."""

    def dying(target: Any) -> Any:
        writer = open_target(target)
        real = writer.append_all

        def append_all(staged: Any, mark: Any) -> Any:
            first = next(iter(staged))
            real({first: staged[first]}, mark)
            raise KeyboardInterrupt

        writer.append_all = append_all
        return writer

    return dying


@pytest.mark.usefixtures("topic")
def test_a_round_that_reached_some_partitions_is_finished_by_the_next_try(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between two commits. It repeats the round with the rows in another order."""
    options, mark, rows = sink(place), WriteMark("query", 4), made_rows(300)
    first = [stage(options, iter([arrow(rows[:100])]), mark), stage(options, iter([arrow(rows[100:])]), mark)]
    close_kept()
    monkeypatch.setattr(WriteTarget, "open", dying_after_the_first_log(WriteTarget.open))
    with pytest.raises(KeyboardInterrupt):
        publish(options, first, mark)
    monkeypatch.undo()
    assert 0 < len(read(place)) < 300
    reordered_rows = random.Random(3).sample(rows, 300)  # noqa: S311 - the same in every run
    second = [
        stage(options, iter([arrow(reordered_rows[:200])]), mark),
        stage(options, iter([arrow(reordered_rows[200:])]), mark),
    ]
    publications = publish(options, second, mark)
    assert [publication.duplicate for publication in publications] == [True, False, False]
    assert publish(options, second, mark)[1].duplicate
    key = repr
    assert sorted((record.value for record in read(place)), key=key) == sorted((row["value"] for row in rows), key=key)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("merged", [True, False])
def test_many_small_rounds_leave_few_segments(place: str, *, merged: bool) -> None:
    """With merges, each partition has fewer than 16 segments after 20 rounds. Each row is there once."""
    options = sink(place, **({} if merged else {"mergeBytes": 0}))
    rows, rounds = made_rows(10), 20
    for number in range(rounds):
        mark = WriteMark("query", number)
        publish(options, [stage(options, iter([arrow(rows)]), mark)], mark)
    with open_reader(place) as reader:
        segments_by_partition = [
            [s for s in reader.log("orders", number).segments() if s.size_bytes] for number in range(3)
        ]
    assert len(read(place)) == rounds * len(rows)
    assert [
        len(segments) < 16 if merged else len(segments) == rounds for segments in segments_by_partition if segments
    ] == [True] * 3


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("raises", [False, True])
def test_a_merge_that_fails_does_not_fail_the_round(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, raises: bool
) -> None:
    """Otherwise the round would be repeated, and without a mark its rows would be there twice."""

    def failing(_: object, logs: Sequence[object], limit_bytes: int) -> list[Exception]:
        errors: list[Exception] = [StorageError(f"{log} cannot be merged up to {limit_bytes}") for log in logs]
        if raises:
            raise errors[0]
        return errors

    options = sink(place, mergeBytes=1000)
    with options.target.open() as writer:
        monkeypatch.setattr(type(writer), "merge_ends", failing)
    publications = publish(options, [stage(options, iter([arrow(made_rows(100))]))])
    assert len(publications) == 3
    assert len(read(place)) == 100
    assert "orders-0 cannot be merged up to 1000" in caplog.text


def test_a_directory_that_is_not_closed_cleanly_does_not_fail_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are published already. Otherwise the round would be repeated, and without a mark its rows doubled."""
    close = Engine.close

    def failing(engine: Engine) -> None:
        close(engine)
        raise StorageError("a checkpoint cannot be written")

    place = str(tmp_path / "data")
    with open_engine(place) as engine:
        engine.create_topic("orders", partitions=3)
    options = sink(place)
    message = stage(options, iter([arrow(made_rows(10))]))
    monkeypatch.setattr(Engine, "close", failing)
    assert sum(publication.end_offset - publication.base_offset for publication in publish(options, [message])) == 10
    monkeypatch.undo()
    assert len(read(place)) == 10
    assert "was not closed cleanly after a write: a checkpoint cannot be written" in caplog.text


def test_merges_of_a_stream_run_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends although its merges have not begun.

    Merges run in one thread, and each log is merged once, up to the size that was requested last.
    """
    (tmp_path / "tier").mkdir()
    place = (tmp_path / "tier").as_uri()
    options = sink(place)
    with options.target.open() as writer:
        writer.create_topic("orders", 1)
    may_begin, limits_bytes = threading.Event(), list[int]()
    real = type(writer).merge_ends

    def waiting(self: Any, logs: Sequence[TopicPartition], limit_bytes: int) -> Any:
        limits_bytes.append(limit_bytes)
        assert may_begin.wait(60)
        return real(self, logs, limit_bytes)

    monkeypatch.setattr(type(writer), "merge_ends", waiting)
    for number in range(10):
        mark = WriteMark("query", number)
        if number == 9:
            options = sink(place, mergeBytes=1_000_000)
        publish(options, [stage(options, iter([arrow(made_rows(5))]), mark)], mark, merges_later=True)
    with open_reader(place) as reader:
        assert len(reader.log("orders", 0).segments()) == 10
    may_begin.set()
    merger_of(options.target).wait()
    assert 1 <= len(limits_bytes) <= 2
    assert limits_bytes[-1] == 1_000_000
    with open_reader(place) as reader:
        assert len(reader.log("orders", 0).segments()) == 1
    assert len(read(place)) == 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_merges_continue_after_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tier").mkdir()
    merger, merged = open_writers.Merger(sink((tmp_path / "tier").as_uri()).target), list[TopicPartition]()

    def failing(_: object, logs: Sequence[TopicPartition], limit_bytes: int) -> None:
        merged.extend(logs)
        if len(merged) == 1:
            raise ValueError(f"limit {limit_bytes}")

    monkeypatch.setattr(open_writers, "merge_ends", failing)
    for partition in range(2):
        merger.submit([TopicPartition("orders", partition)], 1000)
        merger.wait()
    assert merged == [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def test_a_round_requests_only_partitions_that_it_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round sends at most three requests for each of its partitions, and none for other partitions.

    Only the first round of a process also reads the manifests.
    """
    (tmp_path / "tier").mkdir()
    options = sink((tmp_path / "tier").as_uri(), mergeBytes=0)
    schema = StructType().add("value", BinaryType()).add("partition", IntegerType())
    with options.target.open() as writer:
        writer.create_topic("orders", 100)

    request_kinds, real = list[str](), Requests.send

    def counting(self: Requests, kind: str, *arguments: Any, **options: Any) -> Any:
        request_kinds.append(kind)
        return real(self, kind, *arguments, **options)

    monkeypatch.setattr(Requests, "send", counting)
    partitions = (3, 50, 99)
    for number in range(3):
        BatchWriter(options, schema)
        rows = [{"value": b"v", "partition": partition} for partition in partitions]
        mark = WriteMark("query", number)
        message = stage(options, iter([arrow(rows)]), mark)
        request_kinds.clear()
        BatchWriter(options, schema)
        publish(options, [message], mark)
        assert len(request_kinds) <= 2 + 3 * len(partitions), request_kinds


@pytest.mark.usefixtures("topic")
def test_a_failure_names_the_partitions_published_before_it(place: str) -> None:
    options = sink(place)
    message = stage(options, iter([arrow(made_rows(100))]))
    discarded_segments = [segment for segment in message.staged if segment.log.partition == 2]
    with options.target.open() as writer:
        writer.discard(discarded_segments)
    with pytest.raises(StorageError) as raised:
        publish(options, [message])
    assert raised.value.__notes__ == ["already published when it failed at orders-2: orders-0, orders-1"]
    assert {record.partition for record in read(place)} == {0, 1}


@pytest.mark.usefixtures("topic")
def test_a_task_that_fails_leaves_nothing(place: str, tmp_path: Path) -> None:
    options = sink(place)

    def failing() -> Iterator[Any]:
        yield arrow(made_rows(3000))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage(options, failing())
    assert read(place) == []
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".seg" or "staged" in path.name]


def test_a_directory_that_an_engine_has_open_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.writing.directory_writer.LOCK_WAIT_MS", 0)
    options = sink(str(tmp_path / "data"))
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", partitions=1)
        message = stage(options, iter([arrow(made_rows(10))]))
        with pytest.raises(StorageError, match="holds the directory"):
            publish(options, [message])
    publish(options, [message])
    assert len(read(str(tmp_path / "data"))) == 10


def test_schemas_that_cannot_be_written_are_refused() -> None:
    header = StructType().add("key", StringType()).add("value", BinaryType())
    valid_schema = StructType().add("key", StringType()).add("value", BinaryType()).add("headers", ArrayType(header))
    check_schema(valid_schema.add("partition", IntegerType()).add("timestamp", TimestampType()), "orders")
    check_schema(StructType().add("value", StringType()).add("topic", StringType()), None)
    check_schema(StructType().add("VALUE", StringType()).add("Topic", StringType()).add("offset", LongType()), None)
    for schema, topic, message in (
        (StructType().add("key", StringType()), "orders", "'value' is missing"),
        (StructType().add("value", LongType()), "orders", "'value' must be of type binary or string, not bigint"),
        (
            StructType().add("value", StringType()).add("VALUE", StringType()),
            "orders",
            "two columns are called 'value'",
        ),
        (StructType().add("value", StringType()), None, "no topic is given"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_schema(schema, topic)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "no target is given"),
        ({"topic": "", "partitions": "3"}, "creates a topic"),
        ({"partitions": "0"}, "1 or more"),
        ({"mergeBytes": "64 MiB"}, "mergeBytes='64 MiB' is not valid"),
        ({"writeId": "job"}, "need each other"),
        ({"takeOver": "maybe"}, "not one of true, false"),
        ({"topics": "orders"}, "did you mean"),
    ],
)
def test_options_of_a_write_are_checked(options: dict[str, str], message: str) -> None:
    sink_options = {"path": "/nowhere", **options}
    with pytest.raises(ConfigError, match=message):
        sink(sink_options.pop("path"), **sink_options)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "payments"}, "option partitions to create it"),
        ({"compression": "rar"}, "rar"),
        ({"partitions": "5"}, "3 partitions, not 5"),
    ],
)
def test_the_driver_refuses_what_every_task_would_fail_with(place: str, options: dict[str, str], message: str) -> None:
    schema = StructType().add("value", BinaryType())
    for writer in (BatchWriter, StreamWriter):
        writer(sink(place), schema)
        with pytest.raises(ConfigError, match=message):
            writer(sink(place, **options), schema)


def test_the_driver_refuses_a_tier_that_an_engine_wrote_to_and_names_the_take_over_option(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    place, schema = (tmp_path / "tier").as_uri(), StructType().add("value", BinaryType())
    with open_engine(tmp_path / "data", tier=place) as engine:
        engine.create_topic("orders")
    with pytest.raises(LogInUseError, match="take-over option"):
        BatchWriter(sink(place), schema)
    BatchWriter(sink(place, takeOver="true"), schema)


@pytest.mark.usefixtures("topic")
def test_columns_have_names_in_any_case_and_others_are_left_out_with_a_warning(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = sink(
        place, **{"kafka.bootstrap.servers": "x", "kafka.compression.type": "gzip", "includeHeaders": "true"}
    )
    schema = (
        StructType().add("KEY", StringType()).add("Value", BinaryType()).add("offset", LongType()).add("n", LongType())
    )
    writer = BatchWriter(options, schema)
    rows = pa.RecordBatch.from_pydict({"KEY": ["k"], "Value": [b"v"], "offset": [17], "n": [3]})
    writer.commit([writer.write(iter([rows]))])
    assert [(record.key, record.value, record.offset) for record in read(place)] == [(b"k", b"v", 0)]
    assert options.compression == "gzip"
    ignored, left_out = caplog.messages
    assert "includeHeaders, kafka.bootstrap.servers" in ignored
    assert "compression" not in ignored
    assert left_out == "columns that are not written: n, offset"


def test_rows_of_an_older_spark_become_arrow() -> None:
    schema = StructType().add("value", BinaryType()).add("timestamp", TimestampType())
    moment = datetime(2026, 11, 21, 12, tzinfo=UTC)
    local = moment.astimezone().replace(tzinfo=None)  # the form in which Spark passes timestamps
    rows = [Row(value=b"%d" % number, timestamp=local) for number in range(3)]
    (batch,) = convert_to_arrow(iter(rows), schema)
    assert batch.column("value").to_pylist() == [b"0", b"1", b"2"]
    assert batch.column("timestamp").to_pylist() == [moment] * 3
    assert list(convert_to_arrow([batch], schema)) == [batch]


@pytest.mark.usefixtures("topic")
def test_records_staged_by_another_attempt_of_a_task_are_not_published(place: str) -> None:
    """Two attempts of a task complete, as with speculative execution; the driver gets only one of their messages."""
    options, rows = sink(place), arrow(made_rows(200))
    message, duplicate = (stage(options, iter([rows]), WriteMark("query", 0)) for _ in range(2))
    assert duplicate.staged
    publish(options, [None, message], WriteMark("query", 0))
    assert len(read(place)) == 200
    publish(options, [duplicate], WriteMark("query", 0))
    assert len(read(place)) == 200


def test_a_stream_publishes_the_results_of_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks know the query and the batch, the driver knows only the batch. Messages of another batch are refused."""

    class Context:
        @staticmethod
        def get() -> Any:
            return Context()

        @staticmethod
        def getLocalProperty(name: str) -> str:  # noqa: N802 - Spark's name
            return {"sql.streaming.queryId": "a query", "streaming.sql.batchId": "3"}[name]

    monkeypatch.setattr(sinks, "TaskContext", Context)
    options = sink(str(tmp_path / "data"), partitions=2)
    writer = StreamWriter(options, StructType().add("value", BinaryType()))
    message = writer.write(iter([arrow([{"value": b"v"}])]))
    assert isinstance(message, Written)
    assert message.mark == WriteMark("a query", 3)
    with pytest.raises(ConfigError, match="batch 4"):
        writer.commit([message], 4)
    writer.commit([message, None], 3)
    writer.commit([message, None], 3)
    writer.abort([message, None], 3)
    assert [record.value for record in read(str(tmp_path / "data"))] == [b"v"]
    writer.commit([None], 4)
