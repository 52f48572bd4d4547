"""Timestamps in Kafka's unit: milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from stratalog.errors import ConfigError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def unix_ms(moment: datetime) -> int:
    """Return a time in milliseconds since 1970, rounded down. A time without a time zone counts as UTC."""
    # ``timestamp()`` returns a float: for 6 of 1,000 whole milliseconds, the result would be one too low.
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def from_unix_ms(timestamp_ms: int) -> datetime:
    """Return the time, in UTC, of a timestamp in milliseconds since 1970.

    Raises:
        ConfigError: the time is before the year 1 or after the year 9999.
    """
    try:
        return _EPOCH + timestamp_ms * _MILLISECOND
    except OverflowError:
        raise ConfigError(f"timestamp {timestamp_ms} is not between the years 1 and 9999") from None
