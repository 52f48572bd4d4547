"""``sync``, which keeps tables in step with a topic, without Spark's processes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake import HOUR_MS, START_MS, TOPIC, Lake, prefixed, record
from stratalog import Record, open_engine
from stratalog.errors import ConfigError, CorruptBatchError
from stratalog_spark import Maintenance
from stratalog_spark.lake import syncer as micro_batches
from stratalog_spark.lake import tasks
from stratalog_spark.lake.protobuf import compile_proto
from stratalog_spark.lake.table import TableConflictError
from stratalog_spark.read.read_split import read_split
from tier_jobs import run_here

pytestmark = pytest.mark.usefixtures("has_lakes")

PLACES = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(micro_batches, "run_tasks", run_here)
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic(TOPIC, partitions=2, config={"retention.ms": -1})
        yield Lake(tmp_path, engine, request.param)


def test_raw_values_become_rows_of_their_hour(lake: Lake) -> None:
    lake.append(0, [record(b"a", b"1"), record(None, None, hour=1), record(b"c", b"3", hour=2)])
    lake.append(1, [record(b"d", b"4"), record(b"e", b"5", hour=1)])
    assert lake.sync(lake.syncer()) == 5
    assert lake.places() == PLACES
    assert [row["value"] for row in lake.rows()] == [b"1", None, b"3", b"4", b"5"]
    assert len(lake.files()) == 3


def test_rows_are_in_the_partition_of_their_day(lake: Lake) -> None:
    hours = [0, 1, 30, 60, 61]
    lake.append(0, [record(b"a", b"%d" % number, hour=hour) for number, hour in enumerate(hours)])
    assert lake.sync(lake.syncer(partition_by="day")) == len(hours)
    days = [datetime.fromtimestamp((START_MS + hour * HOUR_MS) / 1000, UTC).date() for hour in hours]
    assert len(set(days)) == 3
    table = lake.target().open_table()._table  # noqa: SLF001 - the library's own table
    for day in sorted(set(days)):
        if lake.kind == "iceberg":
            [field] = table.spec().fields
            assert str(field.transform) == "day"
            scan = table.scan(
                f"kafka_timestamp >= '{day}T00:00:00+00:00' and kafka_timestamp <= '{day}T23:59:59+00:00'"
            )
            assert len(list(scan.plan_files())) == 1, "files of other days are not read"
            day_rows = scan.to_arrow()
        else:
            assert table.metadata().partition_columns == ["kafka_date"]
            day_rows = table.to_pyarrow_table(filters=[("kafka_date", "=", day)])
        assert sorted(day_rows["value"].to_pylist()) == [
            b"%d" % number for number, record_day in enumerate(days) if record_day == day
        ]


@pytest.mark.parametrize("partition_by", ["day", "none"])
def test_a_timestamp_after_the_year_9999_is_null(lake: Lake, partition_by: str) -> None:
    last_ms = int(datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC).timestamp()) * 1000
    syncer = lake.syncer(partition_by=partition_by, maintenance=Maintenance(small_files=2))
    for timestamp_ms in (last_ms, 1_000 * START_MS):  # a producer that sends microseconds sets the second one
        start = lake.ends()
        lake.append(0, [Record(timestamp_ms=timestamp_ms, value=b"v")])
        assert lake.sync(syncer, start) == 1
    assert [row["kafka_timestamp"] for row in lake.rows()] == [datetime.fromtimestamp(last_ms // 1000, UTC), None]


def test_a_repeated_micro_batch_adds_nothing(lake: Lake) -> None:
    lake.append(0, [record(b"a", b"1")] * 3)
    lake.append(1, [record(b"a", b"1")] * 2)
    syncer = lake.syncer()
    assert lake.sync(syncer) == 5
    assert lake.sync(syncer) == 0
    lake.append(0, [record(b"a", b"6")])
    assert lake.sync(lake.syncer()) == 1
    assert lake.places() == [*PLACES[:3], (0, 3), *PLACES[3:]]


AVRO_1 = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}
AVRO_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "record", "name": "At", "fields": [{"name": "x", "type": "int"}]}},
    ],
}


def avro(schema: object, value: object) -> bytes:
    import fastavro  # noqa: PLC0415 - an extra

    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


def test_avro_with_a_registry_adds_columns_when_a_schema_appears(lake: Lake) -> None:
    requested_ids: list[int] = []

    def registry(number: int) -> object:
        requested_ids.append(number)
        return {1: json.dumps(AVRO_1), 2: json.dumps(AVRO_2)}[number]

    lake.append(0, [record(b"a", prefixed(1, avro(AVRO_1, {"user": "x"}))), record(b"a", b"{}")])
    lake.append(1, [record(b"a", prefixed(9, b"")), record(b"t", None)])
    syncer = lake.syncer("avro", registry)
    assert lake.sync(syncer) == 2
    assert [row.get("user") for row in lake.rows()] == ["x", None]
    assert requested_ids == [1, 9]
    lake.append(0, [record(b"b", prefixed(2, avro(AVRO_2, {"user": "y", "amount": 2.5, "at": {"x": 3}})))])
    lake.append(1, [record(b"b", prefixed(1, avro(AVRO_1, {"user": "z"})))])
    assert lake.sync(syncer) == 2
    rows_by_place = {
        (row["kafka_partition"], row["kafka_offset"]): (row["user"], row["amount"], row["at"]) for row in lake.rows()
    }
    assert rows_by_place == {
        (0, 0): ("x", None, None),
        (0, 2): ("y", 2.5, {"x": 3}),
        (1, 1): (None, None, None),
        (1, 2): ("z", None, None),
    }
    quarantined_rows = [
        (row["partition"], row["offset"], row["key"], row["value"], row["error"])
        for row in lake.rows("orders_quarantine")
    ]
    assert quarantined_rows == [
        (0, 1, b"a", b"{}", "the value does not begin with a zero byte and the id of a schema"),
        (1, 0, b"a", prefixed(9, b""), "there is no schema with the id 9"),
    ]


def test_the_latest_record_of_each_key_remains(lake: Lake) -> None:
    lake.append(0, [record(b"a", b"1"), record(b"b", b"2"), record(b"a", b"3"), record(None, b"x")])
    lake.append(1, [record(b"c", b"4"), record(b"d", b"5")])
    syncer = lake.syncer(upsert=4)
    assert lake.sync(syncer) == 4
    assert {row["kafka_key"]: row["value"] for row in lake.rows()} == {b"a": b"3", b"b": b"2", b"c": b"4", b"d": b"5"}
    assert lake.places("orders_quarantine") == [(0, 3)]
    lake.append(0, [record(b"b", None), record(b"a", b"6"), record(b"e", b"7"), record(b"e", None)])
    assert lake.sync(syncer) == 1
    assert {row["kafka_key"]: row["value"] for row in lake.rows()} == {b"a": b"6", b"c": b"4", b"d": b"5"}
    assert lake.sync(syncer) == 0
    assert len(lake.rows()) == 3


def test_distinct_keys_are_sorted_in_few_passes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all collected rows for each Arrow batch would take quadratic time."""
    latest, passes = tasks.latest, list[int]()

    def read_single_rows(*arguments: Any) -> Iterator[Any]:
        for batch in read_split(*arguments):
            yield from (batch.slice(row, 1) for row in range(batch.num_rows))

    def count_pass(rows: Any, *, each_partition: bool) -> Any:
        passes.append(rows.num_rows)
        return latest(rows, each_partition=each_partition)

    monkeypatch.setattr(tasks, "read_split", read_single_rows)
    monkeypatch.setattr(tasks, "latest", count_pass)
    monkeypatch.setattr(tasks, "_HELD_BYTES", 1)
    lake.append(0, [record(b"%d" % number, b"v") for number in range(64)])
    assert lake.sync(lake.syncer(upsert=1)) == 64
    assert len(lake.places()) == 64
    assert len(passes) < 32


