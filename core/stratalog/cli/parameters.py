"""Parsers of arguments and options. All commands accept the same syntax for a kind of value."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from stratalog.config.keys import LONG_MAX
from stratalog.errors import ConfigError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import TopicPartition, parse_partition_folder
from stratalog.model.offsets import Isolation
from stratalog.model.timestamps import unix_ms
from stratalog.reading.component_host import split_scheme

MANY: Final = click.IntRange(1, LONG_MAX)
"""Type of options that limit a number of results: at least 1."""


class NumberRange(click.FloatRange):
    """Range of finite numbers. ``click.FloatRange`` would accept NaN, and infinity if there is no upper limit."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value as ``click.FloatRange`` does; raise BadParameter if it is not finite."""
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # click declares and checks its types
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class NamedPath(click.Path):
    """Path or URI. An empty value is refused, because ``"$DIR"`` with DIR not set would mean the working directory."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value as ``click.Path`` does; raise BadParameter if it is empty or like ``s3:/a`` (one slash)."""
        if value == "":
            self.fail("the path is empty: use . for the working directory", param, ctx)
        try:
            split_scheme(os.fspath(value))  # type: ignore[call-overload]  # click declares and checks its types
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)  # type: ignore[arg-type]  # click declares and checks its types


def time_ms(text: str) -> int:
    """Parse a time in ISO 8601 or in milliseconds since 1970; return milliseconds since 1970, or raise BadParameter."""
    try:
        timestamp_ms = int(text) if text.isdecimal() else unix_ms(datetime.fromisoformat(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time: use ISO 8601, such as 2026-11-21T14:00:00Z (UTC if no zone is given), or "
            "milliseconds since 1970"
        ) from None
    if not 0 <= timestamp_ms <= LONG_MAX:
        raise click.BadParameter(f"{text!r} is not between 1970 and the last possible timestamp")
    return timestamp_ms


@dataclass(frozen=True, slots=True)
class Start:
    """Position in a log: ``offset``, ``back`` offsets before the end, or the first record at or after ``time_ms``."""

    offset: int = 0
    back: int | None = None
    time_ms: int | None = None

    def offset_in(self, log: LogReader, end: int, isolation: Isolation) -> int:
        """Return the offset of the position in a log with the end offset ``end`` (exclusive).

        ``offset`` is returned unchanged, even if it is outside of the log; 0 means the log start. If no record has the
        time ``time_ms`` or a later one, the result is ``end``.
        """
        log_start = log.offsets().log_start
        if self.back is not None:
            return max(end - self.back, log_start)
        if self.time_ms is not None:
            offset = log.offset_for_timestamp(self.time_ms, isolation)
            return end if offset is None else offset
        return self.offset or log_start

    def nearest_in(self, log: LogReader, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
        """Return the offset of the position, or the nearest one from the log start to the end of the isolation level."""
        offsets = log.offsets()
        end = offsets.bound(isolation)
        return min(max(self.offset_in(log, end, isolation), offsets.log_start), end)


_NAMED_STARTS: Final = {"beginning": Start(), "end": Start(back=0)}


def start_of(text: str) -> Start:
    """Parse a position in a log, or raise BadParameter.

    As in kcat's option ``-o``, a position is an offset, ``beginning``, ``end``, ``-N`` or ``s@TIME``; unlike in kcat,
    TIME can also be in ISO 8601.
    """
    if text in _NAMED_STARTS:
        return _NAMED_STARTS[text]
    number = text.removeprefix("-")
    if number.isdecimal() and int(number) <= LONG_MAX:
        return Start(back=int(number)) if text.startswith("-") else Start(int(number))
    if text.startswith("s@"):
        return Start(time_ms=time_ms(text[2:]))
    raise click.BadParameter(
        f"{text!r} is not a position: use an offset, beginning, end, -N for N offsets before the end, or s@TIME"
    )


def partition_offset(text: str) -> tuple[TopicPartition, int]:
    """Return the partition and the offset of ``TOPIC-PARTITION:OFFSET``, or raise BadParameter."""
    name, _, offset = text.rpartition(":")
    log = parse_partition_folder(name)
    if log is None or not offset.isdecimal():
        raise click.BadParameter(f"{text!r} is not of the form TOPIC-PARTITION:OFFSET")
    return log, int(offset)


def split_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME=VALUE``, or raise BadParameter."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    return name, value


def typed_bytes(text: str) -> bytes:
    """Return the bytes of an argument as the user typed them. They need not be UTF-8."""
    return os.fsencode(text)
