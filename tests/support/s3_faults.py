"""Faults of a network or a store, by name, for parametrized tests."""

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
# faults that can last until the deadline of the request
FOR_GOOD: Final = {"500", "503", "reset before", "drip", "silent"}
# faults that are reported immediately: a long deadline takes no time
ANSWERED: Final = FAULTS.keys() - {"silent", "drip"}
