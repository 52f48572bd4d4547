"""Sessions: one on this machine with the settings that matter, and the source registered in any other."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from stratalog_spark.java import use_java
from stratalog_spark.source import StratalogSource


def local_session(master: str = "local[*, 4]", *, name: str = "stratalog", **settings: str) -> SparkSession:
    """A Spark session on this machine, with the source registered; Java from PyPI where there is no other.

    Args:
        master: ``local[CORES, FAILURES]``: with fewer than 2 failures allowed, Spark retries no task.
        name: of the application.
        settings: Spark's, with ``_`` for ``.`` in their names: ``spark_driver_memory="4g"``.
    """
    return open_session(master, {key.replace("_", "."): value for key, value in settings.items()}, name=name)


def open_session(master: str, settings: Mapping[str, str], *, name: str = "stratalog") -> SparkSession:
    """A session anywhere, with the source registered.

    Args:
        master: as Spark has it; ``sc://HOST:PORT`` connects to a Spark Connect server.
        settings: Spark's, by their own names.
        name: of the application.
    """
    if master.startswith("sc://"):
        builder = SparkSession.builder.remote(master)
    else:
        use_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the python3 of PATH, which lacks us
        builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Make ``format("stratalog")`` known to a session. Twice is fine.

    Spark finds it by itself, too, unless another installed package named ``pyspark_*`` cannot be imported: that one keeps
    all of them from being found.
    """
    try:
        session.dataSource.register(StratalogSource)
    except AnalysisException as error:  # Spark 4.0 takes no second one for what it has found by itself
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
