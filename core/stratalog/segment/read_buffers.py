"""Memory that is read into again and again: fresh pages cost the system as much time as decoding what is read into them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self, runtime_checkable

from stratalog.env.forks import ends_with_fork

_MOST: Final = 4  # buffers of one reader that may be looked at at a time
_SPARE: Final[deque[bytearray]] = deque(maxlen=_MOST)  # left by readers that have ended; its operations are atomic


@runtime_checkable
class ReadsOver(Protocol):
    """A segment whose bytes may come from files of this system: those need no memory of their own."""

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``, fewer at the end of the segment."""

    def read_over(self, position: int, into: memoryview) -> memoryview:
        """As many as ``into`` has room for; in it, where that spares a copy."""


class ReusedReads:
    """Reads of segments into buffers that are used again once nobody looks at them any more.

    Whoever keeps a view of what was read, or columns over it, keeps it as it is. For one thread; a context manager, which
    leaves its buffers to the next reader.

    Args:
        usual_bytes: of a read; larger ones get memory of their own.
    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._buffers: list[bytearray] = []

    def of(self, segment: ReadsOver) -> Callable[[int, int], memoryview]:
        """What reads this segment, as its ``read``."""
        return partial(self._read, segment)

    def _read(self, segment: ReadsOver, position: int, size_bytes: int) -> memoryview:
        buffer = self._free() if size_bytes <= self._usual_bytes else None
        if buffer is None:
            return segment.read(position, size_bytes)
        return segment.read_over(position, memoryview(buffer)[:size_bytes])

    def _free(self) -> bytearray | None:
        """A buffer that nobody looks at; None if very many are looked at, as where all columns are kept."""
        for buffer in self._buffers:
            if is_free(buffer):
                return buffer
        if len(self._buffers) == _MOST:
            return None
        made = self._spare() or bytearray(self._usual_bytes)
        self._buffers.append(made)
        return made

    def _spare(self) -> bytearray | None:
        while _SPARE:
            try:
                found = _SPARE.pop()
            except IndexError:  # another thread was faster
                return None
            if len(found) == self._usual_bytes and is_free(found):
                return found
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _SPARE.extend(self._buffers)
        self._buffers.clear()


class BufferPool:
    """A few buffers for readers of any thread, used again once nobody looks at what is in them. Thread-safe.

    Args:
        usual_bytes: of a read; larger ones get none.
    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []  # under _lock
        ends_with_fork(self)

    def take(self, size_bytes: int) -> memoryview | None:
        """Memory of so many bytes, the caller's as long as there is a view of it; None if very much is looked at."""
        if size_bytes > self._usual_bytes:
            return None
        with self._lock:
            for buffer in self._buffers:
                if is_free(buffer):
                    return memoryview(buffer)[:size_bytes]
            if len(self._buffers) == _MOST:
                return None
            made = bytearray(self._usual_bytes)
            self._buffers.append(made)
            return memoryview(made)[:size_bytes]


def is_free(buffer: bytearray) -> bool:
    """Whether there is no view of it: only then Python lets its size change, which is done here without moving it."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
