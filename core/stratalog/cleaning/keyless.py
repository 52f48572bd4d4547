"""A segment without the records of one key."""

from __future__ import annotations

import hashlib
from bisect import bisect_left

from stratalog.cleaning.verdicts import DROP, KEEP, by_batch
from stratalog.errors import CorruptBatchError, CorruptionError
from stratalog.log.cleaned import CleanedSegment
from stratalog.log.log import Log
from stratalog.model.batches import CONTROL_BIT, BatchTable, Buffer
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode, transaction_index


def records_of(log: Log, segment: ReadableSegment, key: bytes, *, below: int | None = None) -> int:
    """How many records of the key a segment holds; ``below`` an offset, if one is given.

    Raises:
        CorruptionError: a batch, or what holds it, is damaged, and was not only on its way.
    """
    try:
        return _counted(log, segment, key, below)
    except CorruptionError:
        if not segment.forget():
            raise
    return _counted(log, segment, key, below)


def _counted(log: Log, segment: ReadableSegment, key: bytes, below: int | None) -> int:
    chunks = walk(segment, 0, log.parts)
    tables = ((chunk, table) for chunk in chunks for table in chunk.tables)
    found = (_verdicts(log, segment, chunk, table, key, below) for chunk, table in tables)
    return sum(words.count(DROP) for verdicts in found for words in verdicts)


def write_without(log: Log, segment: ReadableSegment, key: bytes, made: CleanedSegment) -> str:
    """Write a segment without these records; the SHA-256 of what was written, hex. Errors as ``CleanedSegment.append``."""
    ended = {entry.last_offset: entry for entry in transaction_index(segment, log.parts)}
    digest = hashlib.sha256()
    for chunk in walk(segment, 0, log.parts, below=segment.end_offset):
        for table in chunk.tables:
            data = _retained(log, segment, chunk, table, key)
            if data:
                made.append(data, ended)
                digest.update(data)
    return digest.hexdigest()


def _verdicts(
    log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable, key: bytes, below: int | None = None
) -> list[bytes]:
    """One list of verdicts a batch; markers stay."""
    is_data = [not attributes & CONTROL_BIT for attributes in table.attributes]
    wanted = table if all(is_data) else table.keep(is_data)
    decoded = decode(chunk, wanted, segment, log.parts, Fields.OFFSET | Fields.KEY)
    judged = ((columns, _words(columns, key, below)) for columns in decoded)
    words = by_batch(wanted, judged)
    return [
        bytes(next(words)) if data else KEEP * count for data, count in zip(is_data, table.record_count, strict=True)
    ]


def _words(records: RecordColumns, key: bytes, below: int | None) -> bytearray:
    wanted = records.count if below is None else bisect_left(records.offset, below)
    keys = records.keys()[:wanted]
    return bytearray(b"".join(DROP if found == key else KEEP for found in keys) + KEEP * (records.count - wanted))


def _retained(log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable, key: bytes) -> bytes:
    verdicts: list[Buffer] = [*_verdicts(log, segment, chunk, table, key)]
    found = log.parts.formats.of(table.magic, segment.label, chunk.position)
    keeps_headers = [True] * len(table) if table.magic >= 2 else None
    limit_bytes = log.parts.limits.decompressed_bytes
    try:
        pieces = found.retain(chunk.data, table, verdicts, None, retain_empty=keeps_headers, limit_bytes=limit_bytes)
        return b"".join(pieces)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
