"""Faults that tests inject: lost requests, responses and connections, leader changes, throttling, and slow requests."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from stratalog import Log, TopicInfo, TopicPartition, TopicSetting
from stratalog.errors import ConfigError, NotLeaderOrFollowerError
from stratalog.spi import Clock
from stratalog_gateway.handlers.dispatch import APIS
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.handlers.sasl import Dispatch
from stratalog_gateway.node import LogSource
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.quotas import FETCHED, Quotas
from stratalog_gateway.wire.messages import read_header


class Faults:
    """Faults that tests inject into one gateway. Thread-safe.

    Implements ``stratalog.testing.kafka_server.KafkaFaults``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        # Faults that are in effect. They change under _lock. The keys are names of APIs, such as `Produce`.
        self._lost_requests, self._lost_responses = set[str](), set[str]()
        self._delays: dict[str, tuple[int, threading.Event]] = {}  # delay (ms), and an event: end of the fault
        self._throttle_ms = 0
        self._not_leader = Counter[str]()  # by topic
        self._drop_all: Callable[[], None] = lambda: None
        self._leader_changes = 0  # number of leader changes

    def drop_connections(self) -> None:
        """Close all connections of the gateway. If no gateway is attached, do nothing."""
        self._drop_all()

    def lost_requests(self, *apis: str) -> AbstractContextManager[None]:
        """Close the connection at each request of the APIs, without handling the request."""
        return self._inject(self._lost_requests, apis)

    def lost_responses(self, *apis: str) -> AbstractContextManager[None]:
        """Handle each request of the named APIs, and close the connection instead of sending the response."""
        return self._inject(self._lost_responses, apis)

    @contextlib.contextmanager
    def _inject(self, faulty_apis: set[str], apis: Iterable[str]) -> Iterator[None]:
        names = {_check_api(api) for api in apis}
        with self._lock:
            faulty_apis |= names
        try:
            yield
        finally:
            with self._lock:
                faulty_apis -= names

    @contextlib.contextmanager
    def slow(self, api: str, delay_ms: int) -> Iterator[None]:
        """Delay each request of an API by ``delay_ms``. The end of the block ends the delays in progress."""
        ended = threading.Event()
        with self._lock:
            self._delays[_check_api(api)] = delay_ms, ended
        try:
            yield
        finally:
            with self._lock:
                del self._delays[api]
            ended.set()

    @contextlib.contextmanager
    def throttled(self, throttle_ms: int) -> Iterator[None]:
        """Throttle clients for at least ``throttle_ms`` after each Produce and every second Fetch, as a quota does."""
        with self._lock:
            self._throttle_ms = throttle_ms
        try:
            yield
        finally:
            with self._lock:
                self._throttle_ms = 0

    @contextlib.contextmanager
    def not_leader(self, topic: str) -> Iterator[None]:
        """Answer NOT_LEADER_OR_FOLLOWER to requests that need a log of a topic, such as Produce, Fetch and ListOffsets.

        Metadata reports the same error for the partitions of the topic.
        """
        with self._lock:
            self._not_leader[topic] += 1
            self._leader_changes += 1
        try:
            yield
        finally:
            with self._lock:
                self._not_leader[topic] -= 1
                self._leader_changes += 1

    def wrap_dispatch(self, dispatch: Dispatch) -> Dispatch:
        """Return ``dispatch`` with the faults ``slow``, ``lost_requests`` and ``lost_responses``."""

        def faulty(data: memoryview, client: Client) -> Response:
            api = APIS.get(read_header(data).api)
            name = "" if api is None else api.name
            delay = self._delays.get(name)
            if delay is not None:
                self._clock.wait(delay[1], delay[0])
            if name in self._lost_requests:
                return Response((), is_last=True)
            client.send_now = None  # a sent response cannot be lost
            response = dispatch(data, client)
            if name in self._lost_responses:
                response.release()
                return Response((), is_last=True)
            return response

        return faulty

    def source(self, source: LogSource) -> LogSource:
        """Return ``source`` with the fault ``not_leader``.

        During the fault, ``log`` of the result raises NotLeaderOrFollowerError for the topic.
        """
        return _MovedLogs(source, self)

    def quotas(self, quotas: Quotas) -> Quotas:
        """Return ``quotas`` with the fault ``throttled``."""
        return _ThrottlingQuotas(quotas, self, self._clock)

    def attach(self, drop_all: Callable[[], None]) -> None:
        """Set the function that ``drop_connections`` calls. The gateway calls this method."""
        self._drop_all = drop_all

    @property
    def throttle_ms(self) -> int:
        """Minimum throttle time (ms) that ``throttled`` sets now; 0 outside of its block."""
        return self._throttle_ms

    @property
    def leader_changes(self) -> int:
        """Number of leader changes so far: one at the start and one at the end of each fault ``not_leader``."""
        return self._leader_changes

    def check_leader(self, topic: str) -> None:
        """Raise NotLeaderOrFollowerError during the fault ``not_leader`` of a topic."""
        if self._not_leader[topic]:
            raise NotLeaderOrFollowerError(f"a fault: topic {topic} has another leader")


class _ThrottlingQuotas(Quotas):
    """Quotas that in addition throttle during the fault ``throttled``."""

    def __init__(self, quotas: Quotas, faults: Faults, clock: Clock) -> None:
        super().__init__("", clock)
        self._quotas, self._faults = quotas, faults
        self._waited_clients = set[Client]()  # clients whose last fetch was throttled

    def record(self, limit: str, client: Client, client_id: str, count: int) -> int:
        throttle_ms = self._quotas.record(limit, client, client_id, count)
        planned_ms = self._faults.throttle_ms
        if not planned_ms or count < 0 or (limit == FETCHED and self._has_waited(client)):
            return throttle_ms
        return max(throttle_ms, planned_ms)

    def _has_waited(self, client: Client) -> bool:
        """Return False at the first call with a client, True at the second, and so on in turn.

        For each client, only one thread at a time calls it.
        """
        has_waited = client in self._waited_clients
        (self._waited_clients.discard if has_waited else self._waited_clients.add)(client)
        return has_waited

    def window_bytes(self, client: Client, client_id: str) -> int | None:
        return self._quotas.window_bytes(client, client_id)

    def refuses_connection(self, host: str) -> bool:
        return self._quotas.refuses_connection(host)


class _MovedLogs:
    """Log source that refuses the logs of a topic during the fault ``not_leader`` of this topic.

    A leader change counts as a change of topics, which empties the caches of the node.
    """

    def __init__(self, source: LogSource, faults: Faults) -> None:
        self._source, self._faults = source, faults

    @property
    def topic_changes(self) -> int:
        return self._source.topic_changes + self._faults.leader_changes

    def topics(self) -> dict[str, TopicInfo]:
        return self._source.topics()

    def log(self, topic: str, partition: int) -> Log:
        self._faults.check_leader(topic)
        return self._source.log(topic, partition)

    def topic_settings(self, name: str) -> dict[str, TopicSetting]:
        return self._source.topic_settings(name)

    def log_directories(self) -> Mapping[str, Iterable[TopicPartition]]:
        return self._source.log_directories()

    def offline_log_directories(self) -> tuple[str, ...]:
        return self._source.offline_log_directories()


def _check_api(api: str) -> str:
    if api not in {supported.name for supported in APIS.values()}:
        raise ConfigError(f"there is no API {api} in the gateway")
    return api
