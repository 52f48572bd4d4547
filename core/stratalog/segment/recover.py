"""Recovery of a segment after an unclean stop: the good part of its bytes, and its rebuilt indexes.

Source: apache/kafka LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import BatchTable
from stratalog.model.offsets import TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.index_entries import IndexEntries
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.indexes import IndexRole

Replay = Callable[[Chunk, BatchTable], Mapping[int, AbortedTransaction]]
"""Callback that receives the valid batches of a chunk, table by table. It returns the transactions that the abort
markers of the table end, by the row of the marker."""


@dataclass(frozen=True, slots=True)
class ValidPart:
    """Good part of a segment, as a scan found it.

    ``valid_bytes`` is the size of the good part, ``end_offset`` its exclusive end offset, and ``largest`` its largest
    timestamp. ``damage`` is the error that stopped the scan; None if the whole segment is good. ``entries`` has the
    contents of each index.
    """

    valid_bytes: int
    end_offset: int
    largest: TimestampOffset
    entries: dict[IndexRole, bytes]
    damage: CorruptBatchError | None


def scan_valid_part(
    segment: ReadableSegment,
    components: Components,
    config: TopicConfig,
    replay: Replay,
    on_bytes: OnBytes = uncounted,
    *,
    offset_limit: int | None = None,
) -> ValidPart:
    """Scan a segment once, with CRCs, up to the first damaged or truncated batch. Write nothing.

    ``replay`` receives the good batches. ``on_bytes`` is called with the size of each checked chunk. ``offset_limit``
    is the exclusive upper bound of the offsets: the base offset of the next segment. None means that there is no limit.
    """
    entries = IndexEntries(components.indexes, segment.base_offset, config)
    valid_bytes, end_offset = 0, segment.base_offset
    damage: CorruptBatchError | None = None
    chunks = walk(segment, 0, components, offset_limit=offset_limit)
    while True:
        try:
            chunk = next(chunks, None)
        except CorruptBatchError as error:
            damage = error
            break
        if chunk is None:
            break
        for table in chunk.tables:
            aborted = replay(chunk, table)
            entries.add(
                table, chunk.position, {transaction.last_offset: transaction for transaction in aborted.values()}
            )
        on_bytes(chunk.end_position - valid_bytes)
        valid_bytes, end_offset = chunk.end_position, chunk.tables[-1].last_offset[-1] + 1
    return ValidPart(valid_bytes, end_offset, entries.largest, entries.finish(), damage)
