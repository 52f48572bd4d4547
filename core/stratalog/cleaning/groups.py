"""Which segments become one.

Source: apache/kafka Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole

_MEASURED: Final = (IndexRole.OFFSET, IndexRole.TIME)


def groups_of(
    segments: Sequence[Segment], file_sizes: Mapping[str, int], config: TopicConfig
) -> Iterator[list[Segment]]:
    """Runs of segments that fit one together, greedily: by bytes, by offset and time index, and by range of offsets.

    Args:
        segments: closed ones that follow each other.
        file_sizes: of the files in the log's folder (bytes), by name.
        config: of the topic.
    """
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    group: list[Segment] = []
    total = [0, 0, 0]
    for segment in segments:
        sizes = [segment.size_bytes, *(_index_bytes(segment, role, file_sizes) for role in _MEASURED)]
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


def _index_bytes(segment: Segment, role: IndexRole, file_sizes: Mapping[str, int]) -> int:
    return file_sizes.get(segment.file_name(segment.parts.indexes[role].suffix), 0)


def _in_range(first: Segment, segment: Segment) -> bool:
    """Whether the last offset that a segment may hold can be written relative to the base of the group."""
    return not segment.size_bytes or segment.end_offset - 1 - first.base_offset <= MAX_RELATIVE_OFFSET
