"""Ranged GETs that bypass aiohttp: a thread receives each body directly into the returned bytes.

Like all other requests, these requests are built and signed by aiobotocore, which also parses their responses. Only the
transfer is different. aiohttp copies a body four times on the thread of the event loop, which limits the total
throughput of many readers. This module copies each body once, on a thread that does not hold the interpreter lock
during the copy.

The import of aiobotocore is slow. Import this module only when a store connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
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
from botocore.httpsession import MAX_POOL_CONNECTIONS, ProxyConfiguration, create_urllib3_context, get_cert_path
from urllib3.util import wait_for_read

from stratalog_s3.tls import check_bundle

_RANGE: Final = re.compile(r"bytes=([0-9]+)-([0-9]+)\Z")
_ERROR_BYTES: Final = 64 << 10  # maximum length of an error body that is read
_IDLE_S: Final = 12.0  # as in aiobotocore, idle connections are not reused after this time
_DEFAULT_PORTS: Final = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}
_ALLOWED_ARGUMENTS: Final = frozenset({"keepalive_timeout"})  # connector argument that aiobotocore itself sets
_Connection: TypeAlias = http.client.HTTPConnection


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _RangedGet:
    """A signed request, and the maximum size of the response's body."""

    origin: _Origin
    target: str
    headers: Mapping[str, str]
    most_bytes: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """Response to a request. ``body`` is None (not read) if its length is unknown or above the requested length."""

    status: int
    headers: dict[str, str]
    body: bytes | None


class _Connections:
    """Idle connections for reuse. Thread-safe. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Origin, list[tuple[float, _Connection]]] = {}  # oldest first; under _lock
        self._closed = False  # under _lock

    def take(self, origin: _Origin, now_s: float) -> _Connection | None:
        """Return an idle connection that was used in the last 12 s and seems to be open, or None."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                if not idle:
                    return None
                since_s, connection = idle.pop()
            if now_s - since_s < _IDLE_S and not _has_ended(connection):
                return connection
            connection.close()

    def give_back(self, origin: _Origin, connection: _Connection, now_s: float) -> None:
        """Keep a connection for reuse.

        No request may be in progress on it. After ``close``, close the connection instead.
        """
        stale: list[_Connection] = []
        with self._lock:
            if self._closed:
                stale.append(connection)
            else:
                idle = self._idle.setdefault(origin, [])
                while idle and now_s - idle[0][0] >= _IDLE_S:
                    stale.append(idle.pop(0)[1])
                idle.append((now_s, connection))
        for stale_connection in stale:
            stale_connection.close()

    def close(self) -> None:
        """Close the idle connections. Each connection that is given back later is closed, too."""
        with self._lock:
            self._closed = True
            idle = [connection for entries in self._idle.values() for _, connection in entries]
            self._idle.clear()
        for connection in idle:
            connection.close()


class _Transfer:
    """One request in progress on a thread. Any other thread may call ``abort``."""

    def __init__(self, request: _RangedGet, connections: _Connections, session: DirectSession, now_s: float) -> None:
        self._request, self._connections, self._session, self._now_s = request, connections, session, now_s
        self._lock = threading.Lock()
        self._connection: _Connection | None = None  # under _lock
        self._aborted = False  # under _lock

    def run(self) -> _Answer:
        """Send the request, and return the response. If a reused connection is closed, retry on a new connection."""
        reused = self._connections.take(self._request.origin, self._now_s)
        if reused is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                return self._send_on(reused)
        return self._send_on(self._session.connection(self._request.origin))

    def abort(self) -> None:
        """Abort the request: ``run``, on another thread, soon raises an error."""
        with self._lock:
            self._aborted = True
            connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _send_on(self, connection: _Connection) -> _Answer:
        is_reusable = False
        try:
            if connection.sock is None:
                self._session.connect(connection)
            with self._lock:
                if self._aborted:
                    raise TimeoutError("given up")
                self._connection = connection
            connection.request("GET", self._request.target, headers=self._request.headers)
            response = connection.getresponse()
            answer = _read_response(response, self._request.most_bytes)
            is_reusable = response.isclosed() and not response.will_close
        finally:
            with self._lock:
                self._connection = None
                is_reusable = is_reusable and not self._aborted
            if is_reusable:
                self._connections.give_back(self._request.origin, connection, self._now_s)
            else:
                connection.close()
        return answer


class _Body:
    """A received body, with the interface of aiohttp's body."""

    def __init__(self, url: str, data: bytes | None) -> None:
        self.url, self._data = url, data
        self.content = self

    async def read(self, amount: int = -1) -> bytes:
        """Return up to ``amount`` bytes, or all remaining bytes if ``amount`` is negative."""
        data = self._data or b""
        if amount < 0:
            self._data = b""
            return data
        self._data = data[amount:]
        return data[:amount]

    def at_eof(self) -> bool:
        """Return True if no bytes are left."""
        return not self._data

    def close(self) -> None:
        """Release the remaining bytes."""
        self._data = b""


