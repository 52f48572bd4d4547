"""Ranged reads on the store's own connections, without aiohttp, against a server that counts connections."""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.response import StreamingBody
from s3fs import S3FileSystem

from stratalog.errors import StoreError, StoreTimeoutError
from stratalog.spi import Env, ObjectStore

OpenStore = Callable[..., ObjectStore]
KEYS: Final = {"key": "made-up-key", "secret": "made-up-secret"}
DATA: Final = bytes(range(256)) * 4_096
HUGE: Final = 1 << 40


@dataclass
class Server:
    """State and behaviour of the server.

    Attributes:
        endpoint: URL of the server.
        connections: number of connections so far.
        ended: set when a client has closed a stalled connection.
        hangs_up: True to close the connection after each response.
        stalls: True to send only the first byte of a body.
        announces: Content-Length to send instead of the correct one.
        modified: Last-Modified to send.
    """

    endpoint: str = ""
    connections: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    hangs_up: bool = False
    stalls: bool = False
    announces: int | None = None
    modified: str = "Thu, 01 Jan 2026 00:00:00 GMT"


def handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            state.connections += 1
            super().setup()

        def do_GET(self) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(match[1]), int(match[2])) if match else (0, len(DATA) - 1)
            body = DATA[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Length", str(len(body) if state.announces is None else state.announces))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
            self.send_header("Last-Modified", state.modified)
            self.end_headers()
            if state.stalls:
                self.wfile.write(body[:1])
                if not self.rfile.read(1):  # until the client closes the connection
                    state.ended.set()
                self.close_connection = True
                return
            self.wfile.write(body)
            self.close_connection = state.hangs_up

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    yield from serve(state, None)


def serve(state: Server, context: ssl.SSLContext | None) -> Iterator[Server]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave are no news
    if context is not None:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    state.endpoint = f"{'http' if context is None else 'https'}://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.fixture
def store(open_store: OpenStore, server: Server) -> ObjectStore:
    return open_store("s3://bucket/p", {**KEYS, "endpoint_url": server.endpoint})


@pytest.fixture
def no_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each request that aiobotocore's session sends."""

    async def send(self: object, request: object) -> None:
        raise AssertionError(f"{request} was sent by {self}")

    monkeypatch.setattr("aiobotocore.httpsession.AIOHTTPSession.send", send)


@pytest.mark.usefixtures("no_aiohttp")
def test_ranges_come_on_one_connection_past_aiohttp(store: ObjectStore, server: Server, deadline_ns: int) -> None:
    for start in range(0, 900_000, 300_000):
        data = store.read("a", start, start + 100_000, deadline_ns=deadline_ns)
        assert data == DATA[start : start + 100_000]
        assert type(data) is bytes
    assert server.connections == 1


def test_a_read_without_a_bounded_range_is_sent_as_before(
    store: ObjectStore, deadline_ns: int, no_aiohttp: None
) -> None:
    del no_aiohttp
    for start, end in ((None, None), (10, None)):
        with pytest.raises(StoreError):
            store.read("a", start, end, deadline_ns=deadline_ns)


def test_a_range_is_read_with_an_aiobotocore_that_enters_the_unwrapped_body(
    store: ObjectStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enter(body: StreamingBody) -> object:
        return await body.raw_stream.__aenter__()  # as in aiobotocore 2

    monkeypatch.setattr(StreamingBody, "__aenter__", enter)
    assert store.read("a", 3, 9, deadline_ns=deadline_ns) == DATA[3:9]


def test_a_range_is_read_without_parsing_the_time_of_the_last_write(
    store: ObjectStore, server: Server, deadline_ns: int
) -> None:
    server.modified = "no date"
    assert store.read("a", 3, 9, deadline_ns=deadline_ns) == DATA[3:9]


def test_readers_beside_each_other_have_a_connection_each(store: ObjectStore, server: Server, deadline_ns: int) -> None:
    barrier, comparisons = threading.Barrier(3), []

    def read() -> None:
        barrier.wait()
        comparisons.append(store.read("a", 0, len(DATA), deadline_ns=deadline_ns) == DATA)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert comparisons == [True] * 3
    assert 1 <= server.connections <= 3


@pytest.mark.usefixtures("no_aiohttp")
def test_a_kept_connection_that_the_server_closed_is_replaced(
    store: ObjectStore, server: Server, deadline_ns: int
) -> None:
    server.hangs_up = True
    for _ in range(3):
        assert store.read("a", 5, 9, deadline_ns=deadline_ns) == DATA[5:9]
    assert server.connections == 3


def test_a_body_longer_than_what_was_asked_for_is_not_read(
    store: ObjectStore, server: Server, deadline_ns: int
) -> None:
    server.announces = HUGE
    with pytest.raises(StoreError, match="were requested"):
        store.read("a", 5, 9, deadline_ns=deadline_ns)
    server.announces = None
    assert store.read("a", 5, 9, deadline_ns=deadline_ns) == DATA[5:9]
    assert server.connections == 2  # the first connection had unread bytes, and could not be reused


def test_a_read_that_is_given_up_leaves_its_connection(store: ObjectStore, server: Server, deadline_ns: int) -> None:
    assert store.read("a", 5, 9, deadline_ns=deadline_ns) == DATA[5:9]
    server.stalls = True
    with pytest.raises(StoreTimeoutError):
        store.read("a", 0, 9, deadline_ns=Env().clock.monotonic_ns() + 300_000_000)
    assert server.ended.wait(10), "the connection is still open"
    server.stalls = False
    assert store.read("a", 5, 9, deadline_ns=deadline_ns) == DATA[5:9]
    assert server.connections == 2


@pytest.mark.usefixtures("no_aiohttp")
def test_an_unreachable_server_is_a_typed_error(open_store: OpenStore, server: Server, deadline_ns: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        unreachable_store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": f"http://127.0.0.1:{port}"})
        with pytest.raises(StoreTimeoutError, match="EndpointConnectionError"):
            unreachable_store.read("a", 0, 9, deadline_ns=deadline_ns)
    assert server.connections == 0


@pytest.mark.long
def test_with_a_proxy_no_request_bypasses_it(
    open_store: OpenStore, server: Server, deadline_ns: int, no_aiohttp: None
) -> None:
    del no_aiohttp
    config = {"proxies": {"http": "http://127.0.0.1:1"}}
    proxied_store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": server.endpoint, "config_kwargs": config})
    with pytest.raises(StoreError):
        proxied_store.read("a", 0, 9, deadline_ns=deadline_ns)
    assert server.connections == 0


def test_a_session_of_the_users_own_is_used(open_store: OpenStore, server: Server, deadline_ns: int) -> None:
    from aiobotocore.httpsession import AIOHTTPSession  # noqa: PLC0415 - an extra, and slow to import

    sent_methods: list[str] = []

    class Own(AIOHTTPSession):  # type: ignore[misc]  # published without types
        async def send(self, request: Any) -> Any:
            sent_methods.append(request.method)
            return await super().send(request)

    config = {"http_session_cls": Own}
    session_store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": server.endpoint, "config_kwargs": config})
    assert session_store.read("a", 5, 9, deadline_ns=deadline_ns) == DATA[5:9]
    assert sent_methods == ["GET"]


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a file with a key and a self-signed certificate for 127.0.0.1."""
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - the same
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - the same

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    server_certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = tmp_path / "server.pem"
    file.write_bytes(private + server_certificate.public_bytes(pem))
    return file


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    yield from serve(Server(), context)


@pytest.mark.usefixtures("no_aiohttp")
def test_a_certificate_is_accepted_if_the_user_configures_it(
    open_store: OpenStore, tls_server: Server, certificate: Path, deadline_ns: int
) -> None:
    options = {**KEYS, "endpoint_url": tls_server.endpoint, "client_kwargs": {"verify": str(certificate)}}
    store = open_store("s3://bucket/p", options)
    for _ in range(2):
        assert store.read("a", 0, 500_000, deadline_ns=deadline_ns) == DATA[:500_000]
    assert tls_server.connections == 1


@pytest.mark.usefixtures("no_aiohttp")
def test_a_certificate_without_a_known_signer_is_refused(
    open_store: OpenStore, tls_server: Server, deadline_ns: int
) -> None:
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": tls_server.endpoint})
    with pytest.raises(StoreError, match="SSLError") as caught:
        store.read("a", 0, 9, deadline_ns=deadline_ns)
    assert not caught.value.retriable


@pytest.mark.usefixtures("no_aiohttp")
def test_a_server_that_closes_the_connection_in_the_handshake_may_be_asked_again(
    open_store: OpenStore, deadline_ns: int
) -> None:
    def close_all() -> None:
        with contextlib.suppress(OSError):  # the socket is closed at the end of the test
            while True:
                connection, _ = listening.accept()
                connection.recv(1 << 16)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=close_all)
        thread.start()
        store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": f"https://127.0.0.1:{listening.getsockname()[1]}"})
        try:
            with pytest.raises(StoreTimeoutError):
                store.read("a", 0, 9, deadline_ns=deadline_ns)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_the_session_knows_every_argument_that_aiobotocore_gives_to_one() -> None:
    """A new argument of aiobotocore may change how connections are made. Then ``_Reads.of`` must support it."""
    expected = {
        "verify",
        "proxies",
        "timeout",
        "max_pool_connections",
        "socket_options",  # the base class ignores this argument
        "client_cert",
        "proxies_config",
        "connector_args",
    }
    actual = set(inspect.signature(AIOHTTPSession.__init__).parameters) - {"self"}
    assert actual == expected, "compare stratalog_s3/direct.py with this version of aiobotocore"


def test_s3fs_still_has_its_one_private_method_that_is_used() -> None:
    """The public ``call_s3`` blocks its thread, and cannot be ended at a deadline."""
    assert inspect.iscoroutinefunction(getattr(S3FileSystem, "_call_s3", None)), (
        "s3fs has no _call_s3: see Bucket._once"
    )