def test_a_timestamp_after_the_year_9999_is_later_than_other_timestamps_of_its_key(lake: Lake) -> None:
    lake.append(0, [Record(timestamp_ms=1_000 * START_MS, key=key, value=b"later") for key in (b"k", None)])
    lake.append(1, [Record(timestamp_ms=START_MS, key=b"k", value=b"earlier")])
    assert lake.sync(lake.syncer(upsert=4)) == 1
    assert [(row["value"], row["kafka_timestamp"]) for row in lake.rows()] == [(b"later", None)]
    assert [row["timestamp"] for row in lake.rows("orders_quarantine")] == [None]


def test_small_files_are_rewritten_within_the_limits(lake: Lake) -> None:
    syncer = lake.syncer(maintenance=Maintenance(small_files=4, file_bytes=1 << 20))
    for number in range(5):
        lake.append(0, [record(b"a", b"%d" % number), record(b"a", b"%d" % number, hour=30 + number)])
        lake.sync(syncer)
        assert len(lake.places()) == 2 * (number + 1)
        assert len([file for file in lake.files() if "kafka_hour=" in file]) == [2, 4, 6, 5, 7][number]
    none = lake.syncer(maintenance=Maintenance(small_files=2, file_bytes=1 << 20, max_bytes=1))
    lake.append(0, [record(b"a", b"x")])
    lake.sync(none)
    assert len(lake.files()) == 8


