"""Lookup of an offset by timestamp, on local disk and in the tier.

Source: apache/kafka UnifiedLog.fetchOffsetByTimestamp. Unlike Kafka, the lookup also searches later segments if the
first candidate has no such record.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from itertools import chain

from stratalog.log.read.retry_read import ViewSource, read_with_retry
from stratalog.log.read.view import LogView
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.offsets import TimestampOffset
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.time_search import find_timestamp, largest_timestamp_from


class TimeFences:
    """Running maximum of the timestamps of closed segments, used to skip segments that end before a timestamp.

    Timestamps do not have to ascend, but their running maximum ascends. Each segment's largest timestamp is read once,
    when a search first reaches the segment. Thread-safe.
    """

    __slots__ = ("_largest", "_lock", "_segments")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: Sequence[ReadableSegment] = ()  # all fields are under _lock
        self._largest: list[int] = []  # running maximum for the first segments, each included

    def first(self, segments: Sequence[ReadableSegment], count: int, timestamp_ms: int) -> int:
        """Return the index of the first segment with a timestamp at or above ``timestamp_ms``.

        Only the first ``count`` segments are searched. They must be closed. The result is ``count`` if none of them has
        such a timestamp.
        """
        with self._lock:
            self._forget_replaced(segments)
            largest = self._largest
            while len(largest) < count and (not largest or largest[-1] < timestamp_ms):
                segment_ms = segments[len(largest)].max_timestamp_ms
                largest.append(max(segment_ms, largest[-1]) if largest else segment_ms)
            return bisect_left(largest, timestamp_ms, 0, min(count, len(largest)))

    def _forget_replaced(self, segments: Sequence[ReadableSegment]) -> None:
        count = len(self._largest)
        if self._segments is not segments:
            is_same = count <= len(segments) and all(
                self._segments[index] is segments[index] for index in {0, count - 1} if count
            )
            if not is_same:
                self._largest = []
            self._segments = segments


def offset_for_timestamp(
    views: ViewSource, components: Components, timestamp_ms: int, isolation: str, fences: TimeFences
) -> TimestampOffset | None:
    """Return timestamp and offset of the first record with a timestamp at or after ``timestamp_ms``.

    The result is None if ``isolation`` shows no such record. ``fences`` is the log's own object. Raises StorageError if
    a segment cannot be read.
    """

    def find(view: LogView) -> Generator[ReadableSegment, None, TimestampOffset | None]:
        start, bound = view.offsets.log_start, view.bound(isolation)
        for segment in _candidates(view, timestamp_ms, fences):
            yield segment
            if segment.base_offset >= bound:
                break
            if segment.max_timestamp_ms >= timestamp_ms and segment.end_offset > start:
                offset_limit = None if view.is_active(segment) else segment.end_offset
                timestamp_offset = find_timestamp(segment, timestamp_ms, start, components, offset_limit=offset_limit)
                if timestamp_offset is not None:
                    return timestamp_offset if timestamp_offset.offset < bound else None
        return None  # all segments are too old, or the isolation shows none of the others

    return read_with_retry(views, find)


def largest_timestamp(
    views: ViewSource, components: Components, isolation: str, fences: TimeFences
) -> TimestampOffset | None:
    """Return timestamp and offset of the first record with the largest timestamp of the records from the log start on.

    The result is None if no record has a timestamp, or if that record is above the bound of ``isolation``. Raises
    StorageError if a segment cannot be read. Unlike in Kafka, records below the log start do not count.
    """
    for is_exact in (False, True):  # the record with the timestamp may be below the log start, in the first segment
        largest_ms = _largest_ms(views, components, is_exact=is_exact)
        if largest_ms != NO_TIMESTAMP:
            timestamp_offset = offset_for_timestamp(views, components, largest_ms, isolation, fences)
            if timestamp_offset is not None:
                return timestamp_offset
    return None


def _largest_ms(views: ViewSource, components: Components, *, is_exact: bool) -> int:
    """Return the largest timestamp of all segments whose end offset is above the log start; -1 if there is none.

    If ``is_exact`` is True, records below the log start do not count. A segment with such records is then read.
    """

    def find(view: LogView) -> Generator[ReadableSegment, None, int]:
        start, largest_ms = view.offsets.log_start, NO_TIMESTAMP
        for segment in view.readable_from(start):
            yield segment
            if is_exact and segment.base_offset < start:
                largest_ms = largest_timestamp_from(segment, start, components)
            else:
                largest_ms = max(largest_ms, segment.max_timestamp_ms)
        return largest_ms

    return read_with_retry(views, find)


def _candidates(view: LogView, timestamp_ms: int, fences: TimeFences) -> Iterable[ReadableSegment]:
    """Return the readable segments, without local segments whose timestamps are all too early."""
    local = view.segments
    first = fences.first(local, len(local) - 1, timestamp_ms) if local else 0
    local_segments = map(local.__getitem__, range(first, len(local)))  # a slice would copy a reference to each segment
    return (
        local_segments
        if view.remote is None
        else chain(view.remote_from(view.offsets.log_start, timestamp_ms), local_segments)
    )
