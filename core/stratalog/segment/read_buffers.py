"""Memory that reads reuse. Allocating new memory for a read takes as long as decoding the bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Self, TypeAlias

from stratalog.env.forks import ends_with_fork
from stratalog.segment.readable import ReadableSegment

_MAX_BUFFERS: Final = 4  # maximum number of buffers of one reader
_LINE_BYTES: Final = 64  # line size of the processor's caches
_MALLOC_BYTES: Final = 16  # distance from the start of a page to a large buffer


ReadOver: TypeAlias = Callable[[int, memoryview], memoryview]
"""The method ``read_over`` of a segment in local files. It returns bytes from a position on, at most as many as the
memory holds. They are in that memory if this saves a copy."""


class ReusedReads:
    """Reads of segments into buffers that are used again when no view of them is left.

    A buffer is not reused while the caller keeps a view of its bytes, or columns over them. One thread at a time may
    use this object. This is a context manager. At the end of the block, the next reader can use the buffers.

    Args:
        usual_bytes: size of a usual read; a larger read gets its own memory.
        spare: buffers of readers that have ended. Several readers may share it, because its operations are atomic.
    """

    def __init__(self, usual_bytes: int, spare: deque[bytearray]) -> None:
        self._usual_bytes, self._spare = usual_bytes, spare
        self._buffer_bytes = usual_bytes + 2 * _LINE_BYTES
        self._buffers: list[bytearray] = []

    def of(self, segment: ReadableSegment) -> Callable[[int, int], memoryview]:
        """Return a function that reads this segment, with the arguments of ``ReadableSegment.read``."""
        read_over: ReadOver | None = getattr(segment, "read_over", None)  # isinstance of a protocol takes microseconds
        return segment.read if read_over is None else partial(self._read, segment, read_over)

    def _read(self, segment: ReadableSegment, read_over: ReadOver, position: int, size_bytes: int) -> memoryview:
        buffer = self._find_free() if size_bytes <= self._usual_bytes else None
        if buffer is None:
            return segment.read(position, size_bytes)
        # On AMD processors, `pread` takes up to three times as long if the address of the memory, modulo 4 KiB, is 1
        # to 31 bytes above the address in the page cache.
        padding_bytes = _LINE_BYTES - _MALLOC_BYTES + position % _LINE_BYTES
        return read_over(position, memoryview(buffer)[padding_bytes : padding_bytes + size_bytes])

    def _find_free(self) -> bytearray | None:
        """Return a buffer without views; None if too many are in use, for example if the caller keeps all columns."""
        for buffer in self._buffers:
            if is_free(buffer):
                return buffer
        if len(self._buffers) == _MAX_BUFFERS:
            return None
        new_buffer = self._take_spare() or bytearray(self._buffer_bytes)
        self._buffers.append(new_buffer)
        return new_buffer

    def _take_spare(self) -> bytearray | None:
        while self._spare:
            try:
                spare_buffer = self._spare.pop()
            except IndexError:  # another thread was faster
                return None
            if len(spare_buffer) == self._buffer_bytes and is_free(spare_buffer):
                return spare_buffer
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spare.extend(self._buffers)
        self._buffers.clear()


class BufferPool:
    """A few buffers for readers of any thread, used again when no view of them is left. Thread-safe.

    Args:
        usual_bytes: size of a usual read; a larger read gets no buffer.
    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []  # under _lock
        ends_with_fork(self)

    def take(self, size_bytes: int) -> memoryview | None:
        """Return memory of this size, which belongs to the caller while a view of it exists.

        The result is None if the size is above ``usual_bytes``, or if all buffers are in use.
        """
        if size_bytes > self._usual_bytes:
            return None
        with self._lock:
            for buffer in self._buffers:
                if is_free(buffer):
                    return memoryview(buffer)[:size_bytes]
            if len(self._buffers) == _MAX_BUFFERS:
                return None
            new_buffer = bytearray(self._usual_bytes)
            self._buffers.append(new_buffer)
            return memoryview(new_buffer)[:size_bytes]


def is_free(buffer: bytearray) -> bool:
    """Return True if no view of the buffer exists.

    A buffer with a view cannot change its size. The test changes the size, and undoes the change.
    """
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
