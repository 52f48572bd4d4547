"""Removal of the records of one key from a segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stratalog.cleaning.compact.verdicts import DROP, KEEP, split_by_batch
from stratalog.errors import CorruptBatchError, CorruptionError
from stratalog.log.log import Log
from stratalog.model.batches import CONTROL_BIT, BatchTable, Buffer
from stratalog.model.matching import rows_of_key
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.build import Transform, unchanged
from stratalog.segment.control_batches import CONTROL_MAGIC, drop_markers
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode

_HAS_KEY: Final = 1
_TO_VERDICT: Final = bytes.maketrans(b"\0\1", KEEP + DROP)


def count_records(log: Log, segment: ReadableSegment, key: bytes, *, below: int | None = None) -> int:
    """Return the number of records of the key in a segment, or, with ``below``, only of records below that offset.

    Raises:
        CorruptionError: a batch, or its file or object, is damaged. Before this error, bytes of a tier are read a
            second time, because the first transfer may have damaged the bytes.
    """
    try:
        return _count_once(log, segment, key, below)
    except CorruptionError:
        if not segment.forget():
            raise
    return _count_once(log, segment, key, below)


def _count_once(log: Log, segment: ReadableSegment, key: bytes, below: int | None) -> int:
    count = 0
    for chunk in walk(segment, 0, log.components):
        for table in chunk.tables:
            for columns in _data_of(log, segment, chunk, table):
                row_count = columns.count if below is None else bisect_left(columns.offset, below)
                count += rows_of_key(columns, key).count(_HAS_KEY, 0, row_count)
    return count


def without_key(log: Log, segment: ReadableSegment, key: bytes) -> Transform:
    """Return a function that removes the records of the key from batches of ``segment``."""

    def transform(chunk: Chunk, table: BatchTable) -> Iterable[Buffer]:
        key_flags = [rows_of_key(columns, key) for columns in _data_of(log, segment, chunk, table)]
        if not any(_HAS_KEY in flags for flags in key_flags):
            return unchanged(chunk, table)
        retained = _retain_others(log, segment, chunk, table, key_flags)
        return [retained] if retained else []

    return transform


def _data_of(log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable) -> Iterator[RecordColumns]:
    """Iterate over the offsets and keys of a table's records, without transaction markers."""
    return decode(chunk, drop_markers(table), segment, log.components, Fields.OFFSET | Fields.KEY)


def _retain_others(
    log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable, key_flags: Sequence[bytes]
) -> bytes:
    """Return a table's batches without the records that have a 1 in ``key_flags``, the results of ``rows_of_key``.

    Transaction markers stay, and batches of magic 2 that lose all records stay as headers.
    """
    data_verdicts = split_by_batch(drop_markers(table), (flags.translate(_TO_VERDICT) for flags in key_flags))
    control_bit = CONTROL_BIT if table.magic >= CONTROL_MAGIC else 0
    verdicts: list[Buffer] = [
        KEEP * count if attributes & control_bit else next(data_verdicts)
        for attributes, count in zip(table.attributes, table.record_count, strict=True)
    ]
    record_format = log.components.formats.of(table.magic, segment.label, chunk.position)
    keeps_headers = [True] * len(table) if table.magic >= 2 else None
    limit_bytes = log.components.limits.decompressed_bytes
    try:
        pieces = record_format.retain(
            chunk.data, table, verdicts, None, retain_empty=keeps_headers, limit_bytes=limit_bytes
        )
        return b"".join(pieces)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
