"""Separation of a stream of bytes into frames: a size of four bytes, followed by a request of that size."""

from __future__ import annotations

from typing import Final

from stratalog_gateway.wire.primitives import I16, I32, MalformedRequestError

_SIZE_BYTES: Final = 4
_SMALL_BYTES: Final = 4 << 10  # buffer of an idle connection
_AHEAD_BYTES: Final = 128 << 10  # least buffer for larger frames: one receive takes several frames of a busy client
_TRUSTED_BYTES: Final = 1 << 20  # a larger buffer is only made for bytes that have arrived


class Frames:
    """The receive buffer of one connection. For one thread.

    Whatever size a frame announces, its buffer is at most twice as large as the bytes that have arrived, or 1 MiB. A buffer
    above 1 MiB is kept until a small frame follows.

    Args:
        limit_bytes: maximum size of a frame.

    Attributes:
        limit_bytes: maximum size of the next frame.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray(_SMALL_BYTES)
        self._start = self._end = 0

    def next_api(self) -> int | None:
        """Return the API of the next frame; None if bytes of the frame are missing.

        Raises:
            MalformedRequestError: the size of the frame is above the limit, or too small for a request.
        """
        have = self._end - self._start - _SIZE_BYTES
        if have < 0 or have < self._size():
            return None
        api: int = I16.unpack_from(self._buffer, self._start + _SIZE_BYTES)[0]
        return api

    def next(self) -> memoryview:
        """Return the next frame without its size, as a view that is valid until the next call of ``room``.

        Call this method only if ``next_api`` returned an API.
        """
        start = self._start + _SIZE_BYTES
        self._start = start + self._size()
        return memoryview(self._buffer)[start : self._start]

    def room(self) -> memoryview:
        """Return free space for the bytes that are received next; never empty."""
        have = self._end - self._start
        need = _SIZE_BYTES + self._size() if have >= _SIZE_BYTES else _SMALL_BYTES
        wanted = max(min(need, max(_TRUSTED_BYTES, 2 * have)), _SMALL_BYTES)
        is_oversized = len(self._buffer) > _TRUSTED_BYTES and wanted <= _SMALL_BYTES
        if self._end == len(self._buffer) or self._start + wanted > len(self._buffer) or is_oversized:
            self._move(wanted, have)
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> None:
        """Add the ``count`` bytes that were written into the result of ``room``."""
        self._end += count

    def _size(self) -> int:
        size: int = I32.unpack_from(self._buffer, self._start)[0]
        if not I16.size <= size <= self.limit_bytes:
            raise MalformedRequestError(f"a frame of {size} bytes: the limits are {I16.size} and {self.limit_bytes}")
        return size

    def _move(self, wanted: int, have: int) -> None:
        """Move the bytes that are not read yet to the start of a buffer with room for ``wanted`` bytes."""
        left = bytes(memoryview(self._buffer)[self._start : self._end])
        if wanted > len(self._buffer) or len(self._buffer) > _TRUSTED_BYTES >= wanted:
            is_large = wanted > _SMALL_BYTES
            self._buffer = bytearray(max(wanted, _AHEAD_BYTES) if is_large else wanted)
        self._buffer[:have] = left
        self._start, self._end = 0, have
