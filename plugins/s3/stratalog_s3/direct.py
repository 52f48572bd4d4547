"""Ranged GETs past aiohttp: a thread a request receives straight into the bytes that are returned.

Requests are made, signed and understood by aiobotocore as all others are; only who sends them is another. aiohttp copies
a body four times on the one thread that runs the event loop, and so that thread, not the network, bounds what many
readers get together. Here each body is copied once, out of the kernel (and decrypted, where that is to be done), by a
thread that holds no lock of the interpreter meanwhile.

Imported when a store connects, never before: aiobotocore is slow to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import create_urllib3_context, get_cert_path
from urllib3.util import wait_for_read

from stratalog_s3.tls import checked_bundle

_RANGE: Final = re.compile(r"bytes=([0-9]+)-([0-9]+)\Z")
_ERROR_BYTES: Final = 64 << 10  # of what a store says when it refuses
_IDLE_S: Final = 12.0  # after which a connection is not used again, as aiobotocore's own
_DEFAULT_PORTS: Final = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}
_USUAL: Final = frozenset({"keepalive_timeout"})  # what aiobotocore tells a connector by itself
_Connection: TypeAlias = http.client.HTTPConnection


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A signed request, and how many bytes may come."""

    origin: _Origin
    target: str
    headers: Mapping[str, str]
    most_bytes: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came; a body that is longer than what was asked for is not read, and None."""

    status: int
    headers: dict[str, str]
    body: bytes | None


class _Connections:
    """Kept connections. Thread-safe; moments are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Origin, list[tuple[float, _Connection]]] = {}  # oldest first; under _lock
        self._closed = False  # under _lock

    def take(self, origin: _Origin, now_s: float) -> _Connection | None:
        """One that was used lately and is still open, as far as can be seen; None if there is none."""
        while True:
            with self._lock:
                kept = self._idle.get(origin)
                if not kept:
                    return None
                since_s, connection = kept.pop()
            if now_s - since_s < _IDLE_S and not _has_ended(connection):
                return connection
            connection.close()

    def give_back(self, origin: _Origin, connection: _Connection, now_s: float) -> None:
        """Keep one on which nothing is under way."""
        stale: list[_Connection] = []
        with self._lock:
            if self._closed:
                stale.append(connection)
            else:
                kept = self._idle.setdefault(origin, [])
                while kept and now_s - kept[0][0] >= _IDLE_S:
                    stale.append(kept.pop(0)[1])
                kept.append((now_s, connection))
        for each in stale:
            each.close()

    def close(self) -> None:
        """Close what is idle, and what comes back from now on."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for _, connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()


class _Transfer:
    """One request on its way, on a thread. ``abort`` may be called on any other."""

    def __init__(self, wanted: _Wanted, connections: _Connections, session: DirectSession, now_s: float) -> None:
        self._wanted, self._connections, self._session, self._now_s = wanted, connections, session, now_s
        self._lock = threading.Lock()
        self._connection: _Connection | None = None  # under _lock
        self._aborted = False  # under _lock

    def run(self) -> _Answer:
        """Send it and receive the answer; a kept connection that has ended costs another one."""
        kept = self._connections.take(self._wanted.origin, self._now_s)
        if kept is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                return self._on(kept)
        return self._on(self._session.connection(self._wanted.origin))

    def abort(self) -> None:
        """Have ``run`` end soon, with an error."""
        with self._lock:
            self._aborted = True
            connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _on(self, connection: _Connection) -> _Answer:
        is_reusable = False
        try:
            if connection.sock is None:
                self._session.connect(connection)
            with self._lock:
                if self._aborted:
                    raise TimeoutError("given up")
                self._connection = connection
            connection.request("GET", self._wanted.target, headers=self._wanted.headers)
            response = connection.getresponse()
            answer = _received(response, self._wanted.most_bytes)
            is_reusable = response.isclosed() and not response.will_close
        finally:
            with self._lock:
                self._connection = None
                is_reusable = is_reusable and not self._aborted
            if is_reusable:
                self._connections.give_back(self._wanted.origin, connection, self._now_s)
            else:
                connection.close()
        return answer


class _Body:
    """A body that has come already, as aiobotocore reads one of aiohttp's."""

    def __init__(self, url: str, data: bytes | None) -> None:
        self.url, self._data = url, data
        self.content = self

    async def read(self, amount: int = -1) -> bytes:
        """Up to so many bytes of it, all if negative."""
        data = self._data or b""
        if amount < 0:
            self._data = b""
            return data
        self._data = data[amount:]
        return data[:amount]

    def at_eof(self) -> bool:
        """Whether nothing is left."""
        return not self._data

    def close(self) -> None:
        """Let go of what is left."""
        self._data = b""