def test_settings_that_do_not_match_are_refused(lake: Lake) -> None:
    lake.syncer()
    with pytest.raises(ConfigError, match="partition_by='hour', not 'day'"):
        lake.syncer(partition_by="day")


class Killed(BaseException):
    """Raised where the driver is killed."""


def killed_at(monkeypatch: pytest.MonkeyPatch, lake: Lake, moment: tuple[str, str]) -> None:
    """Make the driver die before or after the commit of one step; ``moment`` is (step, "before" or "after")."""
    step, when = moment
    table = type(lake.target().open_table())
    commit = table.commit

    def committed(self: Any, added: Any, removed: Any, mark: Any) -> None:
        is_quarantine = self.layout.schema == "quarantine"
        commit_step = "maintenance" if mark is None else "quarantine" if is_quarantine else "data"
        if commit_step == step and when == "before":
            raise Killed
        commit(self, added, removed, mark)
        if commit_step == step:
            raise Killed

    monkeypatch.setattr(table, "commit", committed)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["data", "quarantine", "maintenance"])
@pytest.mark.parametrize("upsert", [0, 2])
def test_a_driver_that_is_killed_at_any_commit_neither_loses_nor_repeats_a_record(
    lake: Lake, step: str, when: str, upsert: int
) -> None:
    """The schema of the bad record appears after the driver died. Each record is in one of the two tables."""
    schemas: dict[int, object] = {1: AVRO_1}
    limits = Maintenance(small_files=2, file_bytes=1 << 20)

    def syncer() -> Any:
        return lake.syncer("avro", lambda number: schemas[number], maintenance=limits, upsert=upsert)

    values = [prefixed(1, avro(AVRO_1, {"user": str(number)})) for number in range(4)]
    lake.append(0, [record(b"a", values[0])])
    lake.append(1, [record(b"b", values[1])])
    start = {0: 0, 1: 0}
    assert lake.sync(syncer(), start) == 2
    start = lake.ends()
    lake.append(0, [record(b"c", values[2]), record(b"d", prefixed(2, b"?"))])
    lake.append(1, [record(b"e", values[3])])
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, lake, (step, when))
        with pytest.raises(Killed):
            lake.sync(syncer(), start)
    schemas[2] = {"type": "record", "name": "Order", "fields": [{"name": "other", "type": "string"}]}
    lake.sync(syncer(), start)
    lake.sync(syncer(), start)
    lake.append(1, [record(b"f", values[0])])
    assert lake.sync(syncer(), start) == 1
    assert lake.places() == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert lake.places("orders_quarantine") == [(0, 2)]


def test_schemas_that_do_not_fit_are_refused_and_wider_columns_are_not(lake: Lake) -> None:
    def schema(kind: object) -> dict[str, object]:
        return {"type": "record", "name": "Order", "fields": [{"name": "n", "type": kind}]}

    lake.append(0, [record(b"a", prefixed(3, avro(schema("int"), {"n": 1})))])
    lake.append(0, [record(b"a", prefixed(2, avro(schema("long"), {"n": 1 << 40})))])
    lake.sync(lake.syncer("avro", {1: schema("long"), 2: schema("long"), 3: schema("int")}))
    assert [row["n"] for row in lake.rows()] == [1, 1 << 40]
    with pytest.raises(
        ConfigError, match=r"the schema with the id 4 does not fit the table: n is string .* int64 in the"
    ):
        lake.syncer("avro", {4: schema("string")})
    with pytest.raises(ConfigError, match="'kafka_offset', which is the name of a column"):
        lake.syncer("avro", {4: {"type": "record", "name": "O", "fields": [{"name": "kafka_offset", "type": "int"}]}})


def test_an_invalid_schema_of_a_registry_is_an_error(lake: Lake) -> None:
    field = {"name": "x", "type": {"type": "array"}}
    lake.append(0, [record(b"a", prefixed(1, b"x"))])
    syncer = lake.syncer("avro", lambda _: {"type": "record", "name": "A", "fields": [field]})
    with pytest.raises(ConfigError, match="schema 1: the Avro schema is not valid: KeyError: 'items'"):
        lake.sync(syncer)


