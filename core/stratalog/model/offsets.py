"""Offsets count records, positions count bytes: the small values that say which is meant."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from stratalog.errors import ConfigError, EpochsExhaustedError

MAX_EPOCH: Final = (1 << 31) - 1  # a leader epoch has 32 bits, signed
MAX_OFFSET: Final = (1 << 63) - 1  # of a log's end: the last record is one below it


class Isolation(StrEnum):
    """How far a reader sees: to the log end, the high watermark, or the last stable offset."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @classmethod
    def of(cls, value: str) -> Isolation:
        """The isolation named ``value``; ConfigError names the choices."""
        found = _ISOLATIONS.get(value)
        if found is None:
            raise ConfigError(f"isolation {value!r} is none of {', '.join(cls)}")
        return found


_ISOLATIONS: Final[dict[str, Isolation]] = {found.value: found for found in Isolation}  # an enum's call is slow


class Durability(StrEnum):
    """What an acknowledged append survives: the process (``written``) or a power loss (``durable``)."""

    WRITTEN = "written"
    DURABLE = "durable"

    @classmethod
    def of(cls, value: str) -> Durability:
        """The durability named ``value``; ConfigError names the choices."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"durability {value!r} is none of {', '.join(cls)}") from None


class AppendOrigin(StrEnum):
    """Who encoded batches: a producer, or a coordinator, which may write control batches and is believed about sequences.

    Source: apache/kafka AppendOrigin.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"

    @classmethod
    def of(cls, value: str) -> AppendOrigin:
        """The origin named ``value``; ConfigError names the choices."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"origin {value!r} is none of {', '.join(cls)}") from None


class Watermark(StrEnum):
    """What moves a log's high watermark: writing, syncing, or somebody outside (``set_high_watermark``)."""

    WRITTEN = "written"
    DURABLE = "durable"
    EXTERNAL = "external"


class OffsetPosition(NamedTuple):
    """An offset and the byte position in the ``.log`` file where its batch set starts."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp (ms) and an offset that belongs to it."""

    timestamp_ms: int
    offset: int


class EpochEntry(NamedTuple):
    """The first offset written in a leader epoch."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in one log: the first offset after it. (-1, -1) if that is not known."""

    epoch: int
    end_offset: int


def next_epoch(epoch: int, log: object) -> int:
    """Return the leader epoch after ``epoch`` of the log called ``log``.

    Raises:
        EpochsExhaustedError: there is none.
    """
    if epoch >= MAX_EPOCH:
        raise EpochsExhaustedError(f"{log} is in leader epoch {epoch}, and there is none above {MAX_EPOCH}")
    return epoch + 1


UNDEFINED_END: Final = EpochEnd(-1, -1)


class LogOffsets(NamedTuple):
    """All bounds of one log at one moment, from one view.

    ``log_start <= last_stable <= high_watermark <= log_end`` and ``log_start <= local_log_start <= log_end``.
    """

    log_start: int
    local_log_start: int
    recovery_point: int
    high_watermark: int
    last_stable: int
    log_end: int

    def bound(self, isolation: Isolation) -> int:
        """The offset that a reader of this isolation does not go past (exclusive)."""
        if isolation is Isolation.LOG_END:
            return self.log_end
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.last_stable
