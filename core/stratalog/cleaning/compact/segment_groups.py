"""Which segments become one.

Source: apache/kafka Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexRole

S = TypeVar("S", bound=ReadableSegment)

_MEASURED: Final = (IndexRole.OFFSET, IndexRole.TIME)


def groups_of(
    segments: Iterable[S], index_bytes: Callable[[S, IndexRole], int], config: TopicConfig
) -> Iterator[list[S]]:
    """Runs of segments that fit one together, greedily: by bytes, by offset and time index, and by range of offsets.

    Args:
        segments: closed ones that follow each other.
        index_bytes: the size of an index of a segment.
        config: of the topic.
    """
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    group: list[S] = []
    total = [0, 0, 0]
    for segment in segments:
        sizes = [segment.size_bytes, *(index_bytes(segment, role) for role in _MEASURED)]
        joined = [have + more for have, more in zip(total, sizes, strict=True)]
        fits = all(size <= limit for size, limit in zip(joined, limits, strict=True))
        if group and fits and _in_range(group[0], segment):
            group.append(segment)
            total = joined
            continue
        if group:
            yield group
        group, total = [segment], sizes
    if group:
        yield group


def _in_range(first: ReadableSegment, segment: ReadableSegment) -> bool:
    """Whether the last offset that a segment may hold can be written relative to the base of the group."""
    return not segment.size_bytes or segment.end_offset - 1 - first.base_offset <= MAX_RELATIVE_OFFSET
