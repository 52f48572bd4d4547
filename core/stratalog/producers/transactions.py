"""End markers of transactions, and what a log knows of transactions under way.

Source: apache/kafka EndTransactionMarker, ControlRecordType, ProducerStateManager.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


class ControlType(IntEnum):
    """Kinds of control records that a log acts on. Persistent: the numbers are Kafka's."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class EndMarker:
    """The contents of an end marker."""

    kind: ControlType
    coordinator_epoch: int


def parse_marker(key: bytes | None, value: bytes | None) -> EndMarker | None:
    """The end marker in a control record; None for other control records and for what is malformed."""
    if key is None or len(key) < _KEY.size:
        return None
    version, kind = _KEY.unpack_from(key)
    if version < 0 or kind not in {ControlType.ABORT, ControlType.COMMIT}:
        return None
    if value is None or len(value) < _VALUE.size or _VALUE.unpack_from(value)[0] < 0:
        return None
    return EndMarker(ControlType(kind), _VALUE.unpack_from(value)[1])


def marker_record(kind: ControlType, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of an end marker's record."""
    return _KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch)


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker ended; offsets of its first record and of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
