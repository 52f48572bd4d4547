from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import pytest

from stratalog.spi import CodecTable, Env, HandlePool, Limits, ObjectStore, OpenContext, Section
from stratalog_s3 import stratalog_object_stores

OpenStore = Callable[..., ObjectStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens stores by URI through the plugin's providers, and closes them."""
    opened: list[ObjectStore] = []

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
        provider = next(found for found in stratalog_object_stores() if scheme in found.schemes)
        opened.append(provider.open(context))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def deadline_ns() -> int:
    """Long enough for any test."""
    return Env().clock.monotonic_ns() + 60_000_000_000


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes | None], str]]:
    """Starts servers that answer every request with the same bytes, or (None) never; gives their endpoint."""
    with contextlib.ExitStack() as stack:

        def start(answer: bytes | None) -> str:
            server = stack.enter_context(_RawServer(answer))
            return f"http://127.0.0.1:{server.port}"

        yield start


class _RawServer:
    """One connection at a time; a request is read to the end of its head."""

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
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes accept
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
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65_536)
                connection.sendall(self._answer)
