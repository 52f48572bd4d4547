"""The catalog in the JVM, and the session extension: SQL on topics, and pushdown without options."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from stratalog import Record, open_engine

pytestmark = [pytest.mark.usefixtures("has_catalog"), pytest.mark.long]

RECORDS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a directory and its tier: two topics of two partitions.

    Record n of a partition has a timestamp of n seconds.
    """
    folder = tmp_path_factory.mktemp("catalog")
    (folder / "tier").mkdir()
    with open_engine(folder / "logs", tier=(folder / "tier").as_uri()) as engine:
        for topic in ("orders", "payments"):
            engine.create_topic(topic, partitions=2, config={"segment.bytes": 3_000, "index.interval.bytes": 500})
            for partition in (0, 1):
                log = engine.log(topic, partition)
                for start in range(0, RECORDS, 10):
                    rows = range(start, start + 10)
                    log.append([Record(timestamp_ms=row * 1000, key=b"k%d" % row, value=bytes(100)) for row in rows])
                log.roll()
        engine.offload()
    return folder


@pytest.fixture
def catalog(spark: Any, data: Path) -> Iterator[Any]:
    """Yield the session with the catalogs ``logs`` (the directory) and ``tiered`` (the tier)."""
    places = {"logs": str(data / "logs"), "tiered": (data / "tier").as_uri()}
    for name, place in places.items():
        spark.conf.set(f"spark.sql.catalog.{name}", "stratalog.spark.StratalogCatalog")
        spark.conf.set(f"spark.sql.catalog.{name}.path", place)
    yield spark
    spark.sql("USE spark_catalog.default")


def plan(frame: Any) -> str:
    """Return the physical plan as text."""
    text: str = frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - PySpark only prints it
    return text


