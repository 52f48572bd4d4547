"""Which offset belongs to a point in time, over both tiers.

Source: apache/kafka UnifiedLog.fetchOffsetByTimestamp. Beyond Kafka, later segments are tried when the first candidate
has nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from stratalog.errors import CorruptionError, SegmentGoneError
from stratalog.log.read.retry_read import Again, ViewSource
from stratalog.log.read.view import LogView
from stratalog.model.offsets import TimestampOffset
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import find_timestamp


class TimeFences:
    """The largest timestamp up to each closed segment: what lies before a point in time is not looked at again.

    Timestamps need not ascend, the largest so far does. Segments are asked for theirs when a search first gets there,
    and once. Thread-safe.
    """

    __slots__ = ("_largest", "_lock", "_segments")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: Sequence[ReadableSegment] = ()  # under _lock, as is all else
        self._largest: list[int] = []  # up to and with each of the first segments

    def first(self, segments: Sequence[ReadableSegment], count: int, timestamp_ms: int) -> int:
        """The index of the first of ``count`` closed segments that reaches a point in time; ``count`` if none does."""
        with self._lock:
            self._keep_what_holds(segments)
            largest = self._largest
            while len(largest) < count and (not largest or largest[-1] < timestamp_ms):
                found = segments[len(largest)].max_timestamp_ms
                largest.append(max(found, largest[-1]) if largest else found)
            return bisect_left(largest, timestamp_ms, 0, min(count, len(largest)))

    def _keep_what_holds(self, segments: Sequence[ReadableSegment]) -> None:
        known = len(self._largest)
        if self._segments is not segments:
            same = known <= len(segments) and all(
                self._segments[index] is segments[index] for index in {0, known - 1} if known
            )
            if not same:
                self._largest = []
            self._segments = segments


def offset_for_timestamp(
    views: ViewSource, parts: Components, timestamp_ms: int, isolation: str, fences: TimeFences
) -> TimestampOffset | None:
    """The first record with a timestamp at or above ``timestamp_ms``; None if the isolation shows none.

    ``fences`` are those of the log, over its local segments. What goes away meanwhile, or comes damaged from a tier, is
    looked for again.
    """
    view, again = views(), Again(views)
    while True:
        segment: ReadableSegment | None = None
        bound = view.bound(isolation)
        try:
            for segment in _candidates(view, timestamp_ms, fences):
                if segment.base_offset >= bound:
                    break
                found = _found_in(segment, view, parts, timestamp_ms)
                if found is not None:
                    return found if found.offset < bound else None
        except (SegmentGoneError, CorruptionError) as error:
            view = again.after(error, view, segment)
        else:
            return None


def _found_in(segment: ReadableSegment, view: LogView, parts: Components, timestamp_ms: int) -> TimestampOffset | None:
    if segment.max_timestamp_ms < timestamp_ms:
        return None
    below = None if view.is_active(segment) else segment.end_offset
    return find_timestamp(segment, timestamp_ms, view.offsets.log_start, parts, below=below)


def _candidates(view: LogView, timestamp_ms: int, fences: TimeFences) -> Iterator[ReadableSegment]:
    """The readable segments, without local ones that end too early."""
    yield from view.remote_from(view.offsets.log_start, since_ms=timestamp_ms)
    local = view.segments
    for index in range(fences.first(local, len(local) - 1, timestamp_ms) if local else 0, len(local)):
        if local[index].end_offset > view.offsets.log_start:
            yield local[index]
