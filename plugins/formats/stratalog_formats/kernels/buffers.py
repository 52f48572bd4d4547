"""Buffer functions for the codecs, in pure Python."""

from __future__ import annotations

from typing import Final

from stratalog.spi import Buffer

_SEARCH_BYTES: Final = 1 << 16


def room(size: int) -> bytearray:
    """Return a buffer of ``size`` bytes with undefined content, which the caller must fill before it uses the bytes."""
    return bytearray(size)


def holds(data: Buffer, wanted: bytes) -> bool:
    """Return True if ``data`` contains ``wanted``.

    The search goes through ``data`` in pieces, and from the end of each piece, which is twice as fast in CPython.
    """
    view = memoryview(data)
    for start in range(0, len(view), _SEARCH_BYTES):
        if bytes(view[start : start + _SEARCH_BYTES + len(wanted)]).rfind(wanted) >= 0:
            return True
    return False
