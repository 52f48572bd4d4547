"""Small values with offsets and positions. Offsets count records, positions count bytes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from stratalog.errors import ConfigError, EpochsExhaustedError

MAX_EPOCH: Final = (1 << 31) - 1  # a leader epoch has 32 bits, signed
MAX_OFFSET: Final = (1 << 63) - 1  # the largest log end offset; the last record's offset is one less


class Isolation(StrEnum):
    """The upper bound of a reader: the log end offset, the high watermark, or the last stable offset."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @classmethod
    def of(cls, value: str) -> Isolation:
        """Return the isolation with the name ``value``; raise ConfigError if there is no such isolation."""
        isolation = _ISOLATIONS.get(value)
        if isolation is None:
            raise ConfigError(f"isolation {value!r} is not one of {', '.join(cls)}")
        return isolation


_ISOLATIONS: Final[dict[str, Isolation]] = {found.value: found for found in Isolation}  # calling an enum is slow


class Durability(StrEnum):
    """Guarantee of an acknowledged append: it survives a process crash (``written``) or power loss (``durable``)."""

    WRITTEN = "written"
    DURABLE = "durable"

    @classmethod
    def of(cls, value: str) -> Durability:
        """Return the durability with the name ``value``; raise ConfigError if there is no such durability."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"durability {value!r} is not one of {', '.join(cls)}") from None


class AppendOrigin(StrEnum):
    """The sender of appended batches: a client, or a group or transaction coordinator.

    A coordinator may append control batches, and the sequence numbers of its batches are not checked.

    Source: apache/kafka AppendOrigin.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"

    @classmethod
    def of(cls, value: str) -> AppendOrigin:
        """Return the origin with the name ``value``; raise ConfigError if there is no such origin."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"origin {value!r} is not one of {', '.join(cls)}") from None


class Watermark(StrEnum):
    """The event that advances a leader's high watermark: a write, a sync, or ``set_high_watermark`` (``external``)."""

    WRITTEN = "written"
    DURABLE = "durable"
    EXTERNAL = "external"


class OffsetPosition(NamedTuple):
    """An offset, and the position (bytes) in the ``.log`` file of its batch, or of a group of batches that has it."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp (ms since 1970), and the offset of a record or batch with this timestamp."""

    timestamp_ms: int
    offset: int


class EpochEntry(NamedTuple):
    """A leader epoch, and the offset at which it begins. The epoch may have no records."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The end of a leader epoch in one log: the first offset after the epoch; (-1, -1) if the end is unknown."""

    epoch: int
    end_offset: int


def next_epoch(epoch: int, log: object) -> int:
    """Return the leader epoch after ``epoch``. ``log`` is the name of the log, for errors.

    Raises:
        EpochsExhaustedError: ``epoch`` is the largest leader epoch, 2^31 - 1.
    """
    if epoch >= MAX_EPOCH:
        raise EpochsExhaustedError(f"{log} is in leader epoch {epoch}, and the maximum is {MAX_EPOCH}")
    return epoch + 1


UNDEFINED_END: Final = EpochEnd(-1, -1)


class LogOffsets(NamedTuple):
    """A consistent snapshot of the offsets of one log.

    ``log_start <= last_stable <= high_watermark <= log_end``. ``local_log_start``, the first offset on local disk, and
    ``recovery_point`` are also in [log_start, log_end].
    """

    log_start: int
    local_log_start: int
    recovery_point: int
    high_watermark: int
    last_stable: int
    log_end: int

    def bound(self, isolation: Isolation) -> int:
        """Return the end offset (exclusive) for a reader with this isolation."""
        return self[BOUND_FIELDS[isolation]]


BOUND_FIELDS: Final[Mapping[str, int]] = {
    Isolation.LOG_END: LogOffsets._fields.index("log_end"),
    Isolation.READ_UNCOMMITTED: LogOffsets._fields.index("high_watermark"),
    Isolation.READ_COMMITTED: LogOffsets._fields.index("last_stable"),
}
"""The field of ``LogOffsets`` that bounds readers of each isolation."""
