"""Frames out of a stream of bytes: a size of four bytes, and a request of that size."""

from __future__ import annotations

from typing import Final

from stratalog_gateway.wire.primitives import I32, MalformedRequestError

_SIZE_BYTES: Final = 4
_SMALL_BYTES: Final = 4 << 10  # buffer of an idle connection
_TRUSTED_BYTES: Final = 1 << 20  # a larger buffer is only made for bytes that have arrived


class Frames:
    """The receive buffer of one connection. For one thread.

    A client that announces a large frame and does not send it costs no more memory than the bytes that it sends,
    doubled, or 1 MiB. The buffer of a large frame is kept until a small frame follows.

    Args:
        limit_bytes: maximum size of a frame.

    Attributes:
        limit_bytes: maximum size of the next frame.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray(_SMALL_BYTES)
        self._start = self._end = 0

    def next(self) -> memoryview | None:
        """Return the next whole frame, without its size; None if bytes are missing. Valid until ``room`` is called.

        Raises:
            MalformedRequestError: the size is not positive, or above the limit.
        """
        if self._end - self._start < _SIZE_BYTES:
            return None
        size = self._size()
        start = self._start + _SIZE_BYTES
        if self._end - start < size:
            return None
        self._start = start + size
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
        """Note that ``count`` bytes were written into the last ``room``."""
        self._end += count

    def _size(self) -> int:
        size: int = I32.unpack_from(self._buffer, self._start)[0]
        if not 0 < size <= self.limit_bytes:
            raise MalformedRequestError(f"a frame of {size} bytes: the limit is {self.limit_bytes}")
        return size

    def _move(self, wanted: int, have: int) -> None:
        """Move the bytes that are not read yet to the start of a buffer with room for ``wanted`` bytes."""
        left = bytes(memoryview(self._buffer)[self._start : self._end])
        if wanted > len(self._buffer) or len(self._buffer) > _TRUSTED_BYTES >= wanted:
            self._buffer = bytearray(wanted)
        self._buffer[:have] = left
        self._start, self._end = 0, have
