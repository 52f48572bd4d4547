"""Which offset belongs to a point in time, over both tiers.

Source: apache/kafka UnifiedLog.fetchOffsetByTimestamp. Beyond Kafka, later segments are tried when the first candidate
has nothing.
"""

from __future__ import annotations

from stratalog.log.view import LogView
from stratalog.model.offsets import TimestampOffset
from stratalog.segment.components import Components
from stratalog.segment.search import find_timestamp


def offset_for_timestamp(view: LogView, parts: Components, timestamp_ms: int, isolation: str) -> TimestampOffset | None:
    """The first record with a timestamp at or above ``timestamp_ms``; None if the isolation shows none."""
    bound = view.bound(isolation)
    for segment in view.readable_from(view.offsets.log_start, since_ms=timestamp_ms):
        if segment.base_offset >= bound:
            break
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        found = find_timestamp(segment, timestamp_ms, view.offsets.log_start, parts)
        if found is not None:
            return found if found.offset < bound else None
    return None
