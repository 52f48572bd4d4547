"""Merging of small closed segments into one segment, with unchanged batches.

A program that appends often creates many small segments. The segments at a log's end are merged when there are enough
segments of similar size. Then few small segments remain, and each record is copied only a few times, no matter how long
the program runs. Segments are merged only if their times are in the same interval of ``segment.ms``, because time-based
retention deletes a segment as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from stratalog.cleaning.compact.segment_groups import groups_of
from stratalog.cleaning.compact.segment_range import S, SegmentPublisher, SegmentRange
from stratalog.config.topic import TopicConfig
from stratalog.segment.build import copy_batches
from stratalog.writing.recode import RewriteTarget
from stratalog.writing.staged import Rewritten

FAN_IN: Final = 8  # minimal number of segments at the end for a merge
_GROWTH: Final = 4  # a merged segment is at least this many times as large as each of its parts


class SizedSegment(Protocol):
    """A segment, with the properties that decide whether it is merged."""

    @property
    def size_bytes(self) -> int:
        """Size (bytes) of the ``.log`` file."""

    @property
    def age_from_ms(self) -> int:
        """Timestamp (ms since 1970) from which time-based retention counts the age of the segment."""


_Sized = TypeVar("_Sized", bound=SizedSegment)


def end_group(segments: Sequence[_Sized], limit_bytes: int, config: TopicConfig) -> Sequence[_Sized]:
    """Return the segments at a log's end that should be merged now; an empty sequence if a merge is not useful yet.

    ``segments`` are the adjacent closed segments up to the log's end. The result is the longest run of 8 or more
    segments at the end with these properties: the run has at most ``limit_bytes``, and at most ``segment.bytes`` of the
    topic, all segments are in one interval of ``segment.ms``, and no segment has more than a quarter of the bytes. If n
    segments of the same size are appended, fewer than 8 + 3 * log4(n) segments remain, and each is copied at most
    log4(n) times.
    """
    limit_bytes = min(limit_bytes, config.segment_bytes)
    count = total = largest = 0
    for number, segment in enumerate(reversed(segments), 1):
        total += segment.size_bytes
        if total > limit_bytes or _age_class(segment, config) != _age_class(segments[-1], config):
            break
        largest = max(largest, segment.size_bytes)
        if number >= FAN_IN and largest * _GROWTH <= total:
            count = number
    return segments[len(segments) - count :]


def small_groups(segments: Sequence[_Sized], limit_bytes: int, config: TopicConfig) -> Iterator[list[_Sized]]:
    """Yield groups of two or more adjacent small segments that should be merged.

    The limit is ``limit_bytes``, or the topic's ``segment.bytes`` if this is smaller. A segment is small if its size is
    at most half of the limit. A second call with the merged segments yields no group: a merged segment is larger than
    half of the limit, or has no small neighbour in its interval of ``segment.ms``.
    """
    limit_bytes = min(limit_bytes, config.segment_bytes)
    group, total = list[_Sized](), 0
    for segment in segments:
        is_small = 2 * segment.size_bytes <= limit_bytes
        is_other = bool(group) and _age_class(segment, config) != _age_class(group[0], config)
        if not is_small or is_other or total + segment.size_bytes > limit_bytes:
            if len(group) > 1:
                yield group
            group, total = [], 0
        if is_small:
            group.append(segment)
            total += segment.size_bytes
    if len(group) > 1:
        yield group


def _age_class(segment: SizedSegment, config: TopicConfig) -> int:
    return segment.age_from_ms // config.segment_ms


def mergeable(part: SegmentRange[S], segments: Sequence[S]) -> list[list[S]]:
    """Divide adjacent segments into groups that each fit into one segment; return the groups of two or more."""
    return [group for group in groups_of(segments, part.index_bytes, part.config) if len(group) > 1]


def merge_group(part: SegmentRange[S], publisher: SegmentPublisher[S], group: Sequence[S]) -> int | None:
    """Replace several segments by one segment with their batches, and return the number of records.

    Return None if the log has changed during the copy; nothing was replaced then.

    Raises:
        CorruptBatchError: a batch is damaged; nothing was replaced.
        StorageError: the copy failed; nothing was replaced.
        The errors of ``publisher.replace``.
    """
    with publisher.begin(group[0].base_offset) as builder:
        records = sum(copy_batches(segment, builder, part.components).records for segment in group)
        new_segment = builder.finish(group[-1].end_offset, part.modified_ms(group[-1]))
    return records if publisher.replace(new_segment, group) else None


def merge_part(target: RewriteTarget, groups: Sequence[tuple[int, int]]) -> Rewritten:
    """Stage merged segments for groups of segments, given by their offsets [start, end).

    Raises the errors of ``merge_group``.
    """
    count = records = size_bytes = 0
    for start, end in groups:
        segments = [segment for segment in target.segments.from_offset(start) if start <= segment.base_offset < end]
        for group in mergeable(target.segments, segments):
            records += merge_group(target.segments, target, group) or 0
            count += len(group)
            size_bytes += sum(segment.size_bytes for segment in group)
    return Rewritten(tuple(target.staged), count, records, records, size_bytes, size_bytes)
