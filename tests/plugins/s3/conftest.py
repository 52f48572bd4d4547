from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Self
from urllib.parse import urlsplit

import pytest

from requirement import Requirement, missing
from stratalog.config.engine_settings import Limits
from stratalog.spi import CodecTable, Env, HandlePool, ObjectStore, OpenContext, Section
from stratalog.testing.faultproxy import FaultProxy, fault_proxy
from stratalog.testing.s3 import LocalS3
from stratalog_s3 import stratalog_object_stores
from stratalog_s3.settings import MIN_PART_BYTES, S3Section
from versitygw import Gateway, NoGatewayError, gateway

OpenStore = Callable[..., ObjectStore]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests with the second S3 server as long."""
    if isinstance(item, pytest.Function) and "server" in item.fixturenames:
        item.add_marker(pytest.mark.long)


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Yield a function that opens a store by its URI through the plugin's providers; close the stores at the end."""
    opened_stores: list[ObjectStore] = []

    def open_(
        uri: str,
        options: Mapping[str, object] | None = None,
        *,
        env: Env | None = None,
        read_only: bool = False,
        section: Section | None = None,
        limits: Limits | None = None,
    ) -> ObjectStore:
        world = env or Env()
        context = OpenContext(
            env=world,
            limits=limits or Limits(),
            handles=HandlePool(world.files, 8),
            codecs=CodecTable(),
            location=uri,
            options=options or {},
            read_only=read_only,
            section=section,
        )
        scheme = uri.partition(":")[0]
        provider = next(candidate for candidate in stratalog_object_stores() if scheme in candidate.schemes)
        opened_stores.append(provider.open(context))
        return opened_stores[-1]

    yield open_
    for store in opened_stores:
        store.close()


@pytest.fixture
def deadline_ns() -> int:
    """Return a deadline that is late enough for any test."""
    return Env().clock.monotonic_ns() + 60_000_000_000


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes | None], str]]:
    """Yield a function that starts a server and returns its endpoint.

    The server answers every request with the same bytes. If they are None, it never answers.
    """
    with contextlib.ExitStack() as stack:

        def start(answer: bytes | None) -> str:
            server = stack.enter_context(_RawServer(answer))
            return f"http://127.0.0.1:{server.port}"

        yield start


class _RawServer:
    """Server of one connection at a time, which reads a whole request before it answers.

    A client that gets the answer earlier may keep the rest of the body in memory.
    """

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # ends the wait in accept
        self._listening.close()
        self._thread.join()
        for connection in self._held:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            if self._answer is None:
                self._held.append(connection)
                continue
            with connection, contextlib.suppress(ConnectionError):
                _read_request(connection)
                connection.sendall(self._answer)


def _read_request(connection: socket.socket) -> None:
    with connection.makefile("rb") as request:
        head = dict[bytes, bytes]()
        while line := request.readline().strip():
            name, _, value = line.partition(b":")
            head[name.lower()] = value.strip()
        if b"expect" in head:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        left_bytes = int(head.get(b"content-length", b"0"))
        while left_bytes and (data := request.read(min(left_bytes, 65_536))):
            left_bytes -= len(data)


@pytest.fixture(scope="module")
def proxy(local_s3: LocalS3) -> Iterator[FaultProxy]:
    """Yield a proxy in front of the S3 server of the session."""
    port = urlsplit(local_s3.endpoint_url).port
    assert port is not None
    with fault_proxy(port) as started:
        yield started


@pytest.fixture(scope="module")
def stores(proxy: FaultProxy, local_s3: LocalS3) -> Iterator[tuple[ObjectStore, ObjectStore]]:
    """Yield two connected stores on one bucket: one behind the proxy, and one without it."""
    from stratalog_s3.s3 import open_s3  # noqa: PLC0415 - slow to import

    def opened(endpoint_url: str) -> ObjectStore:
        env = Env()
        return open_s3(
            OpenContext(
                env=env,
                limits=Limits(),
                handles=HandlePool(env.files, 8),
                codecs=CodecTable(),
                location=local_s3.uri("matrix"),
                options={**local_s3.options, "endpoint_url": endpoint_url},
                section=S3Section(part_bytes=MIN_PART_BYTES),
            )
        )

    with opened(proxy.endpoint_url) as proxied_store, opened(local_s3.endpoint_url) as direct_store:
        # Connects before a deadline is measured.
        proxied_store.list("", deadline_ns=Env().clock.monotonic_ns() + 30_000_000_000)
        yield proxied_store, direct_store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Yield the second S3 server, which is built with Go."""
    try:
        with gateway(tmp_path_factory.mktemp("gateway")) as started:
            yield started
    except NoGatewayError as error:
        missing(Requirement.S3_SERVER, f"no second S3 server: {error}")
