"""The cases of the gateway's benchmark: the same requests to each server, and the processor time of the server."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gateway_parts.servers import Server
from gateway_parts.wire import Batch, Connection, Exchange, count_batches, fetch_exchange, produce_exchange
from harness import Case, Sample, Side

KIB: Final = 1 << 10
MIB: Final = 1 << 20
LARGE_BYTES: Final = MIB - 64 * KIB  # size of a batch that fits into max.message.bytes and a response of 1 MiB
PRODUCE: Final = {  # size of a batch in bytes, number of connections
    "produce/16KiB/1-connection": (16 * KIB, 1),
    "produce/16KiB/4-connections": (16 * KIB, 4),
    "produce/1MiB/1-connection": (LARGE_BYTES, 1),
}
FETCH: Final = {  # size of a batch in bytes, largest size of a response in bytes
    "fetch/64KiB": (16 * KIB, 64 * KIB),
    "fetch/1MiB": (16 * KIB, MIB),
    "fetch/1MiB-batch": (LARGE_BYTES, MIB),
}
_FILLED_BYTES: Final = 32 * MIB


class _ServerSide(Side):
    """The side of one server, measured by a client in this process."""

    def __init__(self, server: Server) -> None:
        self.name, self._server = server.name, server
        self._topics: list[str] = []

    def delete_topics(self) -> None:
        """Delete the topics of this side, so that the system reuses their memory for the next files.

        In a virtual machine, a write to memory that was never used before can cost several times as much.
        """
        with Connection(self._server.port) as connection:
            for topic in self._topics:
                connection.delete(topic)

    def _measure(self, work: Callable[[], None]) -> Sample:
        cpu_s, wall_s = self._server.cpu_s(), time.perf_counter()
        work()
        return Sample(time.perf_counter() - wall_s, self._server.cpu_s() - cpu_s)


class ProduceSide(_ServerSide):
    """Produce requests with one batch each. Each connection writes to its own topic, a new one for each sample."""

    def __init__(self, server: Server, batch: Batch, connections: int) -> None:
        super().__init__(server)
        self._batch, self._connections = batch, [Connection(server.port) for _ in range(connections)]
        self._exchanges: list[Exchange] = []
        self._create_topics()

    def check(self) -> None:
        """Produce one batch on each connection, and read it back."""
        for topic, connection, exchange in zip(self._topics, self._connections, self._exchanges, strict=True):
            connection.replay(exchange, 1)
            connection.exchange(fetch_exchange(topic, 0, len(self._batch.data), len(self._batch.data)))

    def sample(self, calls: int) -> Sample:
        """Send ``calls`` requests, spread over the connections. Then delete what they wrote."""

        def work() -> None:
            share = -(-calls // len(self._connections))
            with ThreadPoolExecutor(len(self._connections)) as threads:
                running = [
                    threads.submit(connection.replay, exchange, share)
                    for connection, exchange in zip(self._connections, self._exchanges, strict=True)
                ]
                for thread in running:
                    thread.result()

        sample = self._measure(work)
        self.delete_topics()
        self._create_topics()
        return sample

    def _create_topics(self) -> None:
        self._topics = [f"produce-{uuid.uuid4().hex[:8]}" for _ in self._connections]
        self._exchanges = [produce_exchange(topic, self._batch.data) for topic in self._topics]
        for topic, connection, exchange in zip(self._topics, self._connections, self._exchanges, strict=True):
            connection.create(topic, 1)
            connection.replay(exchange, 1)  # the first request opens the files of the log


class FetchSide(_ServerSide):
    """Fetch requests that read a log repeatedly from its start."""

    def __init__(self, server: Server, batch: Batch, max_bytes: int) -> None:
        super().__init__(server)
        self._batch, topic = batch, f"fetch-{uuid.uuid4().hex[:8]}"
        self._topics = [topic]
        self._connection = Connection(server.port)
        self._connection.create(topic, 1)
        size, count = len(batch.data), -(-_FILLED_BYTES // len(batch.data))
        self._connection.replay(produce_exchange(topic, batch.data), count)
        step = max(max_bytes // size, 1)
        self._exchanges = [
            fetch_exchange(topic, first * batch.records, step * size, step * size)
            for first in range(0, count - step + 1, step)
        ]
        self._next = 0

    def check(self) -> None:
        """Read the log once."""
        for exchange in self._exchanges:
            self._connection.exchange(exchange)

    def sample(self, calls: int) -> Sample:
        """Send ``calls`` requests, one after the other."""

        def work() -> None:
            for _ in range(calls):
                self._connection.exchange(self._exchanges[self._next])
                self._next = (self._next + 1) % len(self._exchanges)

        return self._measure(work)


def cases(servers: Sequence[Server], wants: Callable[[str], bool]) -> Iterator[Case]:
    """Yield the selected cases, each with one side for each server. Delete the topics of a case before the next one."""
    for name, (size, connections) in PRODUCE.items():
        if wants(name):
            batch = Connection.batch(size)
            writers = [ProduceSide(server, batch, connections) for server in servers]
            title = f"produce batches of {size // KIB} KiB, acks=1, {connections} connection(s), 5 requests in flight"
            yield Case(name, title, list(writers), batch.records, len(batch.data))
            for writer in writers:
                writer.delete_topics()
    for name, (size, max_bytes) in FETCH.items():
        if wants(name):
            batch = Connection.batch(size)
            readers = [FetchSide(server, batch, max_bytes) for server in servers]
            count = max(max_bytes // len(batch.data), 1)
            title = f"fetch {max_bytes // KIB} KiB a request, batches of {len(batch.data) // KIB} KiB"
            yield Case(name, title, list(readers), batch.records * count, len(batch.data) * count)
            for reader in readers:
                reader.delete_topics()


def latencies_s(server: Server, seconds: float, rate: int) -> list[float]:
    """Return the seconds from the send of each record to its arrival at a waiting consumer.

    Args:
        server: the measured server.
        seconds: duration of the sending.
        rate: number of records per second. The latency of a late record counts from its scheduled time.
    """
    batch, topic, count = Connection.batch(100), f"latency-{uuid.uuid4().hex[:8]}", max(round(seconds * rate), 1)
    arrived: list[float] = []

    def consume() -> None:
        with Connection(server.port) as consumer:
            while len(arrived) < count:
                size = consumer.exchange(fetch_exchange(topic, len(arrived), MIB))
                batch_count = count_batches(size, len(batch.data))
                arrived.extend([time.perf_counter()] * batch_count)

    with Connection(server.port) as producer:
        producer.create(topic, 1)
        thread = threading.Thread(target=consume)
        thread.start()
        exchange, began, due = produce_exchange(topic, batch.data), time.perf_counter() + 0.05, []
        for number in range(count):
            due.append(began + number / rate)
            time.sleep(max(0.0, due[-1] - time.perf_counter()))  # noqa: TID251 - real time is what is measured
            producer.replay(exchange, 1)
        thread.join()
    return [end - start for start, end in zip(due, arrived, strict=True)]