def values(spark: Any, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return [tuple(row) for row in spark.sql(statement).collect()]


@pytest.mark.parametrize("name", ["logs", "tiered"])
def test_topics_are_tables(catalog: Any, name: str) -> None:
    catalog.sql(f"USE {name}")
    assert [row["tableName"] for row in catalog.sql("SHOW TABLES").collect()] == ["orders", "payments"]
    described = {row["col_name"]: row["data_type"] for row in catalog.sql("DESCRIBE EXTENDED orders").collect()}
    assert described["offset"] == "bigint"
    assert described["headers"] == "array<struct<key:string,value:binary>>"
    assert "partitions=2" in described["Table Properties"]
    assert values(catalog, "SELECT count(*) FROM orders") == [(2 * RECORDS,)]
    later = "SELECT count(*) FROM orders WHERE timestamp > timestamp_seconds(190)"
    assert values(catalog, later) == [(2 * (RECORDS - 191),)]
    assert re.search(r"segments [024] of", plan(catalog.sql(later)))
    assert ("counted in manifests" in plan(catalog.sql("SELECT count(*) FROM orders"))) == (name == "tiered")


def test_a_plan_shows_place_columns_predicates_ranges_and_segments(catalog: Any, data: Path) -> None:
    frame = catalog.sql("SELECT value FROM logs.orders WHERE partition = 1 AND offset < 3 AND key IS NOT NULL")
    text = plan(frame)
    assert f"subscribe orders of {data / 'logs'}; columns key, value; " in text.replace("value, key", "key, value")
    assert "pushed (partition = 1 and offset < 3); ranges orders-1 [0, 3); segments 1 of" in text
    segments_match = re.search(r"segments 1 of (\d+), bytes (\d+) of (\d+)", text)
    assert segments_match is not None
    assert int(segments_match[1]) > 10
    assert 0 < int(segments_match[2]) < int(segments_match[3]) / 10
    assert "isnotnull(offset" not in text
    assert frame.count() == 3
    time_plan = plan(catalog.sql("SELECT offset FROM logs.orders WHERE timestamp < timestamp_seconds(3)"))
    assert "option endingTimestamp ends the read" in time_plan


def test_counts_are_made_where_rows_are_read(catalog: Any) -> None:
    frame = catalog.sql(
        "SELECT partition, count(*), count(offset) FROM logs.orders WHERE offset >= 150 GROUP BY partition"
    )
    assert "count; ranges" in plan(frame)
    assert sorted(tuple(row) for row in frame.collect()) == [(0, 50, 50), (1, 50, 50)]
    keys = catalog.sql("SELECT count(key), count(DISTINCT partition) FROM logs.orders")
    assert "count; ranges" not in plan(keys)
    assert tuple(keys.first()) == (400, 2)


def test_places_are_namespaces(catalog: Any, data: Path) -> None:
    place = data / "logs"
    assert values(catalog, f"SELECT count(*) FROM tiered.`{place}`.orders WHERE offset = 7") == [(2,)]
    assert values(catalog, f"SELECT count(*) FROM stratalog.`{place}/orders` WHERE offset = 7") == [(2,)]
    assert len(values(catalog, f"SHOW TABLES IN stratalog.`{place}`")) == 2
    assert values(catalog, f"SELECT min(offset) FROM stratalog('{place}', 'orders', 'startingTimestamp', '90000')") == [
        (90,)
    ]


def test_views_and_joins_keep_what_is_pushed_down(catalog: Any) -> None:
    catalog.sql("CREATE OR REPLACE TEMPORARY VIEW newest AS SELECT * FROM logs.orders WHERE offset >= 198")
    assert values(catalog, "SELECT count(*) FROM newest WHERE partition = 0") == [(2,)]
    join_query = (
        "SELECT count(*) FROM newest a JOIN logs.payments b ON a.partition = b.partition AND a.offset = b.offset"
    )
    assert values(catalog, join_query) == [(4,)]


def test_rows_are_inserted_and_topics_are_created(catalog: Any, tmp_path: Path) -> None:
    with open_engine(tmp_path / "logs"):
        pass
    namespace = f"logs.`{tmp_path / 'logs'}`"
    catalog.sql(
        f"CREATE TABLE {namespace}.copies (key binary, value binary) TBLPROPERTIES (partitions = 3, `retention.ms` = '-1')"
    )
    catalog.sql(f"INSERT INTO {namespace}.copies (key, value) VALUES (cast('k' AS binary), cast('v' AS binary))")
    catalog.sql(f"INSERT INTO {namespace}.copies SELECT key, value FROM logs.orders WHERE partition = 0 AND offset < 9")
    assert values(catalog, f"SELECT count(*) FROM {namespace}.copies") == [(10,)]
    frame = catalog.table("logs.orders").where("offset < 2").select("key", "value", "headers")
    frame.writeTo(f"{namespace}.copies").append()
    frame.write.mode("append").saveAsTable(f"{namespace}.copies")
    catalog.sql(f"CREATE TABLE {namespace}.more AS SELECT value FROM logs.orders WHERE offset < 5")
    assert values(catalog, f"SELECT count(*) FROM {namespace}.copies") == [(18,)]
    assert values(catalog, f"SELECT count(*) FROM {namespace}.more") == [(10,)]
    with open_engine(tmp_path / "logs") as engine:
        assert (engine.topics()["copies"].config.retention_ms, len(engine.topics()["copies"].partitions)) == (-1, 3)


def test_a_table_is_streamed(catalog: Any) -> None:
    frame = catalog.readStream.option("startingOffsets", "earliest").table("logs.orders").select("offset")
    query = frame.writeStream.format("memory").queryName("of_table").trigger(availableNow=True).start()
    query.awaitTermination()
    assert catalog.table("of_table").count() == 2 * RECORDS


def test_a_data_frame_of_the_source_pushes_down(spark: Any, data: Path) -> None:
    frame = spark.read.format("stratalog").option("subscribe", "orders").load(str(data / "logs"))
    selected_rows = frame.where("partition = 0 and offset < 10")
    assert "ranges orders-0 [0, 10); segments" in plan(selected_rows)
    assert (selected_rows.count(), frame.count(), selected_rows.select("key").distinct().count()) == (
        10,
        2 * RECORDS,
        10,
    )
    assert "columns offset" in plan(frame.select("offset"))


def test_a_table_of_the_session_catalog_pushes_down(spark: Any, data: Path) -> None:
    spark.sql(f"CREATE TABLE of_session USING stratalog OPTIONS (subscribe 'orders') LOCATION '{data / 'logs'}'")
    try:
        frame = spark.sql("SELECT count(*) FROM of_session WHERE offset < 10")
        assert "pushed offset < 10" in plan(frame)
        assert frame.first()[0] == 20
    finally:
        spark.sql("DROP TABLE of_session")


def test_an_earlier_state_of_a_tier_is_a_version(catalog: Any) -> None:
    assert values(catalog, "SELECT count(*) FROM tiered.orders TIMESTAMP AS OF '2099-01-01'") == [(2 * RECORDS,)]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("SELECT * FROM logs.orders WITH (startingOfsets = 'earliest')", "did you mean 'startingOffsets'"),
        ("SELECT * FROM logs.order", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM stratalog.orders", "spark.sql.catalog.stratalog.path"),
        ("SELECT * FROM logs.`/nowhere/at/all`.orders", "/nowhere/at/all"),
        ("DROP TABLE logs.orders", "stratalog topics"),
        ("ALTER TABLE logs.orders ADD COLUMN x int", "stratalog topics"),
        ("CREATE TABLE logs.more (amount double)", "a topic has no column amount double"),
        ("INSERT INTO logs.orders (amount) VALUES (1)", "amount"),
        ("INSERT INTO logs.orders (value, offset) VALUES (cast('v' AS binary), 3)", "which the log assigns"),
        ("DELETE FROM logs.orders", "DELETE|delete"),
        ("SELECT * FROM stratalog('/somewhere')", "takes constants"),
    ],
)
def test_a_mistake_ends_with_its_correction(catalog: Any, statement: str, text: str) -> None:
    with pytest.raises(PySparkException, match=text):
        catalog.sql(statement).collect()


def test_a_table_whose_tier_was_deleted_fails_before_its_tasks(catalog: Any, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "tier", tmp_path / "tier")
    frame = catalog.sql(f"SELECT count(*) FROM logs.`{(tmp_path / 'tier').as_uri()}`.orders")
    shutil.rmtree(tmp_path / "tier")
    with pytest.raises(PySparkException, match="create the bucket or folder, or correct the tier URI"):
        frame.collect()
