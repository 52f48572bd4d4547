"""Spark reads logs and tiers: ``spark.read.format("stratalog")``, with no broker in between."""

from __future__ import annotations

from stratalog_spark.java import use_java
from stratalog_spark.session import local_session, register
from stratalog_spark.source import StratalogSource

__all__ = ["StratalogSource", "local_session", "register", "use_java"]