@dataclass(frozen=True, slots=True)
class _Reads:
    """Settings of the connections. They come from the arguments that aiobotocore passes to a session.

    ``is_default`` is False if the user configured aiohttp's connector. All requests then use aiohttp.
    """

    verify: bool | str
    threads: int
    connect_s: float | None
    read_s: float | None
    certificate: tuple[str, ...]
    proxies: ProxyConfiguration
    is_default: bool

    @classmethod
    def of(
        cls,
        *,
        verify: bool | str = True,
        timeout: float | Sequence[float] | None = None,
        max_pool_connections: int = MAX_POOL_CONNECTIONS,
        client_cert: str | tuple[str, str] | None = None,
        proxies: Mapping[str, str] | None = None,
        proxies_config: Mapping[str, Any] | None = None,
        connector_args: Mapping[str, Any] | None = None,
        **ignored: Any,
    ) -> _Reads:
        """Return the settings. Other arguments are ignored."""
        del ignored
        connect_s, read_s = timeout if isinstance(timeout, list | tuple) else (timeout, timeout)
        return cls(
            verify,
            max_pool_connections,
            connect_s,
            read_s,
            (client_cert,) if isinstance(client_cert, str) else client_cert or (),
            ProxyConfiguration(proxies, proxies_config),
            set(connector_args or ()) <= _ALLOWED_ARGUMENTS,
        )


class DirectSession(AIOHTTPSession):  # type: ignore[misc]  # published without types
    """HTTP session of an S3 client that sends ranged GETs with an end, such as ``bytes=0-9``, on its own threads.

    All other requests use aiohttp. If a proxy applies, or the user configured the connector, ranged GETs use aiohttp,
    too. aiobotocore receives this class as ``http_session_cls`` of its configuration.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._reads = _Reads.of(**arguments)
        # no setting of botocore, from any source, may switch off the verification
        check_bundle(self._reads.verify or False, "verify")
        self._connections = _Connections()
        self._threads = ThreadPoolExecutor(self._reads.threads, "stratalog-s3-read")
        self._context: ssl.SSLContext | None = None  # two threads may both create it, which does no harm

    async def __aexit__(self, *details: object) -> None:
        """Close all idle connections. Requests in progress continue, and close their connections at the end."""
        self._connections.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await super().__aexit__(*details)

    async def send(self, request: Any) -> Any:
        """Send one request, and return the response. Raises the errors of the base class."""
        ranged_get = self._ranged_get(request)
        if ranged_get is None:
            return await super().send(request)
        loop = asyncio.get_running_loop()
        transfer = _Transfer(ranged_get, self._connections, self, loop.time())
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
        except ValueError:  # the error shows the header, which may be a token
            raise HTTPClientError(error="a header contains a forbidden character") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
        return AioAWSResponse(request.url, answer.status, answer.headers, _Body(request.url, answer.body))

    def connection(self, origin: _Origin) -> _Connection:
        """Return a new connection that is not opened yet."""
        timeout_s = self._reads.connect_s
        if origin.scheme == "http":
            return http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
        context = self._context = self._context or self._make_context()
        return http.client.HTTPSConnection(origin.host, origin.port, timeout=timeout_s, context=context)

    def connect(self, connection: _Connection) -> None:
        """Open the connection.

        Raises:
            _NeverConnectedError: the connection could not be opened. No request was sent.
        """
        url = f"{connection.host}:{connection.port}"
        try:
            connection.connect()
        except TimeoutError as error:
            raise _NeverConnectedError(ConnectTimeoutError(endpoint_url=url, error=error)) from error
        except ssl.SSLEOFError as error:  # the server has closed the connection; other TLS errors are not converted
            raise _NeverConnectedError(EndpointConnectionError(endpoint_url=url, error=error)) from error
        except ssl.SSLError as error:
            raise _NeverConnectedError(SSLError(endpoint_url=url, error=error)) from error
        except OSError as error:
            raise _NeverConnectedError(EndpointConnectionError(endpoint_url=url, error=error)) from error
        connection.sock.settimeout(self._reads.read_s)

    def _ranged_get(self, request: Any) -> _RangedGet | None:
        """Return the request if this class can send it; None if the base class must send it."""
        if request.method != "GET" or not request.stream_output:
            return None
        headers = {name: _text(value) for name, value in request.headers.items()}
        match = _RANGE.match(next((value for name, value in headers.items() if name.lower() == "range"), ""))
        parts = urlsplit(request.url)
        if match is None or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            return None
        if self._reads.proxies.proxy_url_for(request.url) or not self._reads.is_default:
            return None
        origin = _Origin(parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        return _RangedGet(origin, target, headers, int(match[2]) + 1 - int(match[1]))

    def _make_context(self) -> ssl.SSLContext:
        """Return the TLS context of the base class, but always with verification of certificates."""
        context: ssl.SSLContext = create_urllib3_context()
        context.check_hostname = True
        authorities = get_cert_path(self._reads.verify)
        if authorities:
            context.load_verify_locations(authorities)
        if self._reads.certificate:
            context.load_cert_chain(*self._reads.certificate)
        return context


class _NeverConnectedError(Exception):
    """A connection could not be opened. ``problem`` is botocore's error."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _read_response(response: http.client.HTTPResponse, most_bytes: int) -> _Answer:
    """Return a response with its body. The body is None if its length is unknown or above ``most_bytes``."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    if response.status >= http.client.MULTIPLE_CHOICES:
        return _Answer(response.status, headers, response.read(_ERROR_BYTES))
    if response.length is None or response.length > most_bytes:
        return _Answer(response.status, headers, None)
    headers.pop("last-modified", None)  # nothing reads it, and botocore takes a tenth of the time of a GET to parse it
    return _Answer(response.status, headers, response.read())


def _has_ended(connection: _Connection) -> bool:
    """Return True if an idle connection cannot be reused: the server has closed it, or has sent unexpected bytes."""
    if connection.sock is None:
        return True
    try:
        return wait_for_read(connection.sock, timeout=0)
    except (OSError, ValueError):
        return True


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
