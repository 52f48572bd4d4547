"""A Java consumer that reads a tiered topic from a server: a Kafka broker or the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from harness import GATEWAY, JavaMissingError, Sample, Side, Worker, WrongOutcomeError
from tier_parts.logs import Store

if TYPE_CHECKING:
    from gateway_parts.servers import Server

_READ_BYTES: Final = 110  # bytes of the key and the value of a record


class ConsumerSide(Side):
    """The side of one server: a Java consumer reads all records of one topic.

    Args:
        name: name of the side.
        address: address of the server.
        topic: name of the topic, which has one partition.
        cpu_s: returns the processor time of the server so far.
        records: number of records in the topic.
        worker: a running ``TierConsumer``; the caller closes it.
        scratch: a folder for files of the worker.
        with_consumer: True to add the consumer's processor time to that of the server.
    """

    def __init__(
        self,
        name: str,
        address: str,
        topic: str,
        cpu_s: Callable[[], float],
        records: int,
        worker: Worker,
        scratch: Path,
        *,
        with_consumer: bool,
    ) -> None:
        self.name, self.warm_up_times = name, 8.0  # the JVM compiles during the warm-up
        self._with_consumer = with_consumer
        self._cpu_s, self._records, self._worker, self._scratch = cpu_s, records, worker, scratch
        self._input = f"{topic}@{address}"
        input_file = scratch / "input"
        input_file.write_text(f"{address} {topic} {records}", encoding="ascii")
        worker.load(self._input, input_file)

    def for_server(self, name: str, address: str, topic: str, cpu_s: Callable[[], float]) -> Self:
        """Return a side with the same consumer process, for another server that has the same records."""
        records, worker, scratch = self._records, self._worker, self._scratch
        return type(self)(name, address, topic, cpu_s, records, worker, scratch, with_consumer=self._with_consumer)

    def check(self) -> None:
        """Check the sum of the lengths of all keys and values."""
        outcome = self._scratch / "outcome"
        self._worker.ask("outcome", "read", self._input, str(outcome))
        read_bytes = int(outcome.read_bytes())
        if read_bytes != self._records * _READ_BYTES:
            raise WrongOutcomeError(f"{self.name}: {read_bytes} bytes of {self._records} records")

    def sample(self, calls: int) -> Sample:
        """Return the wall time of the consumer, and the processor time of the server.

        If ``with_consumer`` is True, the processor time includes that of the consumer.
        """
        before_s = self._cpu_s()
        wall_ns, cpu_ns = map(int, self._worker.ask("sample", "read", self._input, calls))
        return Sample(wall_ns / 1e9, self._cpu_s() - before_s + (cpu_ns / 1e9 if self._with_consumer else 0))


def serving(folder: Path, store: Store) -> AbstractContextManager[Server]:
    """Serve a directory and its tier by the gateway.

    Raises:
        JavaMissingError: the packages of the gateway are not installed.
    """
    try:
        from gateway_parts.servers import gateway  # noqa: PLC0415 - needs kio, which not everybody has
    except ImportError as error:
        raise JavaMissingError(f"{GATEWAY}: {error}") from error
    options = [
        word
        for name, value in store.options.items()
        for word in ("--tier-option", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    ]
    return gateway(folder, "--tier", store.uri, *options)
