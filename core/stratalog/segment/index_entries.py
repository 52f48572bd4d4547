"""Contents of a segment's indexes, made from its batches.

Source: apache/kafka LogSegment.append, LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import NO_TIMESTAMP, BatchTable
from stratalog.model.offsets import TimestampOffset
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexFormat, IndexRole

NONE_ABORTED: Final[Mapping[int, AbortedTransaction]] = {}
"""The aborted transactions of batches without abort markers: none."""


class IndexEntries:
    """Builder of the contents of a segment's indexes, from its batches in order. Keeps all entries in memory.

    Args:
        indexes: formats of the indexes to build.
        base_offset: base offset of the segment.
        config: settings of the topic.

    Attributes:
        largest: largest timestamp so far, and the last offset of the first batch that has it.
    """

    def __init__(self, indexes: Mapping[IndexRole, IndexFormat[Any]], base_offset: int, config: TopicConfig) -> None:
        self.largest = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._builders = {role: index_format.builder(base_offset, config) for role, index_format in indexes.items()}
        self._pieces: dict[IndexRole, list[bytes]] = {role: [] for role in self._builders}

    def add(self, table: BatchTable, position: int, aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED) -> None:
        """Add the batches of a table.

        Args:
            table: the batches.
            position: position in the ``.log`` file (bytes) to which the table's positions are relative.
            aborted: the aborted transactions that end in the segment, by the offset of their marker.
        """
        batches = PreparedBatches(table)
        for role, builder in self._builders.items():
            self._pieces[role].append(builder.add(batches, position, aborted))
        if batches.largest_ms > self.largest.timestamp_ms:
            self.largest = TimestampOffset(batches.largest_ms, batches.largest_offset)

    def finish(self) -> dict[IndexRole, bytes]:
        """Return the contents of each index, with the closing entries."""
        return {role: b"".join([*self._pieces[role], builder.finish()]) for role, builder in self._builders.items()}


def rebuild_entries(segment: ReadableSegment, role: IndexRole, components: Components) -> bytes:
    """Return the entries of an offset or time index, rebuilt from the batches before the first damaged batch.

    For a transaction index, the result is empty: it cannot be rebuilt from its segment alone, because a transaction may
    begin before the segment. The log rebuilds a transaction index from the state of its producers.
    """
    if role is IndexRole.TRANSACTION:
        return b""
    entries = IndexEntries({role: components.indexes[role]}, segment.base_offset, TopicConfig())
    try:
        for chunk in walk(segment, 0, components, check_crc=False):
            for table in chunk.tables:
                entries.add(table, chunk.position)
    except CorruptBatchError:
        pass  # a read of the later batches raises this error, even with an index
    return entries.finish()[role]
