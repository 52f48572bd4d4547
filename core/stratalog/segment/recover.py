"""Recovering a segment after an unclean stop: how much of it is good, and its indexes made again.

Source: apache/kafka LogSegment.recover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import NO_TIMESTAMP, RecordBatch
from stratalog.model.offsets import TimestampOffset
from stratalog.model.segments import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.rebuild import appended
from stratalog.spi.indexes import IndexRole

Replay = Callable[[Chunk, RecordBatch], AbortedTransaction | None]
"""Told of each good batch, in order; returns the transaction that it, an abort marker, ends."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a scan of a segment found good.

    ``damage`` says what stopped it, None if all is good. ``entries`` holds the contents of each index.
    """

    valid_bytes: int
    end_offset: int
    largest: TimestampOffset
    entries: dict[IndexRole, bytes]
    damage: CorruptBatchError | None


def recovered(segment: ReadableSegment, parts: Components, config: TopicConfig, replay: Replay) -> Recovered:
    """Scan a segment, CRCs checked, up to the first entry that is bad or cut off. Writes nothing."""
    builders = {role: found.builder(segment.base_offset, config) for role, found in parts.indexes.items()}
    made: dict[IndexRole, list[bytes]] = {role: [] for role in builders}
    valid_bytes, end_offset = 0, segment.base_offset
    largest = TimestampOffset(NO_TIMESTAMP, segment.base_offset)
    damage: CorruptBatchError | None = None
    try:
        for chunk in walk(segment, 0, parts):
            for batch in chunk.batches():
                position = chunk.position + batch.position
                told = appended(batch, position, replay(chunk, batch))
                for role, builder in builders.items():
                    if not builder.full:
                        made[role].append(builder.add(told))
                if batch.max_timestamp_ms > largest.timestamp_ms:
                    largest = TimestampOffset(batch.max_timestamp_ms, batch.last_offset)
                valid_bytes, end_offset = position + batch.size_bytes, batch.next_offset
    except CorruptBatchError as error:
        damage = error
    for role, builder in builders.items():
        made[role].append(builder.finish())
    entries = {role: b"".join(pieces) for role, pieces in made.items()}
    return Recovered(valid_bytes, end_offset, largest, entries, damage)
