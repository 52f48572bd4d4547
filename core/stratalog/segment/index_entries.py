"""Rebuilding of a segment's indexes from its log.

Source: apache/kafka LogSegment.recover.
"""

from __future__ import annotations

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import RecordBatch
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import Appended, IndexRole


def appended(batch: RecordBatch, position: int, aborted: AbortedTransaction | None = None) -> Appended:
    """Return the description of a batch at this file position for index builders."""
    return Appended(position, batch.size_bytes, batch.base_offset, batch.last_offset, batch.max_timestamp_ms, aborted)


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
            made.extend(builder.add_table(table, chunk.position) for table in chunk.tables)
    except CorruptBatchError:
        pass  # later batches cannot be found through an index either; a reader that gets there gets this error
    made.append(builder.finish())
    return b"".join(made)
