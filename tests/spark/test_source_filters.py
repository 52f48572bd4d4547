"""Spark keeps filters that it pushed into a Python source for later reads, so the source has no ``pushFilters``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql import datasource

pytestmark = pytest.mark.long


def test_a_filter_that_spark_pushes_stays_in_the_plan_of_the_whole_frame(spark: Any) -> None:
    """If this test fails, Spark has changed: a source in Python can then prune without the jar."""
    if not hasattr(datasource.DataSourceReader, "pushFilters"):
        pytest.skip("this Spark pushes no filters")

    class Reader(datasource.DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
        def __init__(self) -> None:
            self.rows = 10

        def pushFilters(self, filters: Sequence[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
            for pushed_filter in filters:
                if type(pushed_filter).__name__ == "LessThan":
                    self.rows = pushed_filter.value
                yield pushed_filter

        def read(self, partition: object) -> Iterator[tuple[int]]:
            del partition
            return iter([(number,) for number in range(self.rows)])

    class Source(datasource.DataSource):  # type: ignore[misc]  # pyspark is untyped here
        @classmethod
        def name(cls) -> str:
            return "pushed_filters"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: object) -> Reader:
            del schema
            return Reader()

    spark.dataSource.register(Source)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushed_filters").load()
        assert frame.where("number < 3").count() == 3
        assert frame.count() == 3, "Spark returns all 10 rows: it no longer keeps the filter"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
