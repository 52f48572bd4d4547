"""Spark's own Kafka source, and a real broker on loopback with the very files that we read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.java import JavaMissingError
from spark_parts.data import PARTITIONS, TOPIC

NAME: Final = "Spark's Kafka source"
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_BROKER_POM: Final = _ROOT / "tests" / "oracle" / "pom.xml"
_SOURCE_POM: Final = _ROOT / "benchmarks" / "java" / "spark-kafka.xml"
# Its consumer as fast as it gets: as few and as large answers as it takes.
_TUNED: Final = {
    "kafka.max.partition.fetch.bytes": str(32 << 20),
    "kafka.fetch.max.bytes": str(128 << 20),
    "kafka.max.poll.records": "100000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that runs, and the jars with which Spark reads from it."""

    address: str
    jars: str

    def read(self, session: Any) -> Any:
        """All of the topic, with the tuned consumer. Any: Spark is not typed for who has not installed it."""
        return session.read.format("kafka").options(**self._options()).load()

    def stream(self, session: Any) -> Any:
        """The same as a stream, in micro-batches of a million records."""
        options = {**self._options(), "maxOffsetsPerTrigger": "1000000"}
        return session.readStream.format("kafka").options(**options).load()

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, "subscribe": TOPIC, "startingOffsets": "earliest", **_TUNED}


@contextmanager
def broker(folder: Path, scratch: Path) -> Iterator[Peer]:
    """A broker over the logs in ``folder``, which are copied.

    Raises:
        JavaMissingError: Kafka cannot run here, or its jars cannot be had.
    """
    sys.path.append(str(_ROOT / "tests" / "support"))
    try:
        from kafka_broker import KafkaBroker  # noqa: PLC0415 - not installed: found in the checkout alone
        from kafka_tools import KafkaTools, OracleMissingError  # noqa: PLC0415 - the same
    except ImportError as error:
        raise JavaMissingError(f"{NAME}: {error}") from error
    try:
        tools, source = KafkaTools.find(_BROKER_POM), KafkaTools.find(_SOURCE_POM)
    except OracleMissingError as error:
        raise JavaMissingError(f"{NAME}: {error}") from error
    with KafkaBroker(tools, scratch) as running:
        running.create_topics({TOPIC: PARTITIONS})
        running.stop()
        for partition in range(PARTITIONS):
            running.take_over(folder / f"{TOPIC}-{partition}")
        running.start()
        yield Peer(running.address, ",".join(str(jar) for jar in sorted(source.libraries.glob("*.jar"))))
