"""Separation of a stream of bytes into frames. A frame consists of a size (four bytes) and a request of that size."""

from __future__ import annotations

from typing import Final

from stratalog_gateway.wire.primitives import I16, I32, MalformedRequestError

_SIZE_BYTES: Final = 4
_SMALL_BYTES: Final = 4 << 10  # buffer of an idle connection
_AHEAD_BYTES: Final = 128 << 10  # minimum for larger frames, so that one system call receives several frames
_TRUSTED_BYTES: Final = 1 << 20  # limit for a buffer whose bytes are not received yet


class Frames:
    """The receive buffer of one connection. Not thread-safe.

    The buffer has at most 1 MiB or twice the size of the received bytes, whichever is more. A client therefore cannot
    enlarge the buffer beyond 1 MiB only by the announced size of a frame.

    Args:
        limit_bytes: maximum size of a frame (bytes). You may set the attribute ``limit_bytes`` between two frames.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray(_SMALL_BYTES)
        self._start = self._end = 0  # bounds of the received bytes that ``next`` has not returned
        self._next = 0  # end of the next frame, or of its size field until that is received; set by ``next_api``

    def next_api(self) -> int | None:
        """Return the API key of the next frame; None if the frame is not received completely.

        Raises:
            MalformedRequestError: the size of the frame is above ``limit_bytes``, or below 2.
        """
        start, end = self._start, self._end
        self._next = start + _SIZE_BYTES
        if self._next > end:
            return None
        size: int = I32.unpack_from(self._buffer, start)[0]
        if not I16.size <= size <= self.limit_bytes:
            raise MalformedRequestError(
                f"a frame of {size} bytes is not within the limits of {I16.size} to {self.limit_bytes} bytes"
            )
        self._next += size
        if self._next > end:
            return None
        api: int = I16.unpack_from(self._buffer, start + _SIZE_BYTES)[0]
        return api

    def next(self) -> memoryview:
        """Return the next frame without its size, as a view that is valid until the next call of ``room``.

        Call this method only if the last call of ``next_api`` did not return None.
        """
        start, self._start = self._start + _SIZE_BYTES, self._next
        return memoryview(self._buffer)[start : self._next]

    def room(self) -> memoryview:
        """Return the free part of the buffer, into which the caller receives bytes. The result is never empty."""
        unread_bytes = self._end - self._start
        if not unread_bytes and len(self._buffer) <= _TRUSTED_BYTES:
            self._start = self._end = 0
            return memoryview(self._buffer)
        needed_bytes = max(min(self._next - self._start, max(_TRUSTED_BYTES, 2 * unread_bytes)), _SMALL_BYTES)
        is_oversized = len(self._buffer) > _TRUSTED_BYTES and needed_bytes <= _SMALL_BYTES
        if self._end == len(self._buffer) or self._start + needed_bytes > len(self._buffer) or is_oversized:
            self._move(needed_bytes, unread_bytes)
        return memoryview(self._buffer)[self._end :]

    def add_received(self, count: int) -> None:
        """Add the first ``count`` bytes of the last result of ``room`` to the stream. Call ``next_api`` afterwards."""
        self._end += count

    def _move(self, needed_bytes: int, unread_bytes: int) -> None:
        """Move the unread bytes to the start of a buffer of at least ``needed_bytes``."""
        unread = bytes(memoryview(self._buffer)[self._start : self._end])
        if needed_bytes > len(self._buffer) or len(self._buffer) > _TRUSTED_BYTES >= needed_bytes:
            is_large = needed_bytes > _SMALL_BYTES
            self._buffer = bytearray(max(needed_bytes, _AHEAD_BYTES) if is_large else needed_bytes)
        self._buffer[:unread_bytes] = unread
        self._start, self._end = 0, unread_bytes
