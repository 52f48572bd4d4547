"""Conversion of a position that the user gives (an offset, a time, a distance from the end) to an offset."""

from __future__ import annotations

from stratalog.cli.parameters import Start
from stratalog.log.read.log_reader import LogReader
from stratalog.model.offsets import Isolation


def nearest_offset(log: LogReader, position: Start, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
    """Return the offset of a position, limited to the range from the log start to the end that ``isolation`` sees.

    If the position is a time, and no record has this time or a later one, the result is the end.
    """
    offsets = log.offsets()
    end = offsets.bound(isolation)
    found: int | None = position.offset
    if position.back is not None:
        found = end - position.back
    elif position.time_ms is not None:
        found = log.offset_for_timestamp(position.time_ms, isolation)
    if found is None:  # no record has a later timestamp
        return end
    return min(max(found, offsets.log_start), end)
