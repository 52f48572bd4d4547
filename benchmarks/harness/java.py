"""Kafka's own classes as a worker: one program of ``benchmarks/java`` in a JVM that runs as long as the benchmark does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.workers import Worker, WorkerError

KAFKA: Final = "Kafka (Java)"
WARM_UP_TIMES: Final = 8  # the JVM's second compiler starts after some thousand iterations of a loop
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_SOURCES: Final = _ROOT / "benchmarks" / "java"
_POM: Final = _ROOT / "tests" / "oracle" / "pom.xml"
_SUPPORT: Final = _ROOT / "tests" / "support"


class JavaMissingError(Exception):
    """Kafka's classes cannot run here; the text names the missing part."""


def find_support() -> None:
    """Make the support modules of the tests importable: they are in the checkout only."""
    if str(_SUPPORT) not in sys.path:
        sys.path.append(str(_SUPPORT))


def java_worker(
    program: str, scratch: Path, *arguments: str, heap: str = "512m", options: Sequence[str] = (), pom: Path = _POM
) -> Worker:
    """Start a JVM with Kafka's classes, from the jars that the tests with real Kafka use.

    Args:
        program: the class with the main method; its source is ``benchmarks/java/{program}.java``.
        scratch: a folder for the compiled classes.
        arguments: arguments of the program.
        heap: size of the heap, which is fixed.
        options: more options of the JVM.
        pom: the Maven file that lists the jars.

    Raises:
        JavaMissingError: there is no JDK, Maven is missing and the jars were not downloaded before, or the program
            cannot be compiled or started.
    """
    find_support()
    from kafka_tools import KafkaTools, OracleMissingError  # noqa: PLC0415 - not installed: found in the checkout alone

    compiler = shutil.which("javac")
    if compiler is None:
        raise JavaMissingError(f"{KAFKA}: there is no javac; a JDK is needed")
    try:
        tools = KafkaTools.find(pom)
    except OracleMissingError as error:
        raise JavaMissingError(f"{KAFKA}: {error}") from error
    path = f"{scratch}:{tools.libraries}/*"
    compiled = subprocess.run(
        [
            compiler,
            *("-nowarn", "-proc:none", "-cp", path, "-d", str(scratch), "-sourcepath", str(_SOURCES)),
            str(_SOURCES / f"{program}.java"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode:
        raise JavaMissingError(f"{KAFKA}: {compiled.stderr.strip()}")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    try:
        return Worker([tools.java, f"-Xms{heap}", f"-Xmx{heap}", quiet, *options, "-cp", path, program, *arguments])
    except WorkerError as error:
        raise JavaMissingError(f"{KAFKA}: {error}") from error
