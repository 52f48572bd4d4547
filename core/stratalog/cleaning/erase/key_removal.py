"""Removal of the records of one key from a segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stratalog.cleaning.compact.verdicts import DROP, KEEP, by_batch
from stratalog.errors import CorruptBatchError, CorruptionError
from stratalog.log.log import Log
from stratalog.model.batches import CONTROL_BIT, BatchTable, Buffer
from stratalog.model.matching import rows_of_key
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.build import Transform, unchanged
from stratalog.segment.control_batches import CONTROL_MAGIC, without_markers
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode

_HAS_KEY: Final = 1
_TO_VERDICT: Final = bytes.maketrans(b"\0\1", KEEP + DROP)


def records_of(log: Log, segment: ReadableSegment, key: bytes, *, below: int | None = None) -> int:
    """Return the number of records of the key in a segment, or, with ``below``, only of records below that offset.

    Raises:
        CorruptionError: a batch, or its file or object, is damaged. Before this error, bytes of a tier are read a
            second time, because the first transfer may have damaged the bytes.
    """
    try:
        return _counted(log, segment, key, below)
    except CorruptionError:
        if not segment.forget():
            raise
    return _counted(log, segment, key, below)


def _counted(log: Log, segment: ReadableSegment, key: bytes, below: int | None) -> int:
    count = 0
    for chunk in walk(segment, 0, log.components):
        for table in chunk.tables:
            for columns in _data_of(log, segment, chunk, table):
                wanted = columns.count if below is None else bisect_left(columns.offset, below)
                count += rows_of_key(columns, key).count(_HAS_KEY, 0, wanted)
    return count


def without_key(log: Log, segment: ReadableSegment, key: bytes) -> Transform:
    """Return a function that removes the records of the key from batches of ``segment``."""

    def transform(chunk: Chunk, table: BatchTable) -> Iterable[Buffer]:
        judged = [rows_of_key(columns, key) for columns in _data_of(log, segment, chunk, table)]
        if not any(_HAS_KEY in found for found in judged):
            return unchanged(chunk, table)
        retained = _retained(log, segment, chunk, table, judged)
        return [retained] if retained else []

    return transform


def _data_of(log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable) -> Iterator[RecordColumns]:
    """Iterate over the offsets and keys of a table's records, without transaction markers."""
    return decode(chunk, without_markers(table), segment, log.components, Fields.OFFSET | Fields.KEY)


def _retained(log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable, judged: Sequence[bytes]) -> bytes:
    """Return a table's batches without the records that have a 1 in ``judged``, the results of ``rows_of_key``.

    Transaction markers stay, and batches of magic 2 that lose all records stay as headers.
    """
    words = by_batch(without_markers(table), (found.translate(_TO_VERDICT) for found in judged))
    control_bit = CONTROL_BIT if table.magic >= CONTROL_MAGIC else 0
    verdicts: list[Buffer] = [
        KEEP * count if attributes & control_bit else next(words)
        for attributes, count in zip(table.attributes, table.record_count, strict=True)
    ]
    found = log.components.formats.of(table.magic, segment.label, chunk.position)
    keeps_headers = [True] * len(table) if table.magic >= 2 else None
    limit_bytes = log.components.limits.decompressed_bytes
    try:
        pieces = found.retain(chunk.data, table, verdicts, None, retain_empty=keeps_headers, limit_bytes=limit_bytes)
        return b"".join(pieces)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
