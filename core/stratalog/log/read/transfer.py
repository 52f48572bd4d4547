"""Transfer of batches from a log's file to a socket. With ``sendfile``, the process copies no bytes.

Source: apache/kafka FileRecords.writeTo, TransferableChannel.transferFrom.
"""

from __future__ import annotations

import select
import socket
from types import TracebackType
from typing import Final, Self

from stratalog.env.vfs import Vfs
from stratalog.errors import SegmentGoneError
from stratalog.log.read.fetch import Fetched

_COPY_BYTES: Final = 1 << 16
_MS: Final = 1000


class Transfer:
    """Whole batches to send to a socket. The file stays open until all batches are sent or the transfer is released.

    A transfer is a context manager. Only one thread at a time may use it. The bytes are read from the file when they
    are sent. If the log is truncated in the meantime, ``send`` raises SegmentGoneError, or sends bytes that were
    appended later.

    Attributes:
        offset: the requested offset.
        next_offset: the offset after these batches; ``offset`` if there are none.
        size_bytes: total size of all batches.
        sent_bytes: number of bytes sent so far.
        offsets: all bounds of the log at the time of the fetch.
        aborted_transactions: see ``Fetched``.
        diverging: see ``Fetched``.
    """

    def __init__(self, fetched: Fetched, files: Vfs) -> None:
        self.offset, self.next_offset, self.offsets = fetched.offset, fetched.next_offset, fetched.offsets
        self.aborted_transactions, self.diverging = fetched.aborted_transactions, fetched.diverging
        self._files, self._piece = files, fetched.slices[0] if fetched.slices else None
        self.size_bytes, self.sent_bytes = 0 if self._piece is None else self._piece.size_bytes, 0

    @property
    def left_bytes(self) -> int:
        """Number of unsent bytes."""
        return self.size_bytes - self.sent_bytes

    def send(self, to: socket.socket) -> int:
        """Send bytes until the socket would block, and return the number of bytes that this call sent.

        A blocking socket and a socket with a timeout get all bytes. The transfer is released after the last byte. After
        an error of the socket, call ``send`` again or ``release``; ``sent_bytes`` is the number of bytes sent so far.

        Args:
            to: any socket. Sockets that are not plain, such as encrypting ones, get copies of the bytes.

        Raises:
            TimeoutError: the socket's own timeout is over.
            OSError: the socket failed. A non-blocking ``ssl.SSLSocket`` that would block raises SSLWantWriteError or
                SSLWantReadError, which are OSErrors.
            SegmentGoneError: the log was truncated in the meantime.
            ValueError: the transfer was released before all bytes were sent.
        """
        before = self.sent_bytes
        while self.left_bytes:
            try:
                sent = self._send_some(to)
            except BlockingIOError:
                timeout = to.gettimeout()
                if timeout == 0:
                    break
                if timeout is None:  # a blocking socket raises the error only after its own SO_SNDTIMEO
                    raise TimeoutError("timed out") from None
                _wait(to, timeout)
                continue
            self.sent_bytes += sent
        if not self.left_bytes:
            self.release()
        return self.sent_bytes - before

    def read(self) -> memoryview:
        """Return the bytes of all batches, including sent bytes. The bytes are valid until ``release``.

        After ``release``, and after ``send`` has sent all bytes, the result is empty.

        Raises:
            SegmentGoneError: the log was truncated in the meantime.
        """
        return memoryview(b"") if self._piece is None else self._piece.data

    def release(self) -> None:
        """Release the file. May be called twice."""
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.release()

    def _send_some(self, target: socket.socket) -> int:
        piece = self._piece
        if piece is None:
            raise ValueError("the transfer was released")
        descriptor = piece.fileno()
        if descriptor is None:
            return target.send(piece.data[self.sent_bytes :])
        position = piece.position + self.sent_bytes
        if type(target) is socket.socket:
            sent = self._files.send(descriptor, position, self.left_bytes, target.fileno())
        else:
            data = self._files.read(descriptor, position, min(self.left_bytes, _COPY_BYTES))
            sent = target.send(data) if data else 0
        if not sent:
            raise SegmentGoneError("the log was truncated while records were sent", f"offset {self.offset}").advised(
                "repeat the request; the log end offset is lower now"
            )
        return sent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _wait(target: socket.socket, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(target.fileno(), select.POLLOUT)
    if not poll.poll(timeout_s * _MS):
        raise TimeoutError("timed out")
