"""What codecs need of buffers, in pure Python."""

from __future__ import annotations

from typing import Final

from stratalog.spi import Buffer

_SEARCH_BYTES: Final = 1 << 16


def room(size: int) -> bytearray:
    """A buffer of ``size`` bytes, which may hold anything: whoever takes it fills it before anybody else sees it."""
    return bytearray(size)


def holds(data: Buffer, wanted: bytes) -> bool:
    """Whether ``wanted`` is in ``data``; searched from behind in each piece, which CPython does twice as fast."""
    view = memoryview(data)
    for start in range(0, len(view), _SEARCH_BYTES):
        if bytes(view[start : start + _SEARCH_BYTES + len(wanted)]).rfind(wanted) >= 0:
            return True
    return False
