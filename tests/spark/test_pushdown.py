"""Predicates that the catalog pushes down: offsets and bytes that are read, resulting rows, and counts."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from entry_parts import seal
from stratalog import Record, open_engine
from stratalog.errors import ConfigError
from stratalog.spi import BatchHeader
from stratalog_spark.columns.kafka_columns import TYPES
from stratalog_spark.columns.pushdown import parse_predicate
from stratalog_spark.options.table_options import SPARK_TYPES
from stratalog_spark.source import StratalogSource

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TREES: list[Any] = [
    [">=", "offset", 190],
    ["<", "offset", 3],
    ["<=", "offset", 3],
    [">", "offset", 250],
    ["=", "offset", 100],
    ["in", "offset", 7, 8, 150],
    ["=", "partition", 1],
    [">", "partition", 0],
    ["in", "partition", 0, 5],
    ["=", "topic", "payments"],
    ["<", "topic", "p"],
    [">", "timestamp", 1_190_000],
    [">=", "timestamp", 1_190_000],
    [">=", "timestamp", 1_190_001],
    ["<", "timestamp", 1_003_000],
    ["=", "timestamp", 1_050_000],
    ["=", "timestamp", 1_050_001],
    ["in", "timestamp", 1_050_000, 1_060_000],
    ["notnull", "timestamp"],
    ["and", ["=", "partition", 0], ["<", "offset", 10]],
    ["and", ["<", "offset", 10], [">", "offset", 20]],
    ["or", ["<", "offset", 5], [">=", "timestamp", 1_195_000]],
    ["and", ["=", "topic", "orders"], ["or", ["<", "offset", 2], ["=", "offset", 77]], ["notnull", "timestamp"]],
]


def row(number: int) -> Record:
    """Return record n with the timestamp 1000 + n. Two records are out of order, and some have no timestamp."""
    late = {50: 60, 60: 50}.get(number, number)
    return Record(timestamp_ms=-1 if number % 40 == 39 else 1000 + late, key=b"k%d" % number, value=os.urandom(300))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a directory and its tier: two topics of two partitions with 200 records each.

    Each log has many segments.
    """
    folder = tmp_path_factory.mktemp("data")
    (folder / "tier").mkdir()
    with open_engine(folder / "logs", tier=(folder / "tier").as_uri()) as engine:
        for topic in ("orders", "payments"):
            engine.create_topic(topic, partitions=2, config={"segment.bytes": 6_000, "index.interval.bytes": 500})
            for partition in (0, 1):
                log = engine.log(topic, partition)
                for start in range(0, 200, 5):
                    log.append([row(number) for number in range(start, start + 5)])
                log.roll()
        engine.offload()
    return folder


def rows(path: str, columns: str = "topic partition offset timestamp", **options: str) -> Any:
    """Return the rows of the source, by the calls that Spark makes, without Spark's processes."""

    source = StratalogSource({"path": path, "subscribe": "orders,payments", **options})
    schema = StructType()
    for name in columns.split():
        schema.add(name, SPARK_TYPES[TYPES[name]] if name in TYPES else LongType())
    reader = source.reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def is_true(tree: Any, row: dict[str, Any]) -> bool:
    """Return True if the predicate is true for a row: the same evaluation in Python."""
    if tree[0] in {"and", "or"}:
        return (all if tree[0] == "and" else any)(is_true(part, row) for part in tree[1:])
    value = row[tree[1]]
    if value is None:
        return False
    if tree[1] == "timestamp":
        value = round(value.timestamp() * 1000) * 1000
    if tree[0] == "notnull":
        return True
    return any(OPERATORS.get(tree[0], OPERATORS["="])(value, operand) for operand in tree[2:])


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("place", ["logs", "tier"])
def test_a_predicate_selects_the_rows_that_it_is_true_for(data: Path, tree: Any, place: str) -> None:
    path = str(data / place) if place == "logs" else (data / place).as_uri()
    everything = rows(path)
    assert len(everything) == 800
    expected = [row for row in everything if is_true(tree, row)]
    assert rows(path, pushedFilter=json.dumps(tree)) == expected
    columns = "count0"
    counts = rows(path, columns, pushedFilter=json.dumps(tree), pushedCount="true")
    assert sum(row["count0"] for row in counts) == len(expected)


