"""Export to Parquet: each run writes the new records, and each record exactly once, also after failures.

Tasks run in this process, not on Spark.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations import local
from fsspec.implementations.local import LocalFileSystem

from stratalog import Engine, Record, TopicPartition, open_engine, open_reader
from stratalog.errors import ConfigError, CorruptCheckpointError, OffsetOutOfRangeError, StorageError
from stratalog.testing.s3 import LocalS3
from stratalog_spark import IcebergTable
from stratalog_spark.exporting import export as exporting
from stratalog_spark.exporting import imports, ledger
from stratalog_spark.exporting.imports import merge_in_order
from stratalog_spark.exporting.ledger import Ledger, Plan, Target
from stratalog_spark.parquet import parquet_files
from stratalog_spark.parquet.values import AvroValues, JsonValues
from stratalog_spark.tasks.messages import Message
from stratalog_spark.tasks.run_tasks import ByteCount

HOUR_MS = 3_600_000
Export = Callable[..., Any]


class KilledError(Exception):
    """Raised where the driver or a task is killed."""


def run_tasks(
    _spark: object, tasks: Sequence[Any], work: Callable[[Any], Any], *, task: Any, result: Any, **_: object
) -> list[Any]:
    task_message, result_message = Message(task), Message(result)
    return [
        result_message.unpack(result_message.pack(work(task_message.unpack(task_message.pack(item))))) for item in tasks
    ]


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Export:
    """Return the job, which runs its tasks one after the other in this process. So do imports.

    Tasks and results are packed and unpacked as messages, as if they were sent to a worker.
    """
    for module in (exporting, imports):
        monkeypatch.setattr(module, "run_tasks", run_tasks)

    def call(source: Path, target: object, **arguments: Any) -> Any:
        return exporting.export(None, str(source), str(target), **arguments)

    return call


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory with the topic ``orders``: two partitions, with one record for each of ten hours."""
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("orders", partitions=2, config={"segment.bytes": 2_000, "retention.ms": -1})
        append(engine, range(10))
    return folder


