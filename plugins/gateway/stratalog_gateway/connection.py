"""The connection of one client: it receives requests, answers them in order, and sends the responses."""

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

_MAX_PIECES: Final = 512  # of one sendmsg; the system's limit is 1024
_TOGETHER: Final = 16  # responses to short requests in one send
_LONG_S: Final = 0.002  # a request that took so long has waited, for a disk or for another thread
_QUICK_AGAIN: Final = 1000  # number of requests after a long one that do not count as quick

# A TLS connection may have to read before it can send, and the reverse.
_WOULD_BLOCK: Final = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class Requests(Protocol):
    """Handler of the requests of one connection. For one thread at a time."""

    @property
    def limit_bytes(self) -> int:
        """Maximum size of the next request (bytes)."""

    def __call__(self, frame: memoryview) -> Response:
        """Return the response to a request, a frame without its size. May block. An error ends the connection."""


class Connection:
    """The connection of one client. For one thread at a time.

    Args:
        connection: the socket.
        requests: answers the requests.

    Attributes:
        socket: the socket.
    """

    def __init__(self, connection: socket.socket, requests: Requests) -> None:
        self.socket, self._requests = connection, requests
        self._frames = Frames(requests.limit_bytes)
        self._unsent: list[Piece] = []
        self._answered = self._quick_from = 0  # numbers of requests

    @property
    def is_quick(self) -> bool:
        """True if no short request took more than 2 ms among the last 1,000 requests.

        A thread that serves several connections may then answer the next request.
        """
        return self._answered >= self._quick_from

    def receive(self) -> bool:
        """Receive bytes into the buffer. Return False if the client has closed the connection."""
        count = self.socket.recv_into(self._frames.room())
        self._frames.received(count)
        return count > 0

    def has_request(self) -> bool:
        """Return True if all bytes of the next request were received.

        Raises:
            MalformedRequestError: the size of the next request is above the limit, or too small.
        """
        return self._frames.next_api() is not None

    def answer(self) -> Response:
        """Answer the next request, and the complete Produce requests after it while requests are short, at most 16.

        Call this method only if ``has_request`` returned True. All responses are sent together. If a request fails, the
        responses before it are sent first.

        Returns:
            The last response. Its pieces are sent, and its transfers are released.
        """
        response = Response(())
        try:
            response = self._answer_together()
        finally:  # if a request fails, the responses before it are sent
            try:
                self.flush()
            finally:
                response.release()
        return response

    def answer_at_once(self) -> Response | None:
        """Receive bytes, and answer the complete Produce requests, without waiting for the client.

        Needs a non-blocking socket, and a client whose last request was short.

        Returns:
            None if all complete requests are answered: call this method again when bytes arrive. Otherwise the thread
            of the connection must continue, and call ``flush`` first. The result is then the last response if it is not
            short. It is a response without pieces if the client has closed the connection, if the next request is no
            Produce request, or if the socket's buffer is full.
        """
        while True:
            try:
                if not self.receive():
                    return Response(())
            except _WOULD_BLOCK:
                return None
            while (api := self._frames.next_api()) is not None:
                if api != PRODUCE:
                    return Response(())
                try:
                    response = self._answer_together()
                finally:
                    self._send_at_once()
                if not response.is_short:
                    return response
                if self._unsent:
                    return Response(())
            if not (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()):
                return None

    def flush(self) -> None:
        """Send the responses that are not sent yet. The socket must be blocking."""
        unsent, self._unsent = self._unsent, []
        send_all(self.socket, unsent)

    def _answer_together(self) -> Response:
        """Answer requests as ``answer`` does, but only gather their responses for ``flush``.

        Return the last response. It counts as not short if its request took more than 2 ms.
        """
        for _ in range(_TOGETHER):
            started_s = time.perf_counter()
            response = self._requests(self._frames.next())
            self._unsent += response.pieces
            self._frames.limit_bytes = self._requests.limit_bytes
            self._answered += 1
            if not response.is_short:
                break
            if time.perf_counter() - started_s > _LONG_S:
                self._quick_from = self._answered + _QUICK_AGAIN
                response = response._replace(is_short=False)
                break
            if self._frames.next_api() != PRODUCE:
                break
        return response

    def _send_at_once(self) -> None:
        """Send as many bytes as fit into the socket's buffer, and keep the other bytes for ``flush``.

        Only for responses in memory: transfers are dropped.
        """
        data = b"".join(piece for piece in self._unsent if not isinstance(piece, Transfer))
        try:
            sent = self.socket.send(data) if data else 0
        except _WOULD_BLOCK:
            sent = 0
        self._unsent = [memoryview(data)[sent:]] if sent < len(data) else []


def send_all(connection: socket.socket, pieces: Sequence[Piece]) -> None:
    """Send all pieces in order, and return when the socket has accepted all bytes.

    Without TLS, up to 512 successive pieces in memory need one system call if the socket's buffer has room for them.
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
        for piece in part:
            if sent < len(piece):
                connection.sendall(memoryview(piece)[sent:])
            sent = max(sent - len(piece), 0)


def shut(connection: socket.socket) -> None:
    """Shut down both directions of a connection: a thread that reads from it then receives the end of the stream.

    The socket stays open, and errors are ignored. ``SSLSocket.shutdown`` is not used, because it discards the TLS state
    that the reading thread may still need.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