@pytest.mark.parametrize("place", ["logs", "tier"])
def test_records_from_before_1970_satisfy_upper_bounds_of_their_time(tmp_path: Path, place: str) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as engine:
        engine.create_topic("orders")
        engine.create_topic("payments")
        log = engine.log("orders")
        data = bytearray(log.components.formats.of(2, "", 0).encode([Record(value=b"v")], BatchHeader(), None, None))
        data[27:43] = 2 * (-5000).to_bytes(8, "big", signed=True)  # base timestamp and largest timestamp
        seal(data)
        log.append_as_leader(data)
        log.append([Record(timestamp_ms=1000, value=b"w")])
        log.roll()
        engine.offload()
    path = str(tmp_path / place) if place == "logs" else (tmp_path / place).as_uri()
    for tree in (["<", "timestamp", -4_999_999], ["<=", "timestamp", -5_000_000], ["=", "timestamp", -5_000_000]):
        assert [row["offset"] for row in rows(path, pushedFilter=json.dumps(tree))] == [0]


def test_counts_are_grouped_by_topic_and_partition(data: Path) -> None:
    counts = rows(str(data / "logs"), "topic partition count2", pushedCount="true")
    assert sorted(tuple(row.values()) for row in counts) == [
        ("orders", 0, 200),
        ("orders", 1, 200),
        ("payments", 0, 200),
        ("payments", 1, 200),
    ]
    nothing = {"pushedFilter": '["<", "offset", 0]', "pushedCount": "true"}
    assert rows(str(data / "logs"), "count0", **nothing) == [{"count0": 0}]
    assert rows(str(data / "logs"), "partition count1", **nothing) == []


@pytest.mark.parametrize("tree", [["=", "partition", 0], ["<", "offset", 0], [">=", "timestamp", 1_190_000]], ids=str)
def test_a_predicate_may_compare_columns_that_are_not_returned(data: Path, tree: Any) -> None:
    selected_rows = rows(str(data / "logs"), "key", pushedFilter=json.dumps(tree))
    everything = rows(str(data / "logs"), "key topic partition offset timestamp")
    assert [row["key"] for row in selected_rows] == [row["key"] for row in everything if is_true(tree, row)]


def read_bytes() -> int:
    """Return the number of bytes that this process has read from files."""
    status = Path("/proc/self/io")
    if not status.exists():
        pytest.skip("the system does not count the bytes that a process reads")
    return int(status.read_text(encoding="ascii").split()[1])


@pytest.mark.parametrize(
    ("tree", "largest_share"),
    [
        (["and", ["=", "partition", 0], ["=", "topic", "orders"], ["<", "offset", 10]], 0.1),
        (["and", ["=", "partition", 0], ["=", "topic", "orders"]], 0.35),
        ([">=", "timestamp", 1_199_000], 0.3),
    ],
    ids=str,
)
def test_only_the_needed_bytes_are_read(tmp_path: Path, tree: Any, largest_share: float) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as engine:
        for topic in ("orders", "payments"):
            engine.create_topic(topic, partitions=2, config={"segment.bytes": 500_000})
            for partition in (0, 1):
                log = engine.log(topic, partition)
                for number in range(200):
                    log.append([Record(timestamp_ms=1000 + number, value=os.urandom(10_000))])
                log.roll()
        engine.offload()
    tier = (tmp_path / "tier").as_uri()
    before = read_bytes()
    everything = rows(tier, "value")
    between = read_bytes()
    selected_rows = rows(tier, "value", pushedFilter=json.dumps(tree))
    after = read_bytes()
    assert between - before >= sum(len(row["value"]) for row in everything) == 8_000_000
    assert selected_rows
    assert after - between < largest_share * (between - before)