def iceberg(folder: Path) -> dict[str, str]:
    """Return the properties of an Iceberg catalog in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "house").as_uri()}


def append(engine: Engine, numbers: range, value: Callable[[int], bytes | None] = b"v%d".__mod__) -> None:
    for partition in (0, 1):
        for number in numbers:
            row = Record(timestamp_ms=20 * HOUR_MS + number * HOUR_MS, key=b"k%d" % number, value=value(number))
            engine.log("orders", partition).append([row])


def rows(target: Path) -> list[tuple[int, int, bytes | None]]:
    """Return partition, offset and value of all rows, as readers of Parquet find them."""
    table = ds.dataset(target, partitioning="hive").to_table(columns=["partition", "offset", "value"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def expected(count: int) -> list[tuple[int, int, bytes | None]]:
    return [(partition, number, b"v%d" % number) for partition in (0, 1) for number in range(count)]


def test_each_run_adds_what_is_new_by_date(export: Export, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = export(data, target)
    assert (first.run, first.rows, first.resumed) == (1, 20, 0)
    assert rows(target) == expected(10)
    assert {Path(name).parts[:2] for name in first.files} == {
        ("topic=orders", "date=1970-01-01"),
        ("topic=orders", "date=1970-01-02"),
    }
    assert (export(data, target).run, rows(target)) == (0, expected(10))
    with open_engine(data) as engine:
        append(engine, range(10, 15))
    second = export(data, target)
    assert (second.run, second.rows) == (2, 10)
    assert rows(target) == expected(15)
    assert set(second.ends.values()) == {15}


@pytest.mark.parametrize("by", ["hour", "none"])
def test_folders_are_as_asked_for(export: Export, data: Path, tmp_path: Path, by: str) -> None:
    export_result = export(data, tmp_path / "out", partition_by=by)
    folders = {Path(name).parent.name for name in export_result.files}
    hours = {f"hour={(20 + number) % 24:02}" for number in range(10)}
    assert folders == ({"topic=orders"} if by == "none" else hours)
    assert rows(tmp_path / "out") == expected(10)


def test_records_without_a_time_have_a_folder_of_their_own(export: Export, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", config={"retention.ms": -1, "record.version": 0})
        engine.log("orders", 0).append([Record(value=b"v0")])
        engine.alter_topic("orders", {"record.version": 2})
        engine.log("orders", 0).append([Record(value=b"v1", timestamp_ms=5)])
    export_result = export(tmp_path / "data", tmp_path / "out")
    assert sorted(Path(name).parent.name for name in export_result.files) == [
        "date=1970-01-01",
        "date=__HIVE_DEFAULT_PARTITION__",
    ]
    assert [row[1] for row in rows(tmp_path / "out")] == [0, 1]


@pytest.mark.parametrize("where", ["Target.put", "Ledger.finish"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_killed_run_is_repeated_over_the_same_files(
    export: Export, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, after: int
) -> None:
    owner, name = where.split(".")
    original, calls = getattr(getattr(ledger, owner), name), list[int]()

    def dying(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise KilledError
        return original(*arguments)

    target = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(getattr(ledger, owner), name, dying)
        for _ in range(after + 1):
            try:
                export(data, target)
            except KilledError:
                break
            with open_engine(data) as engine:
                append(engine, range(90, 91))
    exported_rows = rows(target) if list(target.rglob("*.parquet")) else []
    assert len(exported_rows) == len({row[:2] for row in exported_rows})
    with open_engine(data) as engine:
        append(engine, range(90, 92))
        ends = {partition: engine.log("orders", partition).offsets().log_end for partition in (0, 1)}
    export(data, target)
    assert [row[:2] for row in rows(target)] == [(part, number) for part, end in ends.items() for number in range(end)]
    assert not [path for path in target.rglob("*") if path.name.startswith(".")]


def test_a_run_whose_done_file_is_not_complete_is_repeated(
    export: Export, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, target = Ledger.finish, tmp_path / "out"

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    def full(self: Ledger, *arguments: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(local.LocalFileOpener, "write", fail)
            patched.setattr(local.LocalFileSystem, "put_file", fail)
            finish(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "finish", full)
        with pytest.raises(OSError, match="disk full"):
            export(data, target)
    assert export(data, target).resumed == 1
    assert [number for number, _ in Ledger(Target(str(target))).completed_runs(after=0)] == [1]
    assert rows(target) == expected(10)


def test_two_runs_at_once_carry_out_one_plan(
    export: Export, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, begin = tmp_path / "out", Ledger.begin

    def late(self: Ledger, plan: Any) -> Any:
        monkeypatch.setattr(Ledger, "begin", begin)
        with open_engine(data) as engine:
            append(engine, range(10, 12))
        export(data, target)  # the other run has more records, and ends first
        return begin(self, plan)

    monkeypatch.setattr(Ledger, "begin", late)
    export(data, target)
    assert [row[:2] for row in rows(target)] == [row[:2] for row in expected(12)]


def test_a_run_of_another_process_is_found(local_s3: LocalS3) -> None:
    """s3fs keeps listings. An option that gives each process its own file system stands for the two processes."""
    uri, options = local_s3.uri("export"), tuple(local_s3.options.items())
    target, other_target = Target(uri, options), Target(uri, (*options, ("skip_instance_cache", True)))
    log = TopicPartition("orders", 0)
    for number, own_target in ((1, target), (2, other_target)):
        plan = Plan(number, {}, {}, ((log, number - 1, number),), {log: number})
        Ledger(own_target).begin(plan)
        Ledger(own_target).finish(plan, [])
        last, is_done = Ledger(target).last()
        assert (last, is_done) == (plan, True)
    assert [number for number, _ in Ledger(target).completed_runs(after=0)] == [1, 2]


def test_json_becomes_columns_and_what_is_none_stays_as_it_was(export: Export, tmp_path: Path) -> None:
    odd = {3: None, 4: b"nonsense", 5: b"", 6: b'{"user": 7}', 7: b'{"user":\n"u7"}', 8: b'{"more": 1}'}

    def value(number: int) -> bytes | None:
        return odd.get(number, json.dumps({"user": f"u{number}", "amount": number / 2}).encode())

    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", partitions=2, config={"retention.ms": -1})
        append(engine, range(10), value)
    named_fields = pa.schema([pa.field("amount", pa.float64())]).append(pa.field("user", pa.string()))
    for name, fields in (("guessed", None), ("named", named_fields)):
        export_result = export(tmp_path / "data", tmp_path / name, schema="json", fields=fields, partition_by="none")
        assert export_result.malformed == 2 * 3
        file = pq.ParquetFile(min((tmp_path / name).rglob("*.parquet")))
        table = {row["offset"]: row for row in file.read().to_pylist()}
        values = {number: row["value"] and {**row["value"], "more": None} for number, row in table.items()}
        assert values[0] == {"user": "u0", "amount": 0.0, "more": None}
        assert values[7] == {"user": "u7", "amount": None, "more": None}
        assert values[8] == {"user": None, "amount": None, "more": None}
        assert (table[3]["value"], table[3]["malformed"]) == (None, None)
        assert {number: row["malformed"] for number, row in table.items() if row["malformed"] is not None} == {
            number: odd[number] for number in (4, 5, 6)
        }


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        ([b"null"], [0]),
        ([b'{"user": "u0"}', b"null"], [1]),
        ([b"", b'{"user": "u0"} {"user": "u1"}'], [0, 1]),
        ([b'{"user": "u0"', b', "more": 1} {"user": "u1"}'], [0, 1]),
        ([b'{"user": "u0"}, {"user": "u1"}', b"", b'{"user": "u2"}'], [0, 1]),
        ([b'{"user": "\xff"}', b'{"user": "u1"}'], [0]),
        ([b" ", None, b'{"user": "u2"}'], [0]),
        ([b'{"user": "u0"}], "more": [{"user": "u1"}', b'{"items": [{"user": "u1"}], "user": "u2"}'], [0]),
    ],
)
def test_a_json_value_is_one_object(values: Sequence[bytes | None], bad: Sequence[int]) -> None:
    parsed, malformed_indexes = JsonValues(pa.schema([pa.field("user", pa.string())])).parse(
        pa.array(values, pa.binary())
    )
    assert malformed_indexes == bad
    assert parsed.to_pylist() == [
        None if value is None or number in bad else {"user": json.loads(value)["user"]}
        for number, value in enumerate(values)
    ]


AVRO_1 = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}
AVRO_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}], "default": None},
    ],
}


def test_avro_of_several_writers_has_the_columns_of_the_newest(export: Export, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")

    def written(number: int) -> bytes:
        encoded, schema = io.BytesIO(), AVRO_1 if number < 5 else AVRO_2
        encoded.write(b"\0" + (1 if number < 5 else 2).to_bytes(4, "big"))
        row = {"user": f"u{number}", "at": number, "tags": ["a"] if number % 2 else None}
        fastavro.schemaless_writer(encoded, schema, row)
        return encoded.getvalue() + (b"more" if number == 9 else b"")

    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", partitions=2, config={"retention.ms": -1})
        append(engine, range(10), written)
    schemas = {1: AVRO_1, 2: AVRO_2}
    export_result = export(
        tmp_path / "data", tmp_path / "out", schema="avro", avro_schemas=schemas, partition_by="none"
    )
    assert export_result.malformed == 2
    table = pq.ParquetFile(min((tmp_path / "out").rglob("*.parquet"))).read().to_pylist()
    assert [(row["value"] or {}).get("user") for row in table] == [*(f"u{n}" for n in range(9)), None]
    assert [(row["value"] or {}).get("tags") for row in table[5:8]] == [["a"], None, ["a"]]
    assert table[9]["malformed"] == written(9)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ({"type": "string", "logicalType": "uuid"}, "1d6c4a3e-0a1b-4a6f-9d0e-2a52a1b6d001", None),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1_000, None),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1_000, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_000, datetime.fromtimestamp(1, UTC)),
        ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}, b"\x7d", Decimal("1.25")),
    ],
)
def test_an_avro_logical_type_is_a_column(kind: dict[str, object], value: object, expected: object) -> None:
    fastavro = pytest.importorskip("fastavro")

    def schema(kind: object) -> dict[str, object]:
        return {
            "type": "record",
            "name": "R",
            "fields": [{"name": "x", "type": ["null", {"type": "array", "items": kind}]}],
        }

    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, schema(kind["type"]), {"x": [value]})
    parsed, malformed_indexes = AvroValues({None: schema(kind)}).parse(pa.array([encoded.getvalue()], pa.binary()))
    assert malformed_indexes == []
    assert parsed.to_pylist() == [{"x": [value if expected is None else expected]}]


def test_an_avro_decimal_is_referenced_by_its_name() -> None:
    fastavro = pytest.importorskip("fastavro")

    kind = {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}, {"name": "y", "type": "D"}]}
    encoded, row = io.BytesIO(), {"x": Decimal("1.25"), "y": Decimal("2.25")}
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), row)
    parsed, malformed_indexes = AvroValues({None: schema}).parse(pa.array([encoded.getvalue()], pa.binary()))
    assert (parsed.to_pylist(), malformed_indexes) == ([row], [])


@pytest.mark.parametrize(
    "schema",
    [
        ["string", "int"],
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["string", "int"]}]},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A"]}]},
        "string",
        {"type": "record", "fields": []},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "unknown"}]},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "array"}}]},
        5,
    ],
)
def test_avro_that_can_be_no_columns_is_refused(export: Export, data: Path, tmp_path: Path, schema: object) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(ConfigError):
        export(data, tmp_path / "out", schema="avro", avro_schemas={None: schema})
    assert not (tmp_path / "out").exists()


def test_an_iceberg_table_has_a_snapshot_of_each_run(export: Export, data: Path, tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")

    properties = {**iceberg(tmp_path), "secret": "canary"}
    table = IcebergTable("here.shop.orders", properties)
    assert "canary" not in repr(table)
    target = tmp_path / "out"

    def found() -> list[int]:
        with catalogs.load_catalog("here", **properties) as catalog:
            iceberg_table = catalog.load_table(("shop", "orders"))
            scanned = iceberg_table.scan(row_filter="partition = 1", selected_fields=("topic", "offset")).to_arrow()
            assert set(scanned["topic"].to_pylist()) == {"orders"}
            runs = len(iceberg_table.snapshots())
        return [runs, *sorted(scanned["offset"].to_pylist())]

    export(data, target, iceberg=table)
    assert found() == [1, *range(10)]
    export(data, target, iceberg=table)
    assert found() == [1, *range(10)]
    with open_engine(data) as engine:
        append(engine, range(10, 12))
    export(data, target, iceberg=table)
    assert found() == [2, *range(12)]
    with pytest.raises(ConfigError, match="contains the export to"):
        export(data, tmp_path / "other", iceberg=table)


def test_an_iceberg_table_has_null_for_a_timestamp_after_the_year_9999(
    export: Export, data: Path, tmp_path: Path
) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")

    properties = iceberg(tmp_path)
    with open_engine(data) as engine:
        engine.log("orders", 0).append([Record(timestamp_ms=1_790_000_000_000_000, value=b"microseconds")])
    export(data, tmp_path / "out", iceberg=IcebergTable("here.shop.orders", properties))
    with catalogs.load_catalog("here", **properties) as catalog:
        scanned = catalog.load_table(("shop", "orders")).scan(selected_fields=("offset", "timestamp")).to_arrow()
    assert [row["offset"] for row in scanned.to_pylist() if row["timestamp"] is None] == [10]


def test_a_run_is_not_added_again_after_its_snapshot_has_expired(export: Export, data: Path, tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")

    properties = iceberg(tmp_path)
    target = tmp_path / "out"
    export(data, target, iceberg=IcebergTable("here.shop.orders", properties))
    with catalogs.load_catalog("here", **properties) as catalog:
        iceberg_table = catalog.load_table(("shop", "orders"))
        iceberg_table.overwrite(
            iceberg_table.scan().to_arrow()
        )  # maintenance: rewritten files, and no earlier snapshots
        current = iceberg_table.current_snapshot().snapshot_id
        expired_ids = [
            snapshot.snapshot_id for snapshot in iceberg_table.snapshots() if snapshot.snapshot_id != current
        ]
        iceberg_table.maintenance.expire_snapshots().by_ids(expired_ids).commit()
    with open_engine(data) as engine:
        append(engine, range(10, 12))
    export(data, target, iceberg=IcebergTable("here.shop.orders", properties))
    with catalogs.load_catalog("here", **properties) as catalog:
        scanned = catalog.load_table(("shop", "orders")).scan(selected_fields=("partition", "offset")).to_arrow()
    rows_found = sorted((row["partition"], row["offset"]) for row in scanned.to_pylist())
    assert rows_found == [row[:2] for row in expected(12)]


def test_an_export_that_does_not_fit_the_earlier_runs_is_refused(export: Export, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(data, target)
    with pytest.raises(ConfigError, match="partition_by='date', not 'hour'"):
        export(data, target, partition_by="hour")
    with pytest.raises(ConfigError, match="not one of raw, json, avro"):
        export(data, target, schema="xml")
    with open_engine(data) as engine:
        engine.delete_topic("orders")
        engine.create_topic("orders", partitions=2)
    with pytest.raises(ConfigError, match="deleted and created again"):
        export(data, target)


def test_records_that_went_before_are_an_error_or_counted(export: Export, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(data, target)
    with open_engine(data) as engine:
        append(engine, range(10, 20))
        for partition in (0, 1):
            engine.log("orders", partition).delete_records(before=15)
    with pytest.raises(OffsetOutOfRangeError):
        export(data, target)
    export_result = export(data, target, fail_on_loss=False)
    assert (export_result.rows, export_result.lost) == (10, 10)


def test_an_incomplete_run_of_a_topic_that_was_created_again_is_refused(
    export: Export, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Target, "put", die)
        with pytest.raises(KilledError):
            export(data, tmp_path / "out")
    with open_engine(data) as engine:
        engine.delete_topic("orders")
        engine.create_topic("orders", partitions=2)
        append(engine, range(10), b"new%d".__mod__)
        engine.create_topic("others")
    with pytest.raises(ConfigError, match="created again"):
        export(data, tmp_path / "out", topics=["others"])
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_plan_that_is_damaged_or_newer_is_refused(export: Export, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(data, target)
    [plan] = target.rglob("*.plan.json")
    body = json.loads(plan.read_text())
    for damaged_plan in ("{", json.dumps({**body, "version": 2}), json.dumps({**body, "ranges": [[1]]})):
        plan.write_text(damaged_plan)
        with pytest.raises(CorruptCheckpointError, match=r"plan\.json"):
            export(data, target)


def test_aborted_records_are_not_exported(export: Export, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id="t") as producer:
            for number in range(4):
                producer.begin_transaction()
                producer.send("orders", value=b"v%d" % number)
                producer.flush()
                producer.abort_transaction() if number % 2 else producer.commit_transaction()
    export(tmp_path / "data", tmp_path / "out")
    assert [row[2] for row in rows(tmp_path / "out")] == [b"v0", b"v2"]


@pytest.mark.parametrize("kind", ["directory", "tier"])
def test_exported_rows_become_records_again_each_once(export: Export, data: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "new").mkdir()
    target = str(tmp_path / "new") if kind == "directory" else (tmp_path / "new").as_uri()

    def read(place: object, topic: str) -> list[list[tuple[object, ...]]]:
        with open_reader(str(place)) as reader:
            logs = [reader.log(topic, partition) for partition in (0, 1)]
            return [[(row.key, row.value, row.timestamp_ms, row.headers) for row in log.records()] for log in logs]

    for size in (10, 15):
        export(data, tmp_path / "out")
        import_result = imports.import_topics(None, str(tmp_path / "out"), target, names={"orders": "again"})
        assert import_result.rows == (20 if size == 10 else 10)
        assert imports.import_topics(None, str(tmp_path / "out"), target, names={"orders": "again"}).rows == 0
        assert read(target, "again") == read(data, "orders")
        with open_engine(data) as engine:
            append(engine, range(10, 15))
    with pytest.raises(ConfigError, match="there is no topic strangers"):
        imports.import_topics(None, str(tmp_path / "out"), target, topics=["strangers"])
    with pytest.raises(ConfigError, match="contains no export"):
        imports.import_topics(None, str(tmp_path / "data"), target)


def test_a_range_of_more_than_two_gib_is_imported_in_order() -> None:
    """pyarrow joins at most 2 GiB of values, and compressed segments may contain more."""
    value = pa.array([bytes(64 << 20)], pa.binary())  # all rows share it

    def table(offsets: Sequence[int]) -> Any:
        count = len(offsets)
        return pa.table(
            {
                "key": pa.nulls(count, pa.binary()),
                "value": pa.chunked_array([value] * count, pa.binary()),
                "headers": pa.nulls(count),
                "timestamp": pa.array(offsets, pa.timestamp("us", tz="UTC")),
                "offset": pa.array(offsets, pa.int64()),
            }
        )

    times = list[int]()
    for batch in merge_in_order([table(range(0, 40, 2)), table(range(1, 40, 2))]):
        assert batch.column("value").nbytes <= 2 * 64 << 20
        times += batch.column("timestamp").cast("int64").to_pylist()
    assert times == list(range(40))
    assert list(merge_in_order([table(())])) == []


def test_a_range_with_few_large_values_is_imported_in_small_batches() -> None:
    large, count = 8, 20_000
    table = pa.table(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.chunked_array([[b""] * (count - large), *[[bytes(4 << 20)]] * large], pa.binary()),
            "headers": pa.nulls(count),
            "timestamp": pa.array(range(count), pa.timestamp("us", tz="UTC")),
            "offset": pa.array(range(count), pa.int64()),
        }
    )
    batches = list(merge_in_order([table]))
    assert sum(batch.num_rows for batch in batches) == count
    assert max(batch.nbytes for batch in batches) <= 16 << 20


def test_an_import_knows_an_export_by_its_place_and_not_by_its_spelling(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "new")
    (tmp_path / "new").mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with open_engine("data") as engine:
            engine.create_topic("orders")
            engine.log("orders", 0).append([Record(value=name.encode())])
        export(Path("data"), "out")
        assert imports.import_topics(None, "out", target).rows == 1
        for same in ("out/", "./out", str(tmp_path / name / "out"), (tmp_path / name / "out").as_uri()):
            assert imports.import_topics(None, same, target).rows == 0
    with open_reader(target) as reader:
        assert [row.value for row in reader.log("orders", 0).records()] == [b"one", b"two"]


@pytest.mark.parametrize("calls", [[["a", "b"]], [["a"], ["b"]]], ids=["one call", "a call for each topic"])
def test_topics_that_are_renamed_to_one_name_are_imported_each_once(
    export: Export, tmp_path: Path, calls: Sequence[Sequence[str]]
) -> None:
    data, target = tmp_path / "data", str(tmp_path / "new")
    (tmp_path / "new").mkdir()
    with open_engine(data) as engine:
        for topic in ("a", "b"):
            engine.create_topic(topic)
            engine.log(topic, 0).append([Record(value=topic.encode())])
    export(data, tmp_path / "out")
    for _ in range(2):
        for topics in calls:
            imports.import_topics(None, str(tmp_path / "out"), target, topics=topics, names={"a": "x", "b": "x"})
    with open_reader(target) as reader:
        assert [row.value for row in reader.log("x", 0).records()] == [b"a", b"b"]


def test_an_imported_topic_has_the_partitions_without_records_too(export: Export, tmp_path: Path) -> None:
    data, target = tmp_path / "data", str(tmp_path / "new")
    (tmp_path / "new").mkdir()
    for partition in (0, 2):
        with open_engine(data) as engine:
            if not partition:
                engine.create_topic("orders", partitions=3)
            engine.log("orders", partition).append([Record(value=b"%d" % partition)])
        report = export(data, tmp_path / "out")
        assert imports.import_topics(None, str(tmp_path / "out"), target).rows == 1
    assert {name.partition: end for name, end in report.ends.items()} == {0: 1, 1: 0, 2: 1}
    with open_reader(target) as reader:
        assert [[row.value for row in reader.log("orders", number).records()] for number in range(3)] == [
            [b"0"],
            [],
            [b"2"],
        ]


def test_tasks_that_put_files_into_one_folder_at_a_time_keep_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks put files with the same local name into one folder at the same time."""
    for task in ("one", "two"):
        (tmp_path / task).mkdir()
        (tmp_path / task / "0.parquet").write_text(task)
    target, put_file = Target(str(tmp_path / "out")), LocalFileSystem.put_file

    def beside(fs: LocalFileSystem, *arguments: Any, **options: Any) -> None:
        put_file(fs, *arguments, **options)
        monkeypatch.setattr(LocalFileSystem, "put_file", put_file)
        target.put(str(tmp_path / "two" / "0.parquet"), "b.parquet")

    monkeypatch.setattr(LocalFileSystem, "put_file", beside)
    target.put(str(tmp_path / "one" / "0.parquet"), "a.parquet")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "a.parquet": "one",
        "b.parquet": "two",
    }


