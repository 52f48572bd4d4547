"""Small values with offsets and positions. Offsets count records, positions count bytes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Self

from stratalog.errors import ConfigError, EpochsExhaustedError

MAX_EPOCH: Final = (1 << 31) - 1  # a leader epoch has 32 bits, signed
MAX_OFFSET: Final = (1 << 63) - 1  # the largest log end offset; the last record's offset is one less


class Choice(StrEnum):
    """Base class of enumerations whose members are passed to public methods by their values."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the member with this value; raise ConfigError if there is none."""
        member = cls._value2member_map_.get(value) if isinstance(value, str) else None  # calling an enum is slow
        if not isinstance(member, cls):
            raise ConfigError(f"{cls.__name__.removeprefix('Append').lower()} {value!r} is not one of {', '.join(cls)}")
        return member


class Isolation(Choice):
    """The upper bound of a reader: the log end offset, the high watermark, or the last stable offset."""

    LOG_END = "log_end"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Durability(Choice):
    """Guarantee of an acknowledged append: it survives a process crash (``written``) or power loss (``durable``)."""

    WRITTEN = "written"
    DURABLE = "durable"


class AppendOrigin(Choice):
    """The sender of appended batches: a client, or a group or transaction coordinator.

    A coordinator may append control batches, and the sequence numbers of its batches are not checked.

    Source: apache/kafka AppendOrigin.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"


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
