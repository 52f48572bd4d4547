"""Kafka's own record classes, as a worker in a JVM that runs as long as the benchmark does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from codec_parts.operations import Operation, check
from codec_parts.workloads import Workload
from harness import Worker, WorkerError, WorkerSide

NAME: Final = "Kafka (Java)"
UNCOPIED_NAME: Final = "Kafka (Java), no copies"
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_SOURCE: Final = _ROOT / "benchmarks" / "java" / "CodecBench.java"
_POM: Final = _ROOT / "tests" / "oracle" / "pom.xml"
_WARM_UP_TIMES: Final = 8  # the JVM's second compiler comes in after some thousand turns of a loop
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


class JavaMissingError(Exception):
    """Kafka's classes cannot run here; the text says what is missing."""


def java_worker(scratch: Path) -> Worker:
    """A JVM with Kafka's classes: the jars are those that the tests against real Kafka use.

    Args:
        scratch: a folder for what is compiled.

    Raises:
        JavaMissingError: there is no JDK, no Maven for a first time, or the classes do not start.
    """
    sys.path.append(str(_ROOT / "tests" / "support"))
    from kafka_tools import KafkaTools, OracleMissingError  # noqa: PLC0415 - not installed: found in the checkout alone

    compiler = shutil.which("javac")
    if compiler is None:
        raise JavaMissingError(f"{NAME}: there is no javac; a JDK is needed")
    try:
        tools = KafkaTools.find(_POM)
    except OracleMissingError as error:
        raise JavaMissingError(f"{NAME}: {error}") from error
    path = f"{scratch}:{tools.libraries}/*"
    compiled = subprocess.run(
        [compiler, "-cp", path, "-d", str(scratch), str(_SOURCE)], capture_output=True, text=True, check=False
    )
    if compiled.returncode:
        raise JavaMissingError(f"{NAME}: {compiled.stderr.strip()}")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    try:
        return Worker([tools.java, "-Xms512m", "-Xmx512m", quiet, "-cp", path, _SOURCE.stem])
    except WorkerError as error:
        raise JavaMissingError(f"{NAME}: {error}") from error


def java_sides(
    worker: Worker, operation: Operation, name: str, workload: Workload, scratch: Path, *, unchecked: bool
) -> list[WorkerSide]:
    """The sides of a case; with ``unchecked`` also those that spare the CRC, to see what it costs."""
    jobs = dict(_JOBS.get(operation, {}))
    if unchecked:
        jobs |= _UNCHECKED_JOBS.get(operation, {})
    return [
        WorkerSide(
            side, worker, job, name, scratch, partial(check, side, operation, workload), warm_up_times=_WARM_UP_TIMES
        )
        for side, job in jobs.items()
    ]
