"""Module by which Spark finds the data source: Spark imports every package whose name starts with ``pyspark_``."""

from __future__ import annotations

from stratalog_spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
