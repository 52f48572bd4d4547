from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from certificates import Authority, handshake, trusting
from stratalog.env.clock import SystemClock
from stratalog_gateway import connection
from stratalog_gateway import poller as poller_module
from stratalog_gateway.connection import Connection, send_all
from stratalog_gateway.handlers.dispatch import FETCH, PRODUCE
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.poller import Poller
from stratalog_gateway.security.tls import TlsContext
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.primitives import MalformedRequestError

IDLE_S = 30.0
LARGE = b"l" * (8 << 20)  # larger than the buffers of both sockets


def framed(text: bytes, api: int = PRODUCE) -> bytes:
    """Return a request in the form that ``Echo`` reads."""
    return struct.pack(">ih", len(text) + 2, api) + text


class Echo:
    """Handler that answers a request with its text. Some texts have another effect."""

    limit_bytes = 1000

    def __init__(self) -> None:
        self.threads = list[threading.Thread]()
        self.before: Callable[[], object] = bool

    def __call__(self, frame: memoryview) -> Response:
        self.threads.append(threading.current_thread())
        self.before()
        text = bytes(frame[2:])
        if text == b"wrong":
            raise MalformedRequestError("wrong")
        return Response([LARGE if text == b"large" else text], is_short=text != b"long")


class Client:
    """A client, and the thread that serves its connection in the gateway."""

    def __init__(self, poller: Poller, pair: tuple[socket.socket, socket.socket], idle_s: float) -> None:
        server, self.socket = pair
        self.socket.settimeout(IDLE_S)
        self.echo = Echo()
        self.connection = Connection(server, self.echo)
        self._thread = ThreadPoolExecutor(1)
        self.ended: Future[Response] = self._thread.submit(poller.answer, self.connection, idle_s)

    def ask(self, text: bytes) -> bytes:
        self.socket.sendall(framed(text))
        return self.receive(len(text))

    def receive(self, size: int) -> bytes:
        """Return the next ``size`` bytes; fewer if the connection ends before."""
        received = bytearray()
        while len(received) < size and (chunk := self.socket.recv(size - len(received))):
            received += chunk
        return bytes(received)

    def close(self) -> None:
        self.socket.close()
        self._thread.shutdown()
        self.connection.socket.close()


Connect = Callable[..., Client]


@pytest.fixture(autouse=True)
def _a_busy_machine_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONG_REQUEST_S", IDLE_S)


@pytest.fixture
def poller() -> Iterator[Poller]:
    started_poller = Poller()
    started_poller.start()
    yield started_poller
    started_poller.stop(10)


@pytest.fixture
def connect(poller: Poller) -> Iterator[Connect]:
    clients = list[Client]()

    def connected(pair: tuple[socket.socket, socket.socket] | None = None, idle_s: float = IDLE_S) -> Client:
        clients.append(Client(poller, pair or socket.socketpair(), idle_s))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def test_one_thread_answers_the_short_requests_of_all_connections(connect: Connect) -> None:
    first, second = connect(), connect()
    for text in (b"one", b"two"):
        assert [client.ask(text) for client in (first, second)] == [text, text]
    assert len({*first.echo.threads, *second.echo.threads}) == 1
    assert not first.ended.done()


def test_requests_that_arrive_together_or_in_parts_are_answered_in_order(connect: Connect) -> None:
    client, texts = connect(), [b"%06d" % number for number in range(40)]
    stream = b"".join(map(framed, texts))
    client.socket.sendall(stream[:-3])
    assert client.receive(39 * 6) == b"".join(texts[:39])
    client.socket.sendall(stream[-3:])
    assert client.receive(6) == texts[39]


