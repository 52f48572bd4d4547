"""Other ways to run Spark: an older version, Spark Connect, and spark-submit with a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("has_java")

ROOT = Path(__file__).parent.parent.parent
STORY = ROOT / "tests" / "support" / "spark_story.py"
SQL = [["orders"], 20, True, 605]  # results of the catalog in the JVM
KEYS = [[str(key), 86 if key < 6 else 84] for key in range(7)]  # 300 records a partition, of 7 keys


def run_program(command: list[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the program, and return the JSON of the last line of its output.

    Each caller sets the Python of the workers, which may be another one than that of the tests' session.
    """
    process = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "XDG_CACHE_HOME": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    report: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert report["keys"] == KEYS
    assert report["written"] == 600
    return report


def test_an_older_spark_reads_writes_streams_and_compacts(old_spark_python: str, tmp_path: Path) -> None:
    """Runs in an environment with Spark 4.0, its Java, the wheel and the dependencies of the extra only."""
    report = run_program(
        [old_spark_python, str(STORY), str(tmp_path), "local"], tmp_path, {"PYSPARK_PYTHON": old_spark_python}
    )
    assert report["spark"].startswith("4.0.")
    assert not report["driver"].startswith(str(ROOT))
    assert (report["streamed"], report["compacted"]) == (600, [605, 7])
    assert report["sql"] == SQL


@pytest.mark.usefixtures("has_connect", "has_catalog")
def test_a_connect_server_reads_writes_streams_and_compacts(tmp_path: Path) -> None:
    report = run_program(
        [sys.executable, str(STORY), str(tmp_path), "connect"], tmp_path, {"PYSPARK_PYTHON": sys.executable}
    )
    assert report["session"] == "pyspark.sql.connect.session"
    assert (report["streamed"], report["compacted"]) == (600, [605, 7])
    assert report["sql"] == SQL


def test_spark_submit_takes_a_wheel_to_the_executors(
    pure_wheel: Path, tmp_path: Path, spark_settings: dict[str, str]
) -> None:
    """Two workers have the dependencies of the library installed, and get the library itself with the job."""
    settings = {
        **{name.replace("_", "."): value for name, value in spark_settings.items()},
        "spark.executor.extraJavaOptions": spark_settings["spark_driver_extraJavaOptions"],
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    confs = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local-cluster[2,1,1024]", *confs]
    environment = {"PYTHONPATH": str(pure_wheel), "PYSPARK_PYTHON": sys.executable}
    report = run_program(
        [*submit, "--py-files", str(pure_wheel), str(STORY), str(tmp_path), "submit"], tmp_path, environment
    )
    assert report["driver"].startswith(str(pure_wheel))
    assert report["tasks"]
    assert all(pure_wheel.name in path and str(ROOT) not in path for path in report["tasks"])
