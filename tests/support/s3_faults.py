"""What a network or a store does wrong, by name: the rows of matrices."""

from __future__ import annotations

from typing import Final

from stratalog.testing.faultproxy import Fault, Misdeed

FAULTS: Final = {
    "503": Fault(Misdeed.STATUS, status=503, code="SlowDown"),
    "503 Retry-After": Fault(Misdeed.STATUS, status=503, code="SlowDown", headers="Retry-After: 0\r\n"),
    "500": Fault(Misdeed.STATUS, status=500, code="InternalError"),
    "409": Fault(Misdeed.STATUS, status=409, code="ConditionalRequestConflict"),
    "412": Fault(Misdeed.STATUS, status=412, code="PreconditionFailed"),
    "429": Fault(Misdeed.STATUS, status=429, code="TooManyRequests"),
    "reset before": Fault(Misdeed.RESET_BEFORE),
    "reset after": Fault(Misdeed.RESET_AFTER),
    "silent": Fault(Misdeed.SILENT),
    "drip": Fault(Misdeed.DRIP),
    "cut": Fault(Misdeed.CUT),
    "flip": Fault(Misdeed.FLIP),
    "stale": Fault(Misdeed.STALE),
    "garbage": Fault(Misdeed.GARBAGE),
}
FOR_GOOD: Final = {"500", "503", "reset before", "drip", "silent"}  # those that last until the deadline, in some cells
ANSWERED: Final = FAULTS.keys() - {"silent", "drip"}  # at once: a deadline may be long and costs nothing