def test_a_request_of_another_api_is_left_to_the_thread_of_the_connection(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(framed(b"short") + framed(b"other", FETCH))
    assert client.ended.result(IDLE_S).is_short is False
    assert client.receive(5) == b"short"
    assert client.connection.has_request()
    client.connection.answer()
    assert client.receive(5) == b"other"


def test_a_request_that_is_not_short_ends_the_polling(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(framed(b"long") + framed(b"next"))
    assert client.ended.result(IDLE_S) == Response([b"long"])
    assert client.receive(4) == b"long"
    assert client.connection.has_request()


def test_each_slow_request_doubles_the_number_of_requests_until_a_connection_is_quick_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()

    def requests_until_quick() -> int:
        for number in range(1, 10_000):
            answered()
            if client.connection.is_quick:
                return number
        raise AssertionError("the connection stays slow")

    def answered(*, slow: bool = False) -> None:
        client.socket.sendall(framed(b"text"))
        assert client.connection.receive()
        assert client.connection.has_request()
        with monkeypatch.context() as patch:
            patch.setattr(connection, "_LONG_REQUEST_S", 0 if slow else IDLE_S)
            assert client.connection.answer().is_short is not slow
        assert client.receive(4) == b"text"

    assert client.ask(b"quick") == b"quick"
    monkeypatch.setattr(connection, "_LONG_REQUEST_S", 0)
    assert client.ask(b"slow") == b"slow"
    assert client.ended.result(IDLE_S).is_short is False
    counts = [requests_until_quick()]
    for _ in range(7):
        answered(slow=True)
        counts.append(requests_until_quick())
    assert counts == [16, 32, 64, 128, 256, 512, 1024, 1024]
    for _ in range(1024):
        answered()
    answered(slow=True)
    assert requests_until_quick() == 16


def test_a_client_that_does_not_read_delays_only_itself(connect: Connect) -> None:
    greedy, other_client = connect(), connect()
    greedy.socket.sendall(framed(b"large"))
    assert other_client.ask(b"other") == b"other"
    assert not greedy.ended.done()
    assert greedy.receive(len(LARGE)) == LARGE
    assert greedy.ended.result(IDLE_S) == Response(())


def test_an_error_reaches_the_thread_of_the_connection_after_the_earlier_responses(connect: Connect) -> None:
    client, other_client = connect(), connect()
    client.socket.sendall(framed(b"right") + framed(b"wrong"))
    assert client.receive(5) == b"right"
    with pytest.raises(MalformedRequestError, match="wrong"):
        client.ended.result(IDLE_S)
    assert other_client.ask(b"other") == b"other"


def test_the_end_of_a_connection_is_left_to_its_thread(connect: Connect) -> None:
    client = connect()
    client.socket.shutdown(socket.SHUT_WR)
    assert client.ended.result(IDLE_S) == Response(())
    assert not client.connection.receive()


def test_a_silent_connection_is_shut(connect: Connect) -> None:
    client = connect(idle_s=0.01)
    assert client.receive(1) == b""
    assert client.ended.result(IDLE_S) == Response(())


def test_a_connection_is_not_shut_while_its_request_is_answered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, silent = socket.socketpair(), list[socket.socket]()

    def shut_others(server_socket: socket.socket) -> None:
        silent.append(server_socket)
        if server_socket is not pair[0]:
            connection.shut(server_socket)

    monkeypatch.setattr(poller_module, "shut", shut_others)
    client, reached, goes_on = connect(pair, idle_s=0.01), threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        goes_on.wait(IDLE_S)

    client.echo.before = wait
    client.socket.sendall(framed(b"text"))
    assert reached.wait(IDLE_S)
    before = silent.count(pair[0])
    assert connect(idle_s=0.05).receive(1) == b""  # by now, the first client has been silent for longer
    assert silent.count(pair[0]) - before <= 1  # the silence before the request may be noticed late
    goes_on.set()
    assert client.receive(4) == b"text"


@pytest.mark.parametrize("is_started", [True, False])
def test_a_stopped_poller_returns_connections_at_once(*, is_started: bool) -> None:
    poller = Poller()
    if is_started:
        poller.start()
    client = Client(poller, socket.socketpair(), IDLE_S)
    if is_started:
        assert client.ask(b"text") == b"text"
    for _ in range(2):
        poller.stop(10)
    assert client.ended.result(IDLE_S) == Response(())
    assert poller.answer(client.connection, IDLE_S) == Response(())
    assert client.connection.socket.gettimeout() is None
    client.close()


def test_encrypted_connections_are_polled(connect: Connect, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = TlsContext(GatewaySection(keystore=str(authority.issue("server.pem", "localhost"))), "none", SystemClock())
    client, other_client = connect(handshake(server, trusting(authority))), connect()
    client.socket.sendall(b"".join(framed(b"%09d" % number) for number in range(4000)))
    assert client.receive(9 * 4000) == b"".join(b"%09d" % number for number in range(4000))
    client.socket.sendall(framed(b"large"))
    assert other_client.ask(b"other") == b"other"
    assert not client.ended.done()
    assert client.receive(len(LARGE)) == LARGE
    assert client.ended.result(IDLE_S) == Response(())


def test_pieces_that_the_sockets_buffer_does_not_accept_at_once_are_sent_without_a_copy() -> None:
    pieces = [bytes([number]) * (32 << 10) for number in range(256)] * 3  # more than one `sendmsg`
    expected = b"".join(pieces)
    received = bytearray(len(expected))
    server, client = socket.socketpair()

    def receive_all() -> None:
        start = 0
        while start < len(received):
            start += client.recv_into(memoryview(received)[start:])

    with server, client, ThreadPoolExecutor(1) as pool:
        client.settimeout(IDLE_S)
        server.settimeout(IDLE_S)
        ended = pool.submit(receive_all)
        tracemalloc.start()
        try:
            send_all(server, pieces)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        ended.result(IDLE_S)
    assert received == expected
    assert peak_bytes < 1 << 20
