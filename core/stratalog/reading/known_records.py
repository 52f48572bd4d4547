"""Facts about the records of segments that the manifest contains: their number and their range of timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.view import ReadRange
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.readable import ReadableSegment
from stratalog.tier.read.remote_segment import RemoteSegment

_UNKNOWN: Final = -1  # the timestamp of a record without one is also -1


class TimestampRange(NamedTuple):
    """Offsets [start, end) at which records may have timestamps in a requested range.

    ``is_certain`` is True if the timestamps of all records at these offsets are in the range.
    """

    start: int
    end: int
    is_certain: bool


def timestamp_ranges(log: LogReader, start: int, end: int, first_ms: int, last_ms: int) -> Iterator[TimestampRange]:
    """Yield the ranges in [start, end) that may have records with timestamps in [``first_ms``, ``last_ms``], ascending.

    Each offset range is within one segment. A segment is left out only if its largest timestamp is below ``first_ms``
    or its smallest timestamp is above ``last_ms``. The smallest timestamp is known only if the manifest of a tier has
    it. No record is decoded.

    Raises:
        StorageError: a segment on local disk, or the tier's list of segments, cannot be read.
    """
    for part in log.view().ranges(start, end):
        least_ms, largest_ms = least_timestamp_ms(part.segment), part.segment.max_timestamp_ms
        if largest_ms < first_ms or max(last_ms, -1) < least_ms:
            continue
        yield TimestampRange(part.start, part.end, max(first_ms, 0) <= least_ms and largest_ms <= last_ms)


def least_timestamp_ms(segment: ReadableSegment) -> int:
    """Return the smallest timestamp of a segment; -1 if it is unknown or before 1970, or if a record has none."""
    min_timestamp_ms = segment.entry.info.min_timestamp_ms if isinstance(segment, RemoteSegment) else None
    return _UNKNOWN if min_timestamp_ms is None else min_timestamp_ms


def records_of(part: ReadRange, aborted: Sequence[AbortedTransaction]) -> int | None:
    """Return the number of records that a reader of ``part`` gets; None if it is unknown without reading them.

    The number is known only if ``part`` is a whole segment, its manifest entry contains the number, and no transaction
    in ``aborted`` overlaps it.

    Args:
        part: an offset range of a segment.
        aborted: aborted transactions, whose records the reader does not get.
    """
    segment = part.segment
    if not isinstance(segment, RemoteSegment) or (part.start, part.end) != (segment.base_offset, segment.end_offset):
        return None
    if any(transaction.first_offset < part.end and transaction.last_offset >= part.start for transaction in aborted):
        return None
    return segment.entry.info.records
