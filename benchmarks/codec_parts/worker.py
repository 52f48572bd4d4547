"""A worker process with the side of stratalog; ``STRATALOG_NO_EXTENSIONS=1`` selects the pure Python kernels."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from codec_parts.operations import Operation
from codec_parts.ours import Stratalog
from codec_parts.workloads import load
from harness import Job, serve


def job_of(name: str, data: bytes) -> Job:
    """Return the job of the operation ``name`` on the bytes of a workload."""
    return Stratalog().makers()[Operation(name)](load(data))


if __name__ == "__main__":
    serve(job_of)
