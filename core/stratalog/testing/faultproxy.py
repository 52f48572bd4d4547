"""HTTP proxy on loopback, between a client and an object store, that injects faults.

The proxy speaks plain HTTP/1.1 and knows the operation names of S3. ``Misdeed`` lists the faults, which networks,
proxies and overloaded stores can cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from stratalog.env.threads import Worker
from stratalog.testing.s3 import HOST, operation_of

_NO_BODY: Final = frozenset({"204", "304"})
_MAX_HEAD_BYTES: Final = 1 << 18
_DRIP_S: Final = 0.02
_ERROR: Final = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test asked</Message></Error>"


class Misdeed(Enum):
    """Fault that the proxy applies to a request or to its reply.

    STATUS returns an error and does not forward the request. RESET_BEFORE resets the connection before the server gets
    the request. RESET_AFTER resets it after the server has processed the request. SILENT forwards the request and never
    sends the reply. DRIP sends the reply byte by byte, and never the last byte. CUT ends the reply in the middle of its
    body. FLIP flips a bit of the reply's body. STALE repeats the first reply to an equal GET; the first GET gets its
    normal reply. GARBAGE replies with bytes that are not HTTP. UNCONDITIONAL removes ``If-None-Match`` from the
    request, as if the server ignored this header.
    """

    STATUS = auto()
    RESET_BEFORE = auto()
    RESET_AFTER = auto()
    SILENT = auto()
    DRIP = auto()
    CUT = auto()
    FLIP = auto()
    STALE = auto()
    GARBAGE = auto()
    UNCONDITIONAL = auto()


@dataclass(slots=True)
class ProxyFault:
    """One fault and the requests to which it applies.

    Attributes:
        do: the fault.
        operation: S3's name of the requests, for example ``GetObject``; "" matches all requests.
        times: number of matching requests to which the fault applies; later requests are forwarded without it.
        passes: number of matching requests to forward before the fault first applies; the proxy counts it down to 0.
        status: HTTP status of the reply, for ``Misdeed.STATUS``.
        code: S3's error code in the reply, for ``Misdeed.STATUS``.
        headers: additional headers of the reply, for ``Misdeed.STATUS``, each with its line end.
        hits: number of requests to which the fault has applied so far.
    """

    do: Misdeed
    operation: str = ""
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    headers: str = ""
    hits: int = 0
    passes: int = 0


@dataclass(slots=True)
class FaultProxy:
    """Running proxy; the context manager that started it stops it.

    Attributes:
        endpoint_url: ``http://127.0.0.1:port``.
        counts: number of requests so far, by S3's name of the operation.
        faults: faults that ``plan`` has added since the last ``heal``.
    """

    endpoint_url: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[ProxyFault] = field(default_factory=list, repr=False)

    def plan(self, *faults: ProxyFault) -> None:
        """Add faults for the next matching requests. If several faults match a request, the oldest one applies."""
        self.faults = [*self.faults, *faults]

    def heal(self) -> None:
        """Remove all planned faults."""
        self.faults = []

    def _due(self, operation: str) -> ProxyFault | None:
        self.counts[operation] += 1
        for fault in self.faults:
            if fault.operation not in {"", operation} or fault.hits >= fault.times:
                continue
            if fault.passes:
                fault.passes -= 1
                continue
            fault.hits += 1
            return fault
        return None


@contextlib.contextmanager
def fault_proxy(upstream_port: int) -> Iterator[FaultProxy]:
    """Run a proxy until the ``with`` block ends, and yield it. It forwards requests to ``upstream_port`` on loopback.

    The proxy listens on a free port of loopback and runs in its own thread.
    """
    loop = asyncio.new_event_loop()
    worker = Worker("stratalog-fault-proxy")
    worker.submit(loop.run_forever)
    listening = socket.create_server((HOST, 0))
    proxy = FaultProxy(f"http://{HOST}:{listening.getsockname()[1]}")
    serving = _Serving(proxy, upstream_port)
    server = _on(loop, asyncio.start_server(serving.connection, sock=listening, limit=_MAX_HEAD_BYTES)).result()
    try:
        yield proxy
    finally:
        _on(loop, serving.stop(server)).result()
        loop.call_soon_threadsafe(loop.stop)
        worker.close()
        loop.close()


def _on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(call, loop)


class _Message(NamedTuple):
    """Request or reply: words of the first line, received head, parsed headers, received body."""

    words: tuple[str, ...]
    head: bytes
    headers: dict[str, str]
    body: bytes


class _Serving:
    """Connection handling on the proxy's event loop."""

    def __init__(self, proxy: FaultProxy, upstream_port: int) -> None:
        self._proxy, self._upstream_port = proxy, upstream_port
        self._first: dict[tuple[str, ...], _Message] = {}
        self._tasks: set[asyncio.Task[Any] | None] = set()  # the event loop has only weak references to tasks

    async def stop(self, server: asyncio.Server) -> None:
        """Stop listening, cancel the tasks of all connections, and wait until they have ended."""
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until the client disconnects or a fault ends the connection."""
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._request(reader, writer):
                await writer.drain()
        writer.close()
        self._tasks.discard(task)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; return True if the connection stays open."""
        request = await _read(reader, writer)
        path, _, query = request.words[1].partition("?")
        environ = {"REQUEST_METHOD": request.words[0], "PATH_INFO": path, "QUERY_STRING": query}
        fault = self._proxy._due(operation_of(environ))  # noqa: SLF001 - a method of this module's class
        if fault is None:
            reply = await self._forward(request)
            writer.write(reply.head + reply.body)
            return True
        return await self._misdo(fault, request, reader, writer)

    async def _misdo(
        self, fault: ProxyFault, request: _Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if fault.do is Misdeed.STATUS:
            writer.write(_refusal(fault, with_body=request.words[0] != "HEAD"))
            return True
        if fault.do is Misdeed.RESET_BEFORE:
            return _reset(writer)
        stale = self._first.get(request.words) if fault.do is Misdeed.STALE and request.words[0] == "GET" else None
        if fault.do is Misdeed.UNCONDITIONAL:
            request = request._replace(head=_remove_header(request.head, b"if-none-match"))
        reply = stale or await self._forward(request)
        if fault.do is Misdeed.RESET_AFTER:
            return _reset(writer)
        if fault.do is Misdeed.SILENT:
            await reader.read()  # until the client disconnects
            return False
        if fault.do is Misdeed.GARBAGE:
            writer.write(b"\0\1\2 what is this\r\n\r\n")
            return False
        if fault.do is Misdeed.CUT:
            writer.write(reply.head + reply.body[: len(reply.body) // 2])
            await writer.drain()
            return False
        if fault.do is Misdeed.DRIP:
            await _drip(reply, writer)
            await reader.read()
            return False
        body = _flip_bit(reply.body) if fault.do is Misdeed.FLIP else reply.body
        writer.write(reply.head + body)
        return True

    async def _forward(self, request: _Message) -> _Message:
        reader, writer = await asyncio.open_connection(HOST, self._upstream_port, limit=_MAX_HEAD_BYTES)
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            reply = await _read(reader, None, to_end=True, bodiless=request.words[0] == "HEAD")
        finally:
            writer.close()
        self._first.setdefault(request.words, reply)
        return reply


async def _drip(reply: _Message, writer: asyncio.StreamWriter) -> None:
    """Send the body, or half of the head if there is no body, byte by byte. Never send the last byte."""
    message = reply.head + reply.body
    start = len(reply.head) if reply.body else len(reply.head) // 2
    writer.write(message[:start])
    for position in range(start, len(message) - 1):
        writer.write(message[position : position + 1])
        await writer.drain()
        await asyncio.sleep(_DRIP_S)


async def _read(
    reader: asyncio.StreamReader, client: asyncio.StreamWriter | None, *, to_end: bool = False, bodiless: bool = False
) -> _Message:
    """Return the next message: a request of ``client``, or a reply if ``client`` is None.

    ``Expect: 100-continue`` of a client is answered and removed. ``bodiless`` is True for the reply to HEAD. For
    ``to_end``, see ``_body``.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    words = tuple(first.split(" "))
    if client is not None and headers.get("expect", "").lower() == "100-continue":
        client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = _remove_header(head, b"expect")
    if client is None and words[1] == "100":
        return await _read(reader, None, to_end=to_end, bodiless=bodiless)
    none = bodiless or (client is None and words[1] in _NO_BODY)
    return _Message(words, head, headers, b"" if none else await _body(reader, headers, to_end=to_end))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], *, to_end: bool) -> bytes:
    """Return the received bytes of the body. With ``to_end``, a body without a length ends with the connection."""
    if "chunked" in headers.get("transfer-encoding", ""):
        body, size = b"", -1
        while size:
            line = await reader.readline()
            size = int(line.split(b";")[0], 16)
            body += line + await reader.readexactly(size + 2)
        return body
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read() if to_end else b""


def _remove_header(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(name + b":"))


def _flip_bit(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0x01]) + body[middle + 1 :] if body else body


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Reset the TCP connection (RST) instead of closing it. Return False: the connection does not stay open."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


def _refusal(fault: ProxyFault, *, with_body: bool) -> bytes:
    body = _ERROR.format(code=fault.code).encode() if with_body else b""
    head = f"HTTP/1.1 {fault.status} As Asked\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{fault.headers}\r\n".encode() + body