def test_nested_fields_are_added(lake: Lake) -> None:
    def schema(*names: str) -> dict[str, object]:
        inner = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        return {"type": "object", "properties": {"a": inner, "list": {"type": "array", "items": inner}}}

    lake.append(0, [record(b"a", b'{"a": {"x": 1}, "list": [{"x": 2}]}')])
    lake.sync(lake.syncer("json", {None: schema("x")}))
    lake.append(0, [record(b"a", b'{"a": {"x": 3, "y": 4}, "list": [{"y": 5}], "more": 1}')])
    lake.sync(lake.syncer("json", {None: schema("x", "y")}))
    assert [(row["a"], row["list"]) for row in lake.rows()] == [
        ({"x": 1, "y": None}, [{"x": 2, "y": None}]),
        ({"x": 3, "y": 4}, [{"x": None, "y": 5}]),
    ]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  string user = 1;
  uint64 total = 2;
  optional int32 rank = 3;
  repeated Item items = 4;
  map<string, double> prices = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.StringValue note = 7;
  Kind kind = 8;
}
message Item { string name = 1; bytes code = 2; }
enum Kind { NONE = 0; BOOK = 1; }
"""


def test_protobuf_with_the_indexes_of_a_registry(lake: Lake) -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - an extra

    folder = lake.folder / "schemas"
    folder.mkdir()
    (folder / "5.proto").write_text(PROTO)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compile_proto(PROTO)).file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = order(user="u", total=(1 << 64) - 1, kind=1, prices={"x": 1.5})
    message.items.add(name="i", code=b"\xff")
    message.at.FromJsonString("2026-01-02T03:04:05.678901Z")
    message.note.value = ""
    body = message.SerializeToString()
    lake.append(
        0, [record(b"a", prefixed(5, b"\0" + body)), record(b"a", prefixed(5, b"\x02\0" + order().SerializeToString()))]
    )
    lake.append(1, [record(b"a", prefixed(5, b"\x02\x02" + body)), record(b"a", prefixed(5, b"\0\xff"))])
    assert lake.sync(lake.syncer("protobuf", folder)) == 2
    first, second = lake.rows()
    names = ("user", "total", "rank", "items", "prices", "at", "note", "kind")
    assert [first[name] for name in names] == [
        "u",
        Decimal((1 << 64) - 1),
        None,
        [{"name": "i", "code": b"\xff"}],
        [("x", 1.5)],
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "",
        "BOOK",
    ]
    assert [second[name] for name in names] == ["", 0, None, [], [], None, None, "NONE"]
    assert lake.places("orders_quarantine") == [(1, 0), (1, 1)]


def test_a_second_driver_that_commits_the_same_records_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both drivers have read the table before either of them commits."""
    lake.append(0, [record(b"a", b"1")] * 3)
    syncer, second_syncer = lake.syncer(), lake.syncer()
    late_runs = list[int]()

    def late(*arguments: Any, **settings: Any) -> Any:
        results = run_here(*arguments, **settings)
        if not late_runs:
            late_runs.append(1)
            lake.sync(second_syncer)
        return results

    monkeypatch.setattr(micro_batches, "run_tasks", late)
    with pytest.raises(TableConflictError, match="at the same time"):
        lake.sync(syncer)
    assert lake.places() == [(0, 0), (0, 1), (0, 2)]


def test_a_log_that_was_cut_at_its_end_is_an_error(lake: Lake) -> None:
    lake.append(0, [record(b"a", b"1")])
    lake.append(0, [record(b"a", b"2")])
    failing, skipping = lake.syncer(), lake.syncer(corruptBatches="skip")
    lake.engine.close()
    path = lake.folder / "data" / f"{TOPIC}-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-5])
    splits = lake.splits({0: 0, 1: 0}, {0: 1, 1: 0})
    with pytest.raises(CorruptBatchError):
        failing.apply(None, splits)
    assert lake.places() == []
    assert [skipping.apply(None, splits), skipping.apply(None, splits)] == [1, 0]


def test_a_topic_that_was_created_again_needs_another_table(lake: Lake) -> None:
    lake.append(0, [record(b"a", b"1")])
    syncer = lake.syncer()
    lake.sync(syncer)
    lake.engine.delete_topic(TOPIC)
    lake.engine.create_topic(TOPIC, partitions=2)
    lake.append(0, [record(b"a", b"1")] * 2)
    for start in (lambda: lake.sync(syncer), lake.syncer):
        with pytest.raises(ConfigError, match="was deleted and created again"):
            start()
