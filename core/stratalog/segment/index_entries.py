"""Making a segment's indexes again from its log: they are disposable.

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
    """What index builders are told of a batch at this file position."""
    return Appended(position, batch.size_bytes, batch.base_offset, batch.last_offset, batch.max_timestamp_ms, aborted)


def rebuilt_entries(segment: ReadableSegment, role: IndexRole, parts: Components) -> bytes:
    """The entries of an offset or time index, made from the batches up to the first bad one.

    A transaction index cannot be made from its segment alone, since a transaction may begin before it: it is left
    empty here, and the log makes it again from its producers' state.
    """
    if role is IndexRole.TRANSACTION:
        return b""
    builder = parts.indexes[role].builder(segment.base_offset, TopicConfig())
    made: list[bytes] = []
    try:
        for chunk in walk(segment, 0, parts, check_crc=False):
            made.extend(builder.add_table(table, chunk.position) for table in chunk.tables)
    except CorruptBatchError:
        pass  # what follows cannot be found through an index either; a reader that gets there is told
    made.append(builder.finish())
    return b"".join(made)
