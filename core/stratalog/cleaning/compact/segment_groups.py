"""Choice of the groups of adjacent segments that compaction merges into one segment each.

Source: apache/kafka Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from stratalog.cleaning.compact.segment_range import S
from stratalog.config.topic import TopicConfig
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexRole

_MEASURED: Final = (IndexRole.OFFSET, IndexRole.TIME)


def groups_of(
    segments: Iterable[S], index_bytes: Callable[[S, IndexRole], int], config: TopicConfig
) -> Iterator[list[S]]:
    """Yield groups of adjacent segments; each group is as long as one segment can hold.

    The limits are ``segment.bytes`` for the batches, ``segment.index.bytes`` for the offset index and for the time
    index, and the range of relative offsets (32 bits). ``index_bytes`` returns the size of a segment's index with a
    role.
    """
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    group: list[S] = []
    totals = [0, 0, 0]
    for segment in segments:
        sizes = [segment.size_bytes, *(index_bytes(segment, role) for role in _MEASURED)]
        new_totals = [old_total + size for old_total, size in zip(totals, sizes, strict=True)]
        fits = all(size <= limit for size, limit in zip(new_totals, limits, strict=True))
        if group and fits and _is_in_range(group[0], segment):
            group.append(segment)
            totals = new_totals
            continue
        if group:
            yield group
        group, totals = [segment], sizes
    if group:
        yield group


def _is_in_range(first: ReadableSegment, segment: ReadableSegment) -> bool:
    """Return True if ``segment`` is empty, or its offsets relative to the base offset of ``first`` fit into 32 bits."""
    return not segment.size_bytes or segment.end_offset - 1 - first.base_offset <= MAX_RELATIVE_OFFSET
