"""Kafka's own record classes, in the worker of ``java/CodecBench.java``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from codec_parts.operations import Operation, check
from codec_parts.workloads import Workload
from harness import KAFKA, WARM_UP_TIMES, Worker, WorkerSide

PROGRAM: Final = "CodecBench"
NAME: Final = KAFKA
UNCOPIED_NAME: Final = f"{KAFKA}, no copies"
_JOBS: Final = {
    Operation.COLUMNS: {NAME: "copy", UNCOPIED_NAME: "slice"},
    Operation.OBJECTS: {NAME: "copy"},
    Operation.TOUCHED: {NAME: "copy"},
    Operation.SCAN: {NAME: "scan"},
    Operation.ENCODE: {NAME: "encode"},
    Operation.ENCODE_COLUMNS: {NAME: "encode"},
}
_UNCHECKED_JOBS: Final = {
    Operation.COLUMNS: {f"{UNCOPIED_NAME} or CRC": "slice-unchecked"},
    Operation.OBJECTS: {f"{NAME}, no CRC": "copy-unchecked"},
}


def java_sides(
    worker: Worker, operation: Operation, name: str, workload: Workload, scratch: Path, *, unchecked: bool
) -> list[WorkerSide]:
    """Return Kafka's sides of a case.

    With ``unchecked``, the result also has sides that do not check the CRC, to show the cost of the check.
    """
    jobs = dict(_JOBS.get(operation, {}))
    if unchecked:
        jobs |= _UNCHECKED_JOBS.get(operation, {})
    return [
        WorkerSide(
            side, worker, job, name, scratch, partial(check, side, operation, workload), warm_up_times=WARM_UP_TIMES
        )
        for side, job in jobs.items()
    ]
