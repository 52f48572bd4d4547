"""Listeners, which run one thread for each connection.

As in Kafka, the requests of a connection are answered in order, one at a time.
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from typing import Final

from stratalog.errors import StorageError
from stratalog_gateway.connection import Connection, shut
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.handshake import EndpointHandshake
from stratalog_gateway.node import Node
from stratalog_gateway.poller import Poller
from stratalog_gateway.security.connection_quotas import ConnectionQuotas
from stratalog_gateway.security.endpoints import Endpoint
from stratalog_gateway.wire.primitives import MalformedRequestError

_LOGGER: Final = logging.getLogger(__name__)
_TIMEVAL: Final = struct.Struct("@ll")  # seconds, microseconds
_BACKLOG: Final = 1024
_WARNING_NS: Final = 1_000_000_000
_PAUSE_S: Final = 0.1  # pause after an error of accept


class Listener:
    """Server of one address, which accepts and serves connections from ``start`` to ``stop``.

    Args:
        endpoint: the address. The constructor replaces the port 0 by the port that the system has chosen.
        quotas: limits of connections, shared by all listeners.
    """

    def __init__(self, endpoint: Endpoint, handshake: EndpointHandshake, quotas: ConnectionQuotas, node: Node) -> None:
        self._handshake, self._quotas, self._clock = handshake, quotas, node.clock
        self._idle_ms, self._send_buffer_bytes = node.settings.idle_ms, node.settings.send_buffer_bytes
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        self._socket = socket.create_server((endpoint.host, endpoint.port), family=family, backlog=_BACKLOG)
        endpoint.port = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}  # under _lock
        self._stopping = threading.Event()  # set under _lock
        self._next_warning_ns = 0
        self._poller = Poller()
        self._thread = threading.Thread(target=self._accept_all, name="stratalog-gateway", daemon=True)

    def start(self) -> None:
        """Start to accept connections."""
        self._poller.start()
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Close the listening socket and all connections, and wait up to ``wait_s`` for each thread. Idempotent."""
        with self._lock:
            self._stopping.set()
            threads = [self._thread, *self._threads.values()]
            for open_socket in (self._socket, *self._threads):
                shut(open_socket)
        for thread in threads:
            if thread.ident is not None:
                thread.join(wait_s)
        self._poller.stop(wait_s)
        self._socket.close()

    def drop_all(self) -> None:
        """Close all connections. Clients can reconnect immediately."""
        with self._lock:
            for open_socket in self._threads:
                shut(open_socket)

    def _accept_all(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                _LOGGER.warning("a connection cannot be accepted: %s", error)
                self._stopping.wait(_PAUSE_S)
                continue
            self._accept(connection, peer[0], peer[1])
            pause_ms = self._quotas.pause_ms()
            if pause_ms:
                self._clock.wait(self._stopping, pause_ms)

    def _accept(self, connection: socket.socket, host: str, port: int) -> None:
        """Start the thread of a connection. If a limit is reached, close the connection instead."""
        limit = self._quotas.acquire(host)
        if limit:
            connection.close()
            self._warn_refused(limit, host)
            return
        thread = threading.Thread(
            target=self._serve, args=(connection, host), name=f"stratalog-gateway-{port}", daemon=True
        )
        with self._lock:
            self._threads[connection] = thread
            if self._stopping.is_set():
                shut(connection)
        try:
            thread.start()
        except RuntimeError:  # the system cannot start another thread
            _LOGGER.warning("a connection was closed: no thread can be started for it")
            self._forget(connection, host)

    def _warn_refused(self, limit: str, host: str) -> None:
        """Log a refused connection.

        At most one message is logged in a second, so that a flood does not fill the disk.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_warning_ns:
            self._next_warning_ns = now_ns + _WARNING_NS
            _LOGGER.warning("a connection was closed: the limit %s is reached host=%s", limit, host)

    def _serve(self, connection: socket.socket, host: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects a machine that has disappeared
            if self._send_buffer_bytes >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            connection = self._prepare_socket(connection)
            requests = self._handshake.perform(connection, host)
            self._answer_all(Connection(connection, requests))
        except (MalformedRequestError, StorageError) as error:
            _LOGGER.warning("a connection was closed: %s host=%s", error, host)
        except ssl.SSLError as error:
            _LOGGER.info("authentication failed: %s host=%s", error, host)
        except OSError as error:  # the client has disconnected, or was idle for too long
            _LOGGER.debug("a connection ended: %s host=%s", error, host)
        except BaseException:  # a SystemExit of a plugin would end this thread without a message
            _LOGGER.exception("a request failed, and its connection was closed")
        finally:
            self._forget(connection, host)

    def _prepare_socket(self, connection: socket.socket) -> socket.socket:
        """Set the timeouts of a connection, and return it; if the listener uses TLS, return a TLS socket."""
        with self._lock:  # under the lock, so that `stop` closes either the plain or the TLS socket
            wrapped = self._handshake.wrap_socket(connection)
            self._threads[wrapped] = self._threads.pop(connection)
            if self._stopping.is_set():
                shut(wrapped)
        if isinstance(wrapped, ssl.SSLSocket):
            wrapped.settimeout(self._idle_ms / 1000)
            return wrapped
        limit = _TIMEVAL.pack(self._idle_ms // 1000, self._idle_ms % 1000 * 1000)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # unlike settimeout, without further system calls
            wrapped.setsockopt(socket.SOL_SOCKET, option, limit)
        return wrapped

    def _forget(self, connection: socket.socket, host: str) -> None:
        with self._lock:
            self._threads.pop(connection, None)
        connection.close()
        self._quotas.release(host)

    def _answer_all(self, connection: Connection) -> None:
        """Answer requests until the client closes the connection, or a response has ``is_last``."""
        response = Response(())
        while not response.is_last:
            if connection.has_request():
                response = connection.answer()
            elif response.is_short and connection.is_quick and not connection.has_decrypted_bytes:
                response = self._poller.answer(connection, self._idle_ms / 1000)
            elif not connection.receive():
                return
            else:
                continue
            if response.throttle_ms:
                self._clock.wait(self._stopping, min(response.throttle_ms, self._idle_ms))
