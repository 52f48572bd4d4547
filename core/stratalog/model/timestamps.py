"""Moments as Kafka counts them: milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def unix_ms(moment: datetime) -> int:
    """The millisecond that a moment lies in; one without a zone is UTC.

    Not by way of ``timestamp()``, a float: of 1,000 whole milliseconds it brings 6 into the one before.
    """
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
