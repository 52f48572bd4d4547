"""A Java consumer of a topic whose records are in a tier, through a server that it does not know."""

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

_READ_BYTES: Final = 110  # of the key and the value of a record


class ConsumerSide(Side):
    """All records of one topic; the processor time of the server, or of the consumer and the server.

    Args:
        name: of the side.
        address: of the server.
        topic: it has one partition.
        cpu_s: returns the processor time of the server so far.
        records: of the topic, which has no more.
        worker: a running ``TierConsumer``; borrowed.
        scratch: a folder.
        with_consumer: True if the consumer's processor time counts, too.
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
        self.name, self.warm_up_times = name, 8.0  # the compilers of a JVM work while it runs
        self._with_consumer = with_consumer
        self._cpu_s, self._records, self._worker, self._scratch = cpu_s, records, worker, scratch
        self._input = f"{topic}@{address}"
        told = scratch / "input"
        told.write_text(f"{address} {topic} {records}", encoding="ascii")
        worker.load(self._input, told)

    def beside(self, name: str, address: str, topic: str, cpu_s: Callable[[], float]) -> Self:
        """The same consumer, in the same process, of another server that has the same records."""
        records, worker, scratch = self._records, self._worker, self._scratch
        return type(self)(name, address, topic, cpu_s, records, worker, scratch, with_consumer=self._with_consumer)

    def check(self) -> None:
        """Keys and values have the length that they were made with."""
        outcome = self._scratch / "outcome"
        self._worker.ask("outcome", "read", self._input, str(outcome))
        found = int(outcome.read_bytes())
        if found != self._records * _READ_BYTES:
            raise WrongOutcomeError(f"{self.name}: {found} bytes of {self._records} records")

    def sample(self, calls: int) -> Sample:
        """The consumer's time on the wall."""
        before_s = self._cpu_s()
        wall_ns, cpu_ns = map(int, self._worker.ask("sample", "read", self._input, calls))
        return Sample(wall_ns / 1e9, self._cpu_s() - before_s + (cpu_ns / 1e9 if self._with_consumer else 0))


def serving(folder: Path, store: Store) -> AbstractContextManager[Server]:
    """Serve a directory and its tier by the gateway.

    Raises:
        JavaMissingError: the packages of the gateway are not here.
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
