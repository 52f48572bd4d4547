"""A server for Kafka clients, for tests: an engine over a log directory, and the service ``gateway``.

The extra ``gateway`` must be installed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env
from stratalog.model.names import unknown_topic
from stratalog.testing.movable_clock import MovableClock

# the topics for offsets and transactions have 50 partitions each by default
_FEW_PARTITIONS: Final = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


class KafkaFaults(Protocol):
    """Faults of a running server. A method that returns a context manager applies its fault until the block ends.

    Entering a block raises ConfigError if the server does not have a named API. Two blocks of one method must not
    overlap for an API: the end of the first block would end both faults. Only blocks of ``not_leader`` may overlap.
    """

    def drop_connections(self) -> None:
        """Close all open connections. Clients can reconnect immediately."""

    def lost_requests(self, *apis: str) -> AbstractContextManager[None]:
        """Return a context in which each request of ``apis``, such as ``Produce``, only closes the connection."""

    def lost_responses(self, *apis: str) -> AbstractContextManager[None]:
        """Return a context in which the server closes the connection instead of sending a response of ``apis``."""

    def slow(self, api: str, delay_ms: int) -> AbstractContextManager[None]:
        """Return a context in which each request of an API is handled after ``delay_ms`` of the server's clock.

        The end of the block ends the delays in progress.
        """

    def throttled(self, throttle_ms: int) -> AbstractContextManager[None]:
        """Return a context that throttles clients for ``throttle_ms`` or more after each Produce and each second Fetch.

        A throttled Fetch returns no records, as if a quota was exceeded. The next Fetch returns the records.
        """

    def not_leader(self, topic: str) -> AbstractContextManager[None]:
        """Return a context in which requests for records of a topic get the error NOT_LEADER_OR_FOLLOWER."""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A running server.

    Attributes:
        engine: the engine of the server; a test can read topics, logs and offsets of groups without a client.
        bootstrap: host and port, for ``bootstrap.servers`` of clients.
        clock: the server's clock, which a test can move forward.
    """

    engine: Engine
    bootstrap: str
    clock: MovableClock
    faults: KafkaFaults

    def topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic, and return its name. Settings have Kafka's names with underscores: ``retention_ms=1000``.

        Raises the errors of ``Engine.create_topic``.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.engine.create_topic(name, partitions=partitions, config=settings)
        return name

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of all committed records of a topic, in order of partition and offset.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        topics = self.engine.topics()
        if topic not in topics:
            raise unknown_topic(topic, topics, "the server")
        return [
            record.value
            for number in topics[topic].partitions
            for record in self.engine.log(topic, number).records(isolation="read_committed")
        ]


@contextlib.contextmanager
def kafka_server(
    directory: str | os.PathLike[str], settings: Mapping[str, object] | None = None
) -> Iterator[KafkaServer]:
    """Serve a log directory on a free loopback port until the ``with`` block ends, and yield the server.

    Args:
        directory: the log directory. A directory of an earlier server keeps its topics and the offsets of groups.
        settings: further settings of ``[plugins.gateway]``, such as ``num.partitions``.

    Raises:
        PluginImportError: the extra ``gateway`` is not installed.
    """
    gateway, clock = {"port": 0, **(settings or {})}, MovableClock()
    config = {"services": ["gateway"], "plugins": {"gateway": gateway}, **_FEW_PARTITIONS}
    with open_engine(directory, config=config, env=Env(clock=clock)) as engine:
        service: Any = engine.service("gateway")  # Any: the class is in a plugin, which the core does not import
        faults: KafkaFaults = service.faults()
        engine.start()
        yield KafkaServer(engine, service.address, clock, faults)
