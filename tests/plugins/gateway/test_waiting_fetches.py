"""Fetch requests that wait for records: the thread that appends the records may send the response."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_bed import Served, frame_of, part, request, response, served
from stratalog import Log
from stratalog.env.clock import SystemClock
from stratalog_gateway.faults import Faults
from stratalog_gateway.handlers.fetch import FetchHandler
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.messages import read_header


class Waiter:
    """A Fetch request of partitions of ``orders``. While it waits, another thread appends a batch, once for each wait.

    Attributes:
        sent: for each call of ``send_now``: True if the appending thread called it, and the bytes.
        waits: number of waits.
    """

    def __init__(self, bed: Served, monkeypatch: pytest.MonkeyPatch, accepted_bytes: int = 1 << 20) -> None:
        self.node, self._bed, self._accepted_bytes = (
            Node(bed.engine, GatewaySection(), SystemClock()),
            bed,
            accepted_bytes,
        )
        self._appender = threading.current_thread()
        self.sent: list[tuple[bool, bytes]] = []
        self.waits = 0
        monkeypatch.setattr(self.node, "wait", self._wait)
        monkeypatch.setattr(Log, "subscribe", lambda *_: lambda: None)  # the log would wake the fetch, too
        self.batch = bed.batch([b"v"])
        self.client = Client("127.0.0.1", self.node.settings.endpoints()[0])
        self.client.send_now = self.send_now

    def send_now(self, data: bytes) -> memoryview:
        self.sent.append((threading.current_thread() is self._appender, data))
        return memoryview(data)[self._accepted_bytes :]

    def frame(self, *, min_bytes: int = 1, partitions: int = 1) -> memoryview:
        wanted = tuple(
            part("Fetch", 11, "FetchPartition", partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
            for number in range(partitions)
        )
        values = {
            "replica_id": -1, "max_wait": dt.timedelta(minutes=1), "min_bytes": min_bytes, "max_bytes": 1 << 20,
            "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": (), "rack_id": "",
            "topics": (part("Fetch", 11, "FetchTopic", topic="orders", partitions=wanted),),
        }  # fmt: skip
        return memoryview(request("Fetch", 11, values))

    def answer(self, frame: memoryview) -> Response:
        return FetchHandler(self.node)(read_header(frame), frame, self.client)

    def _wait(self, event: threading.Event, until_ns: int) -> None:
        assert until_ns > self.node.now_ns()
        self.waits += 1
        self._appender = threading.Thread(target=self._append)
        self._appender.start()
        self._appender.join(15)
        assert event.is_set()

    def _append(self) -> None:
        self._bed.engine.log("orders", 0).append_as_leader(self.batch)
        self.node.wake_fetches("orders", 0)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "logs") as bed:
        bed.engine.create_topic("orders", partitions=9)
        yield bed


def test_the_appending_thread_sends_the_response(orders: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(orders, monkeypatch)
    rest = waiter.answer(waiter.frame())
    [(is_appender, frame)] = waiter.sent
    assert is_appender
    assert frame_of(rest.pieces) == b""
    assert response("Fetch", 11, frame[4:]).responses[0].partitions[0].records == stored(orders)


def test_the_thread_of_the_client_sends_the_bytes_that_do_not_fit_into_the_buffer(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(orders, monkeypatch, accepted_bytes=10)
    rest = waiter.answer(waiter.frame())
    [(_, frame)] = waiter.sent
    assert frame_of(rest.pieces) == frame[10:]


def test_a_fetch_that_waits_for_more_bytes_is_answered_by_the_thread_of_the_client(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have to read older records of another partition, which takes long if they are in the tier."""
    waiter = Waiter(orders, monkeypatch)
    frame = frame_of(waiter.answer(waiter.frame(min_bytes=2 * len(waiter.batch) + 1)).pieces)
    assert waiter.waits == 3
    assert not waiter.sent
    assert response("Fetch", 11, frame[4:]).responses[0].partitions[0].records == stored(orders)


def test_the_thread_of_the_client_raises_the_error_of_the_appending_thread(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(orders, monkeypatch)

    def failing(data: bytes) -> memoryview:
        raise ConnectionResetError(f"{len(data)} bytes cannot be sent")

    waiter.client.send_now = failing
    with pytest.raises(ConnectionResetError):
        waiter.answer(waiter.frame())


@pytest.mark.parametrize(("partitions", "batch_bytes"), [(9, 10), (1, 100_000)])
def test_the_thread_of_the_client_answers_if_the_answer_could_take_long(
    orders: Served, monkeypatch: pytest.MonkeyPatch, partitions: int, batch_bytes: int
) -> None:
    waiter = Waiter(orders, monkeypatch)
    waiter.batch = orders.batch([bytes(batch_bytes)])
    frame = frame_of(waiter.answer(waiter.frame(partitions=partitions)).pieces)
    assert not waiter.sent
    assert response("Fetch", 11, frame[4:]).responses[0].partitions[0].records == stored(orders)


def test_no_response_is_sent_that_a_fault_could_lose(orders: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter, faults = Waiter(orders, monkeypatch), Faults(SystemClock())
    dispatch = faults.wrap_dispatch(lambda data, _: waiter.answer(data))
    with faults.lost_responses("Fetch"):
        assert dispatch(waiter.frame(), waiter.client).is_last
    assert waiter.waits == 1
    assert not waiter.sent


def stored(bed: Served) -> bytes:
    with bed.engine.log("orders", 0).fetch(0, 1 << 20) as fetched:
        return bytes(fetched.read())
