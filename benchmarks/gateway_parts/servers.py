"""The two servers, the gateway and a real Kafka broker, each in its own process with its own directory."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway_parts.wire import Connection, RefusedError
from harness import GATEWAY, KAFKA, JavaMissingError, WrongOutcomeError, find_support, process_cpu_s

if TYPE_CHECKING:
    from kafka_tools import KafkaTools

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_POM: Final = _ROOT / "tests" / "oracle" / "pom.xml"
_START_S: Final = 120.0
_PAUSE_S: Final = 0.005
_CLUSTER_ID: Final = "c3RyYXRhbG9nLW9yYWNsZQ"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        name: name of the side.
        port: its port on loopback.
        pid: id of its process.
        start_s: seconds from the start of the process to the first answered request.
    """

    name: str
    port: int
    pid: int
    start_s: float

    def cpu_s(self) -> float:
        """Return the processor seconds that all threads of the server have used until now."""
        return process_cpu_s(self.pid)

    def memory_mib(self) -> float:
        """Return the proportional set size of the server in MiB."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise OSError("this system does not tell the memory of a process")


@contextmanager
def gateway(directory: Path, *options: str) -> Iterator[Server]:
    """Serve a directory by the gateway; the directory may be new. ``options`` are options of ``stratalog serve``."""
    command = [sys.executable, "-m", "stratalog", "serve", str(directory), "--listen", "127.0.0.1:0", *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        yield _answering(GATEWAY, port, process, began)
    finally:
        _stop(process)


@contextmanager
def broker(folder: Path) -> Iterator[Server]:
    """Start a Kafka broker and controller in one process, with a heap of 1 GiB and the G1 collector.

    Raises:
        JavaMissingError: Java is missing, or Maven is missing and the jars were not downloaded before.
    """
    tools = _tools()
    from ports import free_ports  # noqa: PLC0415 - not installed: found in the checkout alone

    port, controller = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "broker",
        "offsets.topic.replication.factor": 1,
        "log.segment.delete.delay.ms": 100,  # with the next line: deleted topics release their memory at once
        "log.initial.task.delay.ms": 100,
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    formatting = tools.run("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties), folder=folder)
    if formatting.returncode:
        raise JavaMissingError(f"{KAFKA}: {formatting.stdout.strip()}")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    heap = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
    command = [tools.java, *heap, quiet, "-cp", f"{tools.libraries}/*", "kafka.Kafka", str(properties)]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield _answering(KAFKA, port, process, began)
    finally:
        _stop(process)


def java_producer(server: Server, topic: str, count: int, folder: Path) -> float:
    """Return the seconds that Kafka's ProducerPerformance needs for ``count`` records of 100 bytes with acks=1.

    Raises:
        JavaMissingError: Java is missing, or Maven is missing and the jars were not downloaded before.
        WrongOutcomeError: not all records were sent.
    """
    tools = _tools()
    arguments = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers=127.0.0.1:{server.port}", "acks=1")
    process = tools.run("org.apache.kafka.tools.ProducerPerformance", *arguments, *properties, folder=folder)
    rates = re.findall(rf"^{count} records sent, ([0-9.]+) records/sec", process.stdout, re.MULTILINE)
    if process.returncode or not rates:
        raise WrongOutcomeError(f"{server.name}: {process.stdout.strip()[-500:]}")
    return count / float(rates[-1])


def _tools() -> KafkaTools:
    find_support()
    from kafka_tools import KafkaTools, OracleMissingError  # noqa: PLC0415 - not installed: found in the checkout alone

    try:
        return KafkaTools.find(_POM)
    except OracleMissingError as error:
        raise JavaMissingError(f"{KAFKA}: {error}") from error


def _answering(name: str, port: int, process: subprocess.Popen[str] | subprocess.Popen[bytes], began: float) -> Server:
    """Wait until the server accepts records."""
    while time.perf_counter() - began < _START_S:
        try:
            with Connection(port) as connection:
                connection.create("first", 1)
                connection.produce("first", connection.batch(100).data)
        except (OSError, RefusedError):
            time.sleep(_PAUSE_S)  # noqa: TID251 - real time is what is measured
        else:
            return Server(name, port, process.pid, time.perf_counter() - began)
    raise JavaMissingError(f"{name} does not answer after {_START_S:.0f} s")


def _stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_START_S)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