def test_a_file_that_cannot_be_put_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "no space left on device")

    (tmp_path / "0.parquet").write_text("rows")
    monkeypatch.setattr(LocalFileSystem, "mv", full)
    with pytest.raises(OSError, match="no space"):
        Target(str(tmp_path / "out")).put(str(tmp_path / "0.parquet"), "a.parquet")
    assert list((tmp_path / "out").iterdir()) == []


def test_credentials_of_the_destination_are_not_shown() -> None:
    assert "canary" not in repr(Target("s3://bucket/out", (("secret", "canary"),)))


def test_progress_counts_the_bytes_of_tasks(export: Export, tmp_path: Path) -> None:
    progress_calls = list[tuple[int, int]]()
    count = ByteCount(lambda done_bytes, total_bytes: progress_calls.append((done_bytes, total_bytes)))
    for sizes in ([10, 20, 5], [7]):
        with count.count_tasks(sizes) as steps:
            assert steps is not None
            steps(1, len(sizes))
    assert progress_calls == [(0, 35), (10, 35), (35, 35), (35, 42), (42, 42), (42, 42)]
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", config={"retention.ms": -1})
        engine.log("orders", 0).append([Record(timestamp_ms=1, value=bytes(1_000)) for _ in range(50)])
    progress_calls.clear()
    export(
        tmp_path / "data",
        tmp_path / "out",
        progress=lambda done_bytes, total_bytes: progress_calls.append((done_bytes, total_bytes)),
    )
    log_bytes = next((tmp_path / "data" / "orders-0").glob("*.log")).stat().st_size
    assert progress_calls == [(0, log_bytes), (log_bytes, log_bytes)]
    progress_calls.clear()
    export(
        tmp_path / "data",
        tmp_path / "out",
        progress=lambda done_bytes, total_bytes: progress_calls.append((done_bytes, total_bytes)),
    )
    assert not progress_calls, "nothing is new"


def test_many_dates_need_few_open_files(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_OPEN_FILES", 3)
    monkeypatch.setattr(parquet_files, "_HELD_BYTES", 2_000)
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", config={"retention.ms": -1})
        for turn in range(3):
            days = [Record(timestamp_ms=day * 24 * HOUR_MS, value=b"v%d" % (turn * 8 + day)) for day in range(8)]
            engine.log("orders", 0).append(days)
    export_result = export(tmp_path / "data", tmp_path / "out")
    assert rows(tmp_path / "out") == [(0, number, b"v%d" % number) for number in range(24)]
    assert len({Path(name).parent for name in export_result.files}) == 8


def test_a_destination_that_cannot_be_written_is_reported(export: Export, data: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises((StorageError, OSError)):
        export(data, tmp_path / "out")
