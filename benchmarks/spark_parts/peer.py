"""Spark's own Kafka source, and a real broker on loopback with copies of the files that stratalog reads."""

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
# Settings that make the consumer fastest: few and large responses.
_TUNED: Final = {
    "kafka.max.partition.fetch.bytes": str(32 << 20),
    "kafka.fetch.max.bytes": str(128 << 20),
    "kafka.max.poll.records": "100000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A running broker, and the jars that Spark needs to read from it."""

    address: str
    jars: str

    def read(self, session: Any) -> Any:
        """Return all records of the topic as a data frame, read by the tuned consumer.

        The type is Any, because pyspark is optional.
        """
        return session.read.format("kafka").options(**self._options()).load()

    def stream(self, session: Any) -> Any:
        """Return the topic as a streaming data frame, in micro-batches of a million records."""
        options = {**self._options(), "maxOffsetsPerTrigger": "1000000"}
        return session.readStream.format("kafka").options(**options).load()

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, "subscribe": TOPIC, "startingOffsets": "earliest", **_TUNED}


@contextmanager
def broker(folder: Path, scratch: Path) -> Iterator[Peer]:
    """Start a broker with copies of the logs in ``folder``.

    Raises:
        JavaMissingError: Kafka or its jars are missing here.
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
