"""Buffer functions for the codecs, in pure Python."""

from __future__ import annotations

from typing import Final

from stratalog.spi import Buffer

_SEARCH_BYTES: Final = 1 << 16


def room(size: int) -> bytearray:
    """Return a buffer of ``size`` bytes with undefined contents. The caller must fill the buffer before reading it."""
    return bytearray(size)


def holds(data: Buffer, needle: bytes) -> bool:
    """Return True if ``data`` contains ``needle``."""
    view = memoryview(data)  # rfind in pieces is twice as fast as one find in CPython
    for start in range(0, len(view), _SEARCH_BYTES):
        if bytes(view[start : start + _SEARCH_BYTES + len(needle)]).rfind(needle) >= 0:
            return True
    return False
