"""Spark's Python daemon with a memory limit for tasks: ``spark.python.daemon.module``.

Workers import their modules before the limit begins. They may then allocate ``SMALL_WORKER_BYTES``; a larger allocation
raises a MemoryError.
"""

from __future__ import annotations

import os
import re
import resource
import runpy
import threading
from importlib import import_module
from pathlib import Path
from typing import Final

VARIABLE: Final = "SMALL_WORKER_BYTES"
_IMPORTED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "stratalog_compaction",
    "stratalog_formats",
    "stratalog_local",
    "stratalog_s3",
    "stratalog_spark.jobs.compact",
)
_STACK_BYTES: Final = 1 << 20  # stack of a thread; the usual 8 MiB would count in full, although they are not used


def main() -> None:
    """Import the modules, set the memory limit, and run Spark's daemon."""
    for name in _IMPORTED:
        import_module(name)
    threading.stack_size(_STACK_BYTES)
    match = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    limit_bytes = (int(match[1]) << 10) + int(os.environ[VARIABLE])
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
