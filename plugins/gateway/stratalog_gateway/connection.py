"""Connection of one client: it receives requests, answers them in order, and sends the responses."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final, Protocol

from stratalog import Transfer
from stratalog_gateway.handlers.dispatch import PRODUCE
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.wire.fetch_codec import Piece
from stratalog_gateway.wire.frames import Frames

_MAX_PIECES: Final = 512  # maximum number of pieces in one sendmsg; the system's limit is 1024
_MAX_TOGETHER: Final = 16  # maximum number of responses in one send
_LONG_REQUEST_S: Final = 0.002  # a longer request has probably waited for a disk or for another thread
_NO_RESPONSE: Final = Response(())
_LEAST_OWN: Final = 16  # number of requests after a slow request for which `is_quick` is False; doubled up to _MOST_OWN
_MOST_OWN: Final = 1024

# A TLS connection may have to read before it can send, or send before it can read.
_WOULD_BLOCK: Final = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class Requests(Protocol):
    """Handler of the requests of one connection. Not thread-safe."""

    @property
    def limit_bytes(self) -> int:
        """Maximum size of the next request (bytes)."""

    def __call__(self, frame: memoryview) -> Response:
        """Return the response to the request ``frame``, which has no size field. An error closes the connection."""


class Connection:
    """Connection of one client. Not thread-safe."""

    def __init__(self, client_socket: socket.socket, requests: Requests) -> None:
        self.socket, self._requests = client_socket, requests
        self._frames = Frames(requests.limit_bytes)
        self._unsent: list[Piece] = []
        self._answer_count = self._quick_from_count = 0  # counts of requests
        self._own_count = _LEAST_OWN  # number of requests after the next slow one for which `is_quick` is False

    @property
    def is_quick(self) -> bool:
        """True if the poller may answer the next request, because recent requests were short.

        False for some requests after a slow request: a request that took over 2 ms although its response was
        ``is_short``. These are 16 requests after the first slow one, because the system may only have interrupted the
        thread. Each further slow request doubles the number, up to 1,024. After 1,024 quick requests, it is 16 again.
        """
        return self._answer_count >= self._quick_from_count

    @property
    def has_decrypted_bytes(self) -> bool:
        """True if TLS has already decrypted bytes that ``receive`` can return.

        A selector does not report such bytes.
        """
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def receive(self) -> bool:
        """Receive bytes into the buffer, and return True. Return False if the client has closed the connection.

        Raise OSError if the connection fails, or if no bytes arrive before the socket's timeout.
        """
        count = self.socket.recv_into(self._frames.room())
        self._frames.add_received(count)
        return count > 0

    def has_request(self) -> bool:
        """Return True if all bytes of the next request were received.

        Raises:
            MalformedRequestError: the size of the next request is above the limit, or too small.
        """
        return self._frames.next_api() is not None

    def answer(self) -> Response:
        """Answer the next request, then up to 15 Produce requests that were already received, and send the responses.

        Call this method only if ``has_request`` returned True. After a response that is not ``is_short``, it answers no
        further requests. If a request fails, the method sends the earlier responses, and then raises the error.

        Returns:
            The last response. Its pieces have been sent, and its transfers have been released.
        """
        response = _NO_RESPONSE
        try:
            response = self._answer_without_sending()
        finally:
            try:
                self.flush()
            finally:
                response.release()
        return response

    def answer_without_waiting(self) -> Response | None:
        """Receive bytes, and answer the Produce requests that were received completely, without waiting for the client.

        The socket must be non-blocking, and the previous response must be ``is_short``.

        Returns:
            None if all received requests are answered: call this method again when bytes arrive. If the last response
            is not ``is_short``, the result is this response. If the client has closed the connection, the next request
            is not Produce, or the socket's buffer is full, the result is a response without pieces. After a result that
            is not None, the thread of the connection must make the socket blocking, call ``flush``, and answer the next
            requests itself.
        """
        while True:
            try:
                if not self.receive():
                    return _NO_RESPONSE
            except _WOULD_BLOCK:
                return None
            while (api := self._frames.next_api()) is not None:
                if api != PRODUCE:
                    return _NO_RESPONSE
                try:
                    response = self._answer_without_sending()
                finally:
                    self._send_without_waiting()
                if not response.is_short:
                    return response
                if self._unsent:
                    return _NO_RESPONSE
            if not self.has_decrypted_bytes:
                return None

    def flush(self) -> None:
        """Send the bytes of responses that ``answer_without_waiting`` could not send. The socket must be blocking."""
        unsent, self._unsent = self._unsent, []
        send_all(self.socket, unsent)

    def _answer_without_sending(self) -> Response:
        """Answer requests as ``answer`` does, but leave the sending of the responses to the caller.

        Return the last response. Its ``is_short`` is False if the request took more than 2 ms.
        """
        for _ in range(_MAX_TOGETHER):
            started_s = time.perf_counter()
            response = self._requests(self._frames.next())
            self._unsent += response.pieces
            self._frames.limit_bytes = self._requests.limit_bytes
            self._answer_count += 1
            if not response.is_short:
                break
            if time.perf_counter() - started_s > _LONG_REQUEST_S:
                if self._answer_count - self._quick_from_count > _MOST_OWN:
                    self._own_count = _LEAST_OWN
                self._quick_from_count = self._answer_count + self._own_count
                self._own_count = min(2 * self._own_count, _MOST_OWN)
                response = response._replace(is_short=False)
                break
            if self._frames.next_api() != PRODUCE:
                break
        return response

    def _send_without_waiting(self) -> None:
        """Send as many bytes as fit into the socket's buffer, and keep the other bytes for ``flush``.

        The responses must not contain transfers.
        """
        data = b"".join(piece for piece in self._unsent if not isinstance(piece, Transfer))
        unsent = send_now(self.socket, data) if data else None
        self._unsent = [unsent] if unsent else []


def send_now(connection: socket.socket, data: bytes) -> memoryview:
    """Send as many bytes as fit into the socket's buffer, without waiting, and return the other bytes.

    A TLS socket must be non-blocking. Raise OSError if the connection failed.
    """
    try:
        flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_DONTWAIT
        sent = connection.send(data, flags)
    except _WOULD_BLOCK:
        sent = 0
    return memoryview(data)[sent:]


def send_all(connection: socket.socket, pieces: Sequence[Piece]) -> None:
    """Send pieces of responses in order. Return when the socket's buffer has accepted all bytes.

    Raises:
        OSError: the connection failed, or its timeout has passed.
        SegmentGoneError: a piece is a transfer of a log that was truncated in the meantime.
    """
    in_memory: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if isinstance(piece, Transfer):
            _send(connection, in_memory, socket.MSG_MORE)
            in_memory = []
            piece.send(connection)
        else:
            in_memory.append(piece)
    _send(connection, in_memory, 0)


def _send(connection: socket.socket, pieces: Sequence[bytes | bytearray | memoryview], flags: int) -> None:
    if isinstance(connection, ssl.SSLSocket):
        for piece in pieces:
            connection.sendall(piece)
        return
    if len(pieces) == 1:
        connection.sendall(pieces[0], flags)
        return
    for start in range(0, len(pieces), _MAX_PIECES):
        part = pieces[start : start + _MAX_PIECES]
        sent = connection.sendmsg(part, (), flags)
        if sent == sum(map(len, part)):
            continue
        for piece in part:  # send each piece by itself: a join would copy up to 32 MiB
            if sent < len(piece):
                connection.sendall(memoryview(piece)[sent:], flags)
            sent = max(sent - len(piece), 0)


def shut(connection: socket.socket) -> None:
    """Shut down both directions of a connection. The socket stays open, and an OSError is ignored.

    A thread that reads from the connection receives the end of the stream.
    """
    # `SSLSocket.shutdown` would discard the TLS state that the reading thread may still need
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
