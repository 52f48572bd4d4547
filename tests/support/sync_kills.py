"""Program that kills a driver of ``sync`` with SIGKILL before every step of a micro-batch, and repeats the micro-batch.

Usage: sync_kills.py FOLDER iceberg|delta BUCKETS. It prints the names of the steps as a JSON list. Every driver is a
separate process. The program forks it before any library has started a thread.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lake import TOPIC, Lake, prefixed, record
from stratalog import open_engine
from tier_jobs import run_here

SCHEMAS: dict[int, object] = {
    1: {"type": "object", "properties": {"user": {"type": "string"}}},
    2: {"type": "object", "properties": {"user": {"type": "string"}, "amount": {"type": "integer"}}},
}
FIRST = [(0, record(b"a", prefixed(1, b'{"user": "0"}'))), (1, record(b"b", prefixed(1, b'{"user": "1"}'), hour=30))]
SECOND = [
    (0, record(b"c", prefixed(2, b'{"user": "2", "amount": 5}'))),
    (0, record(b"d", prefixed(1, b"broken"))),
    (1, record(b"e", prefixed(1, b'{"user": "3"}'), hour=30)),
]
PLACES, BAD = [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 2)]
MODULES = {  # modules that each driver would import again
    "iceberg": (
        "fsspec.core",
        "lz4.frame",
        "pyarrow.acero",
        "pyarrow.parquet",
        "pyiceberg.avro.decoder",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyiceberg.table",
        "sqlalchemy.dialects.sqlite",
        "stratalog_spark.exporting.iceberg",
        "stratalog_spark.lake.syncer",
    ),
    "delta": ("deltalake", "deltalake.fs", "pandas", "pyarrow.parquet", "stratalog_spark.lake.syncer"),
}
PARTS = ("data", "iceberg", "delta")


def driver(folder: Path, kind: str, buckets: int, work: Callable[[Lake, Callable[..., int]], None]) -> int:
    """Run ``work`` in a forked driver. Return its exit code, which is negative if it was killed.

    ``work`` gets a lake, and a function that runs the micro-batch.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        with open_engine(folder / "data") as engine, pytest.MonkeyPatch.context() as patch:
            from stratalog_spark import Maintenance  # noqa: PLC0415 - in the driver alone
            from stratalog_spark.lake import syncer  # noqa: PLC0415 - the same

            patch.setattr(syncer, "run_tasks", run_here)
            lake, limits = Lake(folder, engine, kind), Maintenance(small_files=2, file_bytes=1 << 20)

            def micro_batch(schemas: Mapping[int, object] = SCHEMAS) -> int:
                batch_writer = lake.syncer(
                    "json", dict(schemas), partition_by="day", upsert=buckets, maintenance=limits
                )
                return lake.sync(batch_writer)

            work(lake, micro_batch)
        code = 0
    except BaseException:  # noqa: BLE001 - the exit code reports it
        traceback.print_exc()
    os._exit(code)


def kill_at(number: int, lake: Lake, told: Path) -> None:
    """Arrange that this process kills itself at the step with this number.

    The process writes the name of the step to ``told`` first. The steps are the begin and the end of each change of a
    table and of each deletion of files. In an Iceberg table, each metadata file that a change writes is also a step.
    """
    table = lake.target().open_table()
    count, depth = 0, 0

    def step(name: str) -> None:
        nonlocal count
        if count == number:
            told.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def wrap(owner: type, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def wrapped(*arguments: Any, **settings: Any) -> Any:
            nonlocal depth
            step(f"before {name}")
            depth += 1
            result = original(*arguments, **settings)
            depth -= 1
            step(f"after {name}")
            return result

        setattr(owner, name, wrapped)

    for name in ("create", "add_columns", "commit"):
        wrap(type(table), name)
    wrap(type(table.files), "remove")
    if lake.kind == "iceberg":
        file = import_module("pyiceberg.io.pyarrow").PyArrowFile
        original = file.create

        def create(self: Any, *arguments: Any, **settings: Any) -> Any:
            if depth:
                step("before a file of metadata")
            return original(self, *arguments, **settings)

        file.create = create


def prepare(lake: Lake, micro_batch: Callable[..., int]) -> None:
    """Sync one micro-batch, and append the records of the next one, which has a new field and a bad record."""
    lake.engine.create_topic(TOPIC, partitions=2, config={"retention.ms": -1})
    for partition, row in FIRST:
        lake.append(partition, [row])
    assert micro_batch({1: SCHEMAS[1]}) == len(FIRST)
    for partition, row in SECOND:
        lake.append(partition, [row])


def check_repetition(lake: Lake, micro_batch: Callable[..., int]) -> None:
    """Repeat the micro-batch, sync another one, and check both tables."""
    micro_batch()
    assert micro_batch() == 0
    assert lake.places() == PLACES
    assert lake.places("orders_quarantine") == BAD
    lake.append(1, [record(b"f", prefixed(2, b'{"user": "4", "amount": 6}'))])
    assert micro_batch() == 1
    assert lake.places() == [*PLACES, (1, 2)]
    assert [row["amount"] for row in lake.rows()] == [None, 5, None, None, 6]


def copy_parts(source: Path, target: Path) -> None:
    """Replace the topic and the tables in ``target`` by copies of those in ``source``."""
    for name in PARTS:
        shutil.rmtree(target / name, ignore_errors=True)
        if (source / name).exists():
            shutil.copytree(source / name, target / name)


def main(folder: Path, kind: str, buckets: int) -> None:
    """Kill a driver at each step, check the result of each repetition, and print the steps."""
    pytest.MonkeyPatch().setattr(os, "fsync", os.fstat)  # a killed process loses nothing that it wrote
    for module in MODULES[kind]:  # they start no threads before they are used
        import_module(module)
    gc.freeze()  # a collection would copy the memory that the drivers share
    assert driver(folder, kind, buckets, prepare) == 0
    backup, step_file, steps = folder / "backup", folder / "told", list[str]()
    copy_parts(folder, backup)
    while True:
        number = len(steps)

        def killed(lake: Lake, micro_batch: Callable[..., int], number: int = number) -> None:
            kill_at(number, lake, step_file)
            micro_batch()

        code = driver(folder, kind, buckets, killed)
        assert code in {0, -signal.SIGKILL}, code
        assert driver(folder, kind, buckets, check_repetition) == 0, steps
        if not code:
            break
        steps.append(step_file.read_text())
        copy_parts(backup, folder)
    sys.stdout.write(json.dumps(steps))
    sys.stdout.flush()
    os._exit(0)  # deltalake crashes at the end of a process that has forked


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
