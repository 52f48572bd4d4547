"""A process that does this project's side of the cases; started with ``STRATALOG_NO_EXTENSIONS=1`` for the pure twin."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from codec_parts.operations import Operation
from codec_parts.ours import Stratalog
from codec_parts.workloads import load
from harness import Job, serve


def job_of(name: str, data: bytes) -> Job:
    """The job of an operation on a workload's bytes."""
    return Stratalog().makers()[Operation(name)](load(data))


if __name__ == "__main__":
    serve(job_of)
