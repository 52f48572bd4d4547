"""Values of options: offsets and timestamps by partition, numbers, durations and times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

from stratalog import TopicPartition
from stratalog.errors import ConfigError

_UNITS_US: Final = {
    "us": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000,
}  # fmt: skip

Numbers: TypeAlias = dict[TopicPartition, int]
T = TypeVar("T")


def parse_assignment(option: str, text: str) -> list[TopicPartition]:
    """Parse ``{"topic": [0, 1]}`` to partitions. Raise ConfigError if the text is not valid."""

    def parse(text: str) -> list[TopicPartition]:
        return [
            TopicPartition(topic, _check_integer(number))
            for topic, numbers in _parse_object(text)
            for number in numbers
        ]

    return parse_option(option, text, parse)


def parse_numbers(option: str, text: str, *, at_least: int) -> Numbers:
    """Parse ``{"topic": {"0": 23}}`` to numbers by partition.

    Raise ConfigError if the text is not valid, or a number is below ``at_least``.
    """

    def parse(text: str) -> Numbers:
        return {
            TopicPartition(topic, int(partition)): _check_integer(number, at_least)
            for topic, numbers in _parse_object(text)
            for partition, number in numbers.items()
        }

    return parse_option(option, text, parse)


def _parse_object(text: str) -> list[tuple[str, Any]]:
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise TypeError("it is not a JSON object")
    return list(parsed.items())


def _check_integer(value: object, at_least: int = 0) -> int:
    if type(value) is not int or value < at_least:
        raise ValueError(f"{value!r} is not an integer of {at_least} or more")
    return value


def parse_natural(option: str, text: str) -> int:
    """Parse an integer of 0 or more. Raise ConfigError if the text is not valid."""
    return parse_option(option, text, lambda text: _check_integer(int(text)))


def parse_option(option: str, text: str, parse: Callable[[str], T]) -> T:
    """Return ``parse(text)``. If ``parse`` raises an error, raise a ConfigError with the name of the option."""
    try:
        return parse(text)
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise ConfigError(f"option {option}={text!r} is not valid: {error}") from None


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a duration such as ``15m``, ``30s`` or ``1h`` to milliseconds. A number without a unit is in milliseconds.

    Source: apache/spark JavaUtils.timeStringAsMs.

    Raises:
        ConfigError: the text is not a duration.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    unit = match and (match[2] or "ms")
    if match is None or unit not in _UNITS_US:
        raise ConfigError(f"option {option}={text!r} is not a duration such as 30s, 15m or 1h")
    return parse_natural(option, match[1]) * _UNITS_US[unit] // 1000


def parse_as_of(text: str) -> int | datetime:
    """Parse option ``as_of``. Digits are a version of the manifest. Other text is a time in ISO 8601.

    A time without a time zone is in UTC.

    Raises:
        ConfigError: the text is neither a version nor a time.
    """
    if text.isdigit():
        return parse_natural("as_of", text)
    time = parse_option("as_of", text, datetime.fromisoformat)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
