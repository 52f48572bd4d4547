"""Faults of a network or a store, by name: the rows of matrices."""

from __future__ import annotations

from typing import Final

from stratalog.testing.faultproxy import Misdeed, ProxyFault

FAULTS: Final = {
    "503": ProxyFault(Misdeed.STATUS, status=503, code="SlowDown"),
    "503 Retry-After": ProxyFault(Misdeed.STATUS, status=503, code="SlowDown", headers="Retry-After: 0\r\n"),
    "500": ProxyFault(Misdeed.STATUS, status=500, code="InternalError"),
    "409": ProxyFault(Misdeed.STATUS, status=409, code="ConditionalRequestConflict"),
    "412": ProxyFault(Misdeed.STATUS, status=412, code="PreconditionFailed"),
    "429": ProxyFault(Misdeed.STATUS, status=429, code="TooManyRequests"),
    "reset before": ProxyFault(Misdeed.RESET_BEFORE),
    "reset after": ProxyFault(Misdeed.RESET_AFTER),
    "silent": ProxyFault(Misdeed.SILENT),
    "drip": ProxyFault(Misdeed.DRIP),
    "cut": ProxyFault(Misdeed.CUT),
    "flip": ProxyFault(Misdeed.FLIP),
    "stale": ProxyFault(Misdeed.STALE),
    "garbage": ProxyFault(Misdeed.GARBAGE),
}
FOR_GOOD: Final = {"500", "503", "reset before", "drip", "silent"}  # those that last until the deadline, in some cells
ANSWERED: Final = FAULTS.keys() - {"silent", "drip"}  # at once: a deadline may be long and costs nothing
