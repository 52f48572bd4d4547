"""Tables of Spark's catalog over logs: the properties that Spark passes to a Python source, and metadata of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructType

from stratalog import Record, open_engine
from stratalog.errors import ConfigError, UnknownSettingError
from stratalog_spark.catalog import response
from stratalog_spark.options.table_options import merge_table_options, restore_location, table_schema


def given(**options: str) -> dict[str, str]:
    """Return the properties of a table, as Spark 4.3 passes them when the table is created."""
    table_options = {f"option.{name}": value for name, value in options.items()}
    return {
        **table_options,
        **options,
        "provider": "stratalog",
        "owner": "me",
        "location": "file:/data",
        "path": "file:/data",
    }


def test_the_options_of_a_table_are_in_the_metadata_of_its_columns() -> None:
    schema = table_schema({**given(subscribe="orders", columns="key,value"), "a.property": "of the table"})
    assert schema.simpleString() == "struct<key:binary,value:binary>"
    assert dict(merge_table_options({}, schema, streaming=False)) == {
        "subscribe": "orders",
        "columns": "key,value",
        "path": "file:///data",
    }


def test_options_of_a_query_count_before_those_of_the_table() -> None:
    schema = table_schema(given(subscribe="orders", maxOffsetsPerTrigger="5"))
    merged_options = merge_table_options({"Subscribe": "others"}, schema, streaming=True)
    assert "subscribe" not in merged_options
    assert merged_options["Subscribe"] == "others"
    assert merged_options["maxoffsetspertrigger"] == "5"
    assert "maxoffsetspertrigger" not in merge_table_options({}, schema, streaming=False), "of streams alone"
    query_options = {"path": "/elsewhere", "subscribe": "others"}
    assert merge_table_options(query_options, schema, streaming=False) == query_options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tier.secret": "hush"}, "not stored in a table"),
        ({"topic": "orders"}, "is for writes"),
        ({"subscribe": "orders", "startingOffsets": "never"}, "startingOffsets"),
        ({}, "give one of subscribe"),
    ],
)
def test_columns_that_a_table_cannot_store_are_refused_at_creation(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        table_schema(given(**options))
    assert "hush" not in str(raised.value)


def test_an_unknown_option_of_a_table_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean 'subscribe'"):
        table_schema(given(subscrib="orders"))


def test_a_table_without_a_location_is_refused() -> None:
    with pytest.raises(ConfigError, match="LOCATION"):
        table_schema({"provider": "stratalog", "option.subscribe": "orders"})


def test_metadata_that_this_source_did_not_write_are_refused() -> None:
    for metadata in ("text", {"subscribe": "a"}, {"path": 7}):
        schema = StructType().add("key", BinaryType(), nullable=True, metadata={"stratalog": metadata})
        with pytest.raises(ConfigError, match="create the table again"):
            merge_table_options({}, schema, streaming=False)


def test_a_location_is_a_directory_or_a_tier_by_what_is_there(tmp_path: Path) -> None:
    with open_engine(tmp_path / "a directory") as engine:
        engine.create_topic("orders")
    (tmp_path / "tier").mkdir()
    assert restore_location(f"file:{tmp_path}/a directory") == f"{tmp_path}/a directory"
    assert restore_location(f"file:{tmp_path}/tier") == f"file://{tmp_path}/tier"
    assert restore_location("file:/nowhere/at/all") == "file:///nowhere/at/all"
    for unchanged in ("s3://bucket/prefix", f"file://{tmp_path}", str(tmp_path)):
        assert restore_location(unchanged) == unchanged


def test_a_table_is_made_read_streamed_and_written(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "logs of orders"
    with open_engine(place) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(key=b"k", value=b"first")])
    spark.sql(
        f"CREATE TABLE orders USING stratalog OPTIONS (subscribe 'orders') LOCATION '{place}' COMMENT 'all of them'"
    )
    try:
        rows = spark.sql("SELECT value, offset FROM orders").collect()
        assert [(row["value"], row["offset"]) for row in rows] == [(b"first", 0)]
        insert_prefix = f"INSERT INTO orders WITH (path = '{place}', topic = 'orders')"
        spark.sql(f"{insert_prefix} (key, value) VALUES (cast('k' AS binary), cast('second' AS binary))")
        frame = spark.sql("SELECT cast('k' AS binary) AS key, cast('third' AS binary) AS value")
        options = {"path": str(place), "topic": "orders"}
        frame.write.format("stratalog").options(**options).mode("append").saveAsTable("saved")
        assert spark.read.options(path=str(place), subscribe="orders").table("saved").count() == 3
        later_rows = spark.sql('SELECT value FROM orders WITH (startingOffsets = \'{"orders": {"0": 1}}\')').collect()
        assert [row["value"] for row in later_rows] == [b"second", b"third"]
        query = (
            spark.readStream.option("startingOffsets", "earliest")
            .table("orders")
            .writeStream.format("memory")
            .queryName("streamed")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert spark.table("streamed").count() == 3
        with pytest.raises(PySparkException, match="does not pass the options of a table to a sink"):
            spark.sql("INSERT INTO orders (key, value) VALUES (cast('k' AS binary), cast('lost' AS binary))")
        with pytest.raises(PySparkException, match="which the log assigns"):
            spark.sql(f"{insert_prefix} (key, value, offset) VALUES (cast('k' AS binary), cast('v' AS binary), 17)")
        with pytest.raises(PySparkException, match="only if it is created without a list of columns"):
            spark.table("saved").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")
        spark.sql("DROP TABLE IF EXISTS saved")


def test_the_columns_of_a_catalog_have_names_in_any_case(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    request = {"ask": "topic", "topic": "orders", "catalog.path": str(tmp_path), "catalog.columns": "Key,VALUE"}
    assert response(request).simpleString() == "struct<Key:binary,VALUE:binary>"
    with pytest.raises(ConfigError, match="did you mean 'value'"):
        response({**request, "catalog.columns": "key,valeu"})