def stored(folder: Path) -> str:
    """Make a tier with 40 segments of 10 records, and return its URI.

    In each second segment, the timestamps descend.
    """
    (folder / "tier").mkdir()
    with open_engine(folder / "logs", tier=(folder / "tier").as_uri()) as engine:
        engine.create_topic("orders", config={"segment.bytes": 1 << 20})
        for number in range(40):
            order = range(10) if number % 2 else range(9, -1, -1)
            engine.log("orders", 0).append(
                [Record(timestamp_ms=10 * number + index, value=bytes(9_000)) for index in order]
            )
            engine.log("orders", 0).roll()
        engine.offload()
    return (folder / "tier").as_uri()


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the tier of ``stored``."""
    folder = tmp_path_factory.mktemp("timed")
    stored(folder)
    return folder


@pytest.mark.parametrize(
    ("tree", "largest_share"),
    [
        (None, 0.0),
        (["=", "partition", 0], 0.0),
        (["=", "topic", "orders"], 0.0),
        (["and", ["notnull", "timestamp"], [">=", "timestamp", 123_000]], 0.06),
        (["and", [">=", "timestamp", 123_000], ["<", "timestamp", 371_000]], 0.09),
        (["or", ["<", "timestamp", 37_000], ["=", "timestamp", 250_000]], 0.09),
        (["and", [">=", "offset", 15], ["<", "offset", 391]], 0.12),
    ],
    ids=str,
)
def test_a_count_reads_only_segments_of_which_it_needs_a_part(timed: Path, tree: Any, largest_share: float) -> None:
    tier = (timed / "tier").as_uri()
    pushed = {} if tree is None else {"pushedFilter": json.dumps(tree)}
    subscribe = {"subscribe": "orders"}
    everything = rows(tier, **subscribe)
    before = read_bytes()
    counts = rows(tier, "topic partition count0", pushedCount="true", **pushed, **subscribe)
    after = read_bytes()
    assert (
        sum(row["count0"] for row in counts)
        == len([row for row in everything if tree is None or is_true(tree, row)])
        > 0
    )
    manifests = sum(path.stat().st_size for path in (timed / "tier").rglob("manifest/*"))
    assert after - before - 3 * manifests <= largest_share * 40 * 90_000


@pytest.mark.parametrize(
    ("tree", "segments"),
    [
        (["<", "timestamp", 50_000], 5),
        (["<=", "timestamp", 50_000], 6),
        (["=", "timestamp", 50_000], 1),
        (["in", "timestamp", 50_000, 120_000], 2),
        (["and", [">=", "timestamp", 95_000], ["<", "timestamp", 120_001]], 4),
        (["<", "timestamp", 0], 0),
    ],
    ids=str,
)
def test_a_time_range_reads_only_segments_that_overlap_it(timed: Path, tree: Any, segments: int) -> None:
    tier = (timed / "tier").as_uri()
    before = read_bytes()
    selected_rows = rows(tier, "timestamp value", subscribe="orders", pushedFilter=json.dumps(tree))
    after = read_bytes()
    manifests = sum(path.stat().st_size for path in (timed / "tier").rglob("manifest/*"))
    assert after - before - 3 * manifests <= 90_000 * (segments + 1)
    assert len(selected_rows) == len([row for row in rows(tier, subscribe="orders") if is_true(tree, row)])


def test_segments_of_earlier_releases_are_counted_by_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.tier.upload.segment_source.add_record_facts", lambda info, *_: info)
    tier = stored(tmp_path)
    before = read_bytes()
    counts = rows(tier, "count0", subscribe="orders", pushedCount="true")
    assert sum(row["count0"] for row in counts) == 400
    assert read_bytes() - before > 400 * 9_000
    early_rows = rows(tier, "timestamp", subscribe="orders", pushedFilter='["<", "timestamp", 50000]')
    assert len(early_rows) == 50


def test_a_committed_count_leaves_aborted_records_out_and_reads_only_their_segments(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id="x") as producer:
            for number in range(20):
                producer.begin_transaction()
                for _ in range(5):
                    producer.send("orders", value=os.urandom(20_000), partition=0)
                producer.flush()
                producer.abort_transaction() if number == 11 else producer.commit_transaction()
                engine.log("orders", 0).roll()
        engine.offload()
    tier = (tmp_path / "tier").as_uri()
    before = read_bytes()
    count_options = {"subscribe": "orders", "pushedCount": "true"}
    assert sum(row["count0"] for row in rows(tier, "count0", **count_options)) == 100
    between = read_bytes()
    committed = rows(tier, "count0", **count_options, isolation="read_committed")
    assert sum(row["count0"] for row in committed) == 95
    assert between - before < 400_000  # of 2,000,000
    assert read_bytes() - between < 600_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '["like", "value", "x"]',
        '["<", "value", 1]',
        '["<", "offset"]',
        '["<", "offset", "x"]',
        '["and", 5]',
        '["and"]',
        '["or"]',
        '["in", "offset"]',
        '["notnull", "offset", 1]',
    ],
)
def test_text_that_is_no_predicate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a predicate"):
        parse_predicate("pushedFilter", text)


def test_damaged_entries_are_rows_that_a_predicate_selects(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        for number in range(3):
            engine.log("orders", 0).append([Record(value=b"v%d" % number, timestamp_ms=number)])
    [file] = (tmp_path / "orders-0").glob("*.log")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    columns = "partition offset corruptReason"
    options = {"subscribe": "orders", "corruptBatches": "columns"}
    damaged = [
        selected_rows["offset"]
        for selected_rows in rows(str(tmp_path), columns, **options)
        if selected_rows["corruptReason"]
    ]
    assert damaged == [1]
    selected_rows = rows(str(tmp_path), columns, **options, pushedFilter='["<=", "offset", 1]')
    assert [row["offset"] for row in selected_rows] == [0, 1]
    assert rows(str(tmp_path), columns, **options, pushedFilter='["notnull", "timestamp"]')[0]["offset"] == 0
    counts = rows(str(tmp_path), "count0", **options, pushedCount="true")
    assert sum(row["count0"] for row in counts) == len(rows(str(tmp_path), columns, **options)) == 2
