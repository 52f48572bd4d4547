"""Conversion of a position (an offset, a time, or a distance from the end) to an offset."""

from __future__ import annotations

from stratalog.cli.parameters import Start
from stratalog.log.read.log_reader import LogReader
from stratalog.model.offsets import Isolation


def start_offset(log: LogReader, position: Start, end: int, isolation: Isolation) -> int:
    """Return the offset of ``position`` in a log with the end offset ``end`` (exclusive).

    If the position is an offset, it is returned unchanged, even if it is outside of the log; 0 means the log start. If
    the position is a time, and no record has this time or a later one, the result is ``end``.
    """
    log_start = log.offsets().log_start
    if position.back is not None:
        return max(end - position.back, log_start)
    if position.time_ms is not None:
        offset = log.offset_for_timestamp(position.time_ms, isolation)
        return end if offset is None else offset
    return position.offset or log_start


def nearest_offset(log: LogReader, position: Start, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
    """Return the offset of a position; the nearest one from the log start to the end of the isolation level."""
    offsets = log.offsets()
    end = offsets.bound(isolation)
    return min(max(start_offset(log, position, end, isolation), offsets.log_start), end)
