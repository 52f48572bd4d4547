"""The protocol: a request and an answer are one line of JSON each. After the answer to a fetch, the batches follow.

The request ``{"ask": "logs"}`` is answered by ``{"logs": [[topic, partitions], ...]}``. The request
``{"ask": "fetch", ...}`` contains the arguments of a fetch; the answer contains the bounds of the log, and ``bytes``,
the size of the batches that follow. An error is ``{"error": TYPE, "message": ...}``.
"""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Final, Self

from stratalog.errors import StorageError

MAX_LINE_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 10


class PeerError(StorageError):
    """The other side closed the connection, answered with an error, or broke the protocol. Connect again."""

    retriable = True


class Peer:
    """A connection to the other side. Its ``with`` block closes it; ``close`` shuts it down from any thread.

    A call on a broken connection raises OSError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = connection.makefile("rb")

    def send(self, message: dict[str, object]) -> None:
        """Send ``message`` as one line of JSON."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:  # Any: it is JSON
        """Return the next line, parsed; {} if the other side has closed the connection.

        Raises:
            PeerError: the line is not a JSON object, or is longer than ``MAX_LINE_BYTES``.
        """
        line = self._lines.readline(MAX_LINE_BYTES)
        if not line:
            return {}
        try:
            message = json.loads(line)
        except ValueError as error:
            raise PeerError(f"{line[:40]!r} is not valid JSON") from error
        if not isinstance(message, dict):
            raise PeerError(f"{line[:40]!r} is not a JSON object")
        return message

    def read(self, size_bytes: int) -> bytes:
        """Return the next ``size_bytes`` bytes; raise PeerError if the connection ends before."""
        data = self._lines.read(size_bytes)
        if len(data) < size_bytes:
            raise PeerError(f"the connection ended after {len(data)} of {size_bytes} bytes")
        return data

    def close(self) -> None:
        """Shut down the connection, which ends a read that waits on either side. A second call does nothing."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the connection is already closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self.socket.close()