class DirectSession(AIOHTTPSession):  # type: ignore[misc]  # published without types
    """The HTTP session of an S3 client: bounded ranged GETs go on threads of its own, all else as ever.

    So does everything where a proxy is to be used, or where the user has said how to connect. Given to aiobotocore as
    ``http_session_cls`` of its configuration.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        checked_bundle(self._verify or False, "verify")  # from wherever botocore has it
        self._connections = _Connections()
        self._threads = ThreadPoolExecutor(self._max_pool_connections, "stratalog-s3-read")
        self._context: ssl.SSLContext | None = None  # making it twice in a race does no harm

    async def __aexit__(self, *details: object) -> None:
        """Close all connections; what is under way ends by itself."""
        self._connections.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await super().__aexit__(*details)

    async def send(self, request: Any) -> Any:
        """One request, and its body if it came so; errors are botocore's, as of the session below."""
        wanted = self._wanted(request)
        if wanted is None:
            return await super().send(request)
        loop = asyncio.get_running_loop()
        transfer = _Transfer(wanted, self._connections, self, loop.time())
        try:
            answer = await loop.run_in_executor(self._threads, transfer.run)
        except asyncio.CancelledError:
            transfer.abort()
            raise
        except _NeverConnectedError as error:
            raise error.problem from error.__cause__
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except ssl.SSLError as error:
            raise SSLError(endpoint_url=request.url, error=error) from error
        except ValueError:  # it shows the header, which may be a token
            raise HTTPClientError(error="a header holds what no header may") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
        return AioAWSResponse(request.url, answer.status, answer.headers, _Body(request.url, answer.body))

    def connection(self, origin: _Origin) -> _Connection:
        """A new connection, not opened yet."""
        timeout_s = self._timeout.sock_connect
        if origin.scheme == "http":
            return http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
        context = self._context = self._context or self._made_context()
        return http.client.HTTPSConnection(origin.host, origin.port, timeout=timeout_s, context=context)

    def connect(self, connection: _Connection) -> None:
        """Open it.

        Raises:
            _NeverConnectedError: that failed: no request has left.
        """
        url = f"{connection.host}:{connection.port}"
        try:
            connection.connect()
        except TimeoutError as error:
            raise _NeverConnectedError(ConnectTimeoutError(endpoint_url=url, error=error)) from error
        except ssl.SSLError as error:
            raise _NeverConnectedError(SSLError(endpoint_url=url, error=error)) from error
        except OSError as error:
            raise _NeverConnectedError(EndpointConnectionError(endpoint_url=url, error=error)) from error
        connection.sock.settimeout(self._timeout.sock_read)

    def _wanted(self, request: Any) -> _Wanted | None:
        """What to do here; None if it is for the session below."""
        if request.method != "GET" or not request.stream_output:
            return None
        headers = {name: _text(value) for name, value in request.headers.items()}
        found = _RANGE.match(next((value for name, value in headers.items() if name.lower() == "range"), ""))
        parts = urlsplit(request.url)
        if found is None or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            return None
        if self._proxy_config.proxy_url_for(request.url) or not set(self._connector_args) <= _USUAL:
            return None
        origin = _Origin(parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        return _Wanted(origin, target, headers, int(found[2]) + 1 - int(found[1]))

    def _made_context(self) -> ssl.SSLContext:
        """As the session below makes it; certificates are always verified."""
        context: ssl.SSLContext = create_urllib3_context()
        context.check_hostname = True
        authorities = get_cert_path(self._verify)
        if authorities:
            context.load_verify_locations(authorities)
        if self._cert_file:
            context.load_cert_chain(self._cert_file, self._key_file)
        return context


class _NeverConnectedError(Exception):
    """No connection came to be; ``problem`` is botocore's error for it."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


def with_direct_reads(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for s3fs with this session, unless the user has named another one."""
    config = options["config_kwargs"]
    return {**options, "config_kwargs": {"http_session_cls": DirectSession, **config}}


def _received(response: http.client.HTTPResponse, most_bytes: int) -> _Answer:
    """An answer with its body, unless that is longer than it may be or does not say how long it is."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    if response.status >= http.client.MULTIPLE_CHOICES:
        return _Answer(response.status, headers, response.read(_ERROR_BYTES))
    if response.length is None or response.length > most_bytes:
        return _Answer(response.status, headers, None)
    return _Answer(response.status, headers, response.read())


def _has_ended(connection: _Connection) -> bool:
    """Whether the other side has closed an idle connection, or says what nobody asked for."""
    if connection.sock is None:
        return True
    try:
        return wait_for_read(connection.sock, timeout=0)
    except (OSError, ValueError):
        return True


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
