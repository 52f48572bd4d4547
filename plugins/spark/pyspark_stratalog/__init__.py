"""Where Spark finds the data source by itself: it looks into every package called ``pyspark_*``."""

from __future__ import annotations

from stratalog_spark.source import StratalogSource as DefaultSource

__all__ = ["DefaultSource"]
