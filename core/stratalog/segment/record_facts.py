"""Facts about the records of a closed segment that neither batch headers nor Kafka's indexes contain."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from stratalog.errors import CorruptionError, UnsupportedCompressionError
from stratalog.model.batches import TIMESTAMP_TYPE_BIT, BatchTable
from stratalog.model.records import Fields
from stratalog.model.segment_info import SegmentInfo
from stratalog.segment.components import Components
from stratalog.segment.control_batches import drop_markers
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode

_LOGGER: Final = logging.getLogger(__name__)


def add_record_facts(info: SegmentInfo, segment: ReadableSegment, components: Components) -> SegmentInfo:
    """Return ``info`` with the number of the segment's data records and their smallest timestamp (-1 without records).

    Records are decoded, because a batch header has only the timestamp of its first record, and later records may be
    older. If a batch is damaged, or its codec is not installed, a warning is logged, and ``info`` is returned
    unchanged.

    Raises:
        StorageError: a read failed.
    """
    records, least_ms = 0, None
    try:
        for chunk in walk(segment, 0, components, check_crc=False):
            for table in chunk.tables:
                for count, timestamp_ms in _table_facts(chunk, table, segment, components):
                    if count:
                        records += count
                        least_ms = timestamp_ms if least_ms is None else min(least_ms, timestamp_ms)
    except (CorruptionError, UnsupportedCompressionError):
        _LOGGER.warning("%s is uploaded without the number of its records", segment.label, exc_info=True)
        return info
    return replace(info, records=records, min_timestamp_ms=-1 if least_ms is None else max(least_ms, -1))


def _table_facts(
    chunk: Chunk, table: BatchTable, segment: ReadableSegment, components: Components
) -> list[tuple[int, int]]:
    """Return pairs (number of data records, their smallest timestamp in ms), each for a part of the table.

    The parts together are the whole table. A record without a timestamp counts as -1.
    """
    data_batches = drop_markers(table)
    if table.magic == 2 and all(
        map(TIMESTAMP_TYPE_BIT.__and__, data_batches.attributes)
    ):  # each record has the batch's time
        rows = zip(data_batches.record_count, data_batches.max_timestamp_ms, strict=True)
        return list(rows)
    decoded = decode(chunk, data_batches, segment, components, Fields.OFFSET | Fields.TIMESTAMP)
    return [(columns.count, min(columns.timestamp_ms, default=-1)) for columns in decoded]
