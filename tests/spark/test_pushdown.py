"""Predicates that the catalog pushes down: the offsets that are read, the bytes, the rows, and counts."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, open_engine
from stratalog.errors import ConfigError

pytestmark = pytest.mark.usefixtures("has_spark")

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
    """Record n has the timestamp 1000 + n; some are out of order, and some have none."""
    late = {50: 60, 60: 50}.get(number, number)
    return Record(timestamp_ms=-1 if number % 40 == 39 else 1000 + late, key=b"k%d" % number, value=os.urandom(300))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of two partitions with 200 records each, in many segments, in a tier."""
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
    """Return the rows of the source, by the calls that Spark makes and without its processes."""
    types: Any = pytest.importorskip("pyspark.sql.types")
    from stratalog_spark.columns import TYPES  # noqa: PLC0415 - the same
    from stratalog_spark.source import StratalogSource  # noqa: PLC0415 - needs pyspark
    from stratalog_spark.tables import SPARK_TYPES  # noqa: PLC0415 - the same

    source = StratalogSource({"path": path, "subscribe": "orders,payments", **options})
    schema = types.StructType()
    for name in columns.split():
        schema.add(name, SPARK_TYPES[TYPES[name]] if name in TYPES else types.LongType())
    reader = source.reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [found for batch in batches for found in batch.to_pylist()]


def is_true(tree: Any, found: dict[str, Any]) -> bool:
    """The same, by Python."""
    if tree[0] in {"and", "or"}:
        return (all if tree[0] == "and" else any)(is_true(part, found) for part in tree[1:])
    value = found[tree[1]]
    if value is None:
        return False
    if tree[1] == "timestamp":
        value = round(value.timestamp() * 1000) * 1000
    if tree[0] == "notnull":
        return True
    return any(OPERATORS.get(tree[0], OPERATORS["="])(value, wanted) for wanted in tree[2:])


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("place", ["logs", "tier"])
def test_a_predicate_selects_the_rows_that_it_is_true_for(data: Path, tree: Any, place: str) -> None:
    path = str(data / place) if place == "logs" else (data / place).as_uri()
    everything = rows(path)
    assert len(everything) == 800
    expected = [found for found in everything if is_true(tree, found)]
    assert rows(path, pushedFilter=json.dumps(tree)) == expected
    columns = "count0"
    counts = rows(path, columns, pushedFilter=json.dumps(tree), pushedCount="true")
    assert sum(found["count0"] for found in counts) == len(expected)


def test_counts_are_grouped_by_topic_and_partition(data: Path) -> None:
    found = rows(str(data / "logs"), "topic partition count2", pushedCount="true")
    assert sorted(tuple(each.values()) for each in found) == [
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
    found = rows(str(data / "logs"), "key", pushedFilter=json.dumps(tree))
    everything = rows(str(data / "logs"), "key topic partition offset timestamp")
    assert [each["key"] for each in found] == [each["key"] for each in everything if is_true(tree, each)]


def read_bytes() -> int:
    """Bytes that this process has read from files."""
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
    some = rows(tier, "value", pushedFilter=json.dumps(tree))
    after = read_bytes()
    assert between - before >= sum(len(each["value"]) for each in everything) == 8_000_000
    assert some
    assert after - between < largest_share * (between - before)


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
    ],
)
def test_text_that_is_no_predicate_is_refused(text: str) -> None:
    from stratalog_spark.pushdown import parsed  # noqa: PLC0415 - needs pyspark

    with pytest.raises(ConfigError, match="no predicate"):
        parsed("pushedFilter", text)


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
    damaged = [found["offset"] for found in rows(str(tmp_path), columns, **options) if found["corruptReason"]]
    assert damaged == [1]
    found = rows(str(tmp_path), columns, **options, pushedFilter='["<=", "offset", 1]')
    assert [each["offset"] for each in found] == [0, 1]
    assert rows(str(tmp_path), columns, **options, pushedFilter='["notnull", "timestamp"]')[0]["offset"] == 0
    counted = rows(str(tmp_path), "count0", **options, pushedCount="true")
    assert sum(each["count0"] for each in counted) == len(rows(str(tmp_path), columns, **options)) == 2
