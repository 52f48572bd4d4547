"""Rebuilding of a segment's indexes from its log.

Source: apache/kafka LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexRole

NONE_ABORTED: Final[Mapping[int, AbortedTransaction]] = {}
"""For batches without abort markers."""


def rebuilt_entries(segment: ReadableSegment, role: IndexRole, parts: Components) -> bytes:
    """Rebuild the entries of an offset or time index from the batches up to the first bad one.

    A transaction index cannot be rebuilt from its segment alone, because a transaction may begin before the segment. It is
    left empty here, and the log rebuilds it from the state of its producers.
    """
    if role is IndexRole.TRANSACTION:
        return b""
    builder = parts.indexes[role].builder(segment.base_offset, TopicConfig())
    made: list[bytes] = []
    try:
        for chunk in walk(segment, 0, parts, check_crc=False):
            made.extend(
                builder.add(PreparedBatches(table), chunk.position, NONE_ABORTED)
                for table in chunk.tables
                if len(table)
            )
    except CorruptBatchError:
        pass  # later batches cannot be found through an index either; a reader that gets there gets this error
    made.append(builder.finish())
    return b"".join(made)
