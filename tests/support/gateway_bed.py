"""A gateway over a folder, and a client that sends single requests to it."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from stratalog import Engine, Record, Transfer, open_engine
from stratalog.env import Env
from stratalog.env.clock import SystemClock
from stratalog.env.closing import Closeable
from stratalog.spi import BatchHeader
from stratalog_gateway.error_codes import RefusedError
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.handlers.dispatch import APIS
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.fetch_codec import Piece

ANSWER_SECONDS: Final = 30
NOW_MS: Final = 1_700_000_000_000
_HEAD: Final = struct.Struct(">hhih")
_NUMBERS: Final = {found.name: number for number, found in APIS.items()}


@contextlib.contextmanager
def served(
    directory: Path,
    *,
    tier: str | None = None,
    topic_defaults: Mapping[str, object] | None = None,
    env: Env | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Open an engine and serve it on a free port."""
    with open_engine(directory, tier=tier, topic_defaults=topic_defaults, env=env) as engine:
        gateway = Gateway(engine, GatewaySection(**{"port": 0, **settings}), SystemClock())
        gateway.start()
        try:
            yield Served(engine, gateway)
        finally:
            gateway.stop()


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """Return the error code of the RefusedError that a call raises; 0 if the call raises no error."""
    try:
        call(*arguments, **named)
    except RefusedError as error:
        return error.kafka_code
    return 0


class Served:
    """An engine, and the gateway that serves it."""

    def __init__(self, engine: Engine, gateway: Gateway) -> None:
        self.engine, self.bootstrap, self.addresses = engine, gateway.address, gateway.addresses

    def wire(self, listener: str | None = None) -> Wire:
        """Return a new connection to the listener of this name, or to the first listener."""
        return Wire(self.bootstrap if listener is None else self.addresses[listener])

    def batch(
        self, values: Iterable[bytes], *, producer: tuple[int, int, int] = (-1, -1, -1), transactional: bool = False
    ) -> bytes:
        """Return an encoded batch for the topic ``orders``. ``producer`` is producer id, epoch and base sequence."""
        header = BatchHeader(
            producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2], transactional=transactional
        )
        form = self.engine.log("orders", 0).components.formats.of(2, "", 0)
        return bytes(form.encode([Record(timestamp_ms=NOW_MS, value=value) for value in values], header, None, None))


class Wire(Closeable):
    """One connection, for one thread."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)

    def ask(self, api: str, version: int, /, **values: Any) -> Any:
        """Send a request with these field values, and return the response message."""
        self.send(request(api, version, values))
        frame = self.receive()
        assert frame is not None
        return response(api, version, frame)

    def send(self, frame: bytes) -> None:
        """Send a frame, preceded by its size."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send_raw(self, data: bytes) -> None:
        """Send bytes without a size in front of them."""
        self._socket.sendall(data)

    def end(self) -> None:
        """Close the sending direction of the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> bytes | None:
        """Return the next frame without its size; None if the gateway closed the connection."""
        try:
            head = self._exactly(4)
            return None if head is None else self._exactly(struct.unpack(">i", head)[0])
        except ConnectionResetError:
            return None

    def receive_raw(self) -> bytes:
        """Return the bytes of one ``recv``; b"" if the gateway closed the connection."""
        try:
            return self._socket.recv(4096)
        except ConnectionResetError:
            return b""

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                return None
            data += chunk
        return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    """Return an object for a nested field of a request; ``kind`` is the name of its class."""
    schema: Any = load_request_schema(_NUMBERS[api], version)
    return getattr(sys.modules[schema.__module__], kind)(**values)


def request(api: str, version: int, values: dict[str, Any]) -> bytes:
    """Return the frame of a request without its size. Its correlation id is 7."""
    schema: Any = load_request_schema(_NUMBERS[api], version)
    frame = io.BytesIO(_HEAD.pack(_NUMBERS[api], version, 7, 4) + b"test" + (b"\0" if schema.__flexible__ else b""))
    frame.seek(0, io.SEEK_END)
    writer: Any = entity_writer(schema)
    writer(frame, schema(**values))
    return frame.getvalue()


def frame_of(pieces: Iterable[Piece]) -> bytes:
    """Return the bytes of a response that consists of several pieces, with its size."""
    return b"".join(piece.read() if isinstance(piece, Transfer) else piece for piece in pieces)


def response(api: str, version: int, frame: bytes) -> Any:
    """Decode the response message of a frame."""
    schema: Any = load_response_schema(_NUMBERS[api], version)
    assert struct.unpack_from(">i", frame)[0] == 7
    start = 5 if schema.__flexible__ and api != "ApiVersions" else 4
    message, size = entity_reader(schema)(frame, start)
    assert start + size == len(frame)
    return message
