"""Check of the content of batches: every record is decompressed and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.batches import BatchTable, RecordBatch
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind
from stratalog.segment.framing import Chunk

_TELLS_BOUNDS: Final = 2  # the first magic with a first offset and a count in its headers


def check_records(chunk: Chunk, table: BatchTable, label: str, components: Components) -> tuple[int, list[Finding]]:
    """Decode batches whose framing and CRC are good; return the number of good records, and a finding for each bad batch.

    A batch is bad if its producer wrote it that way, or if a codec is missing. ``label`` names the file of the chunk.
    """
    records, findings = 0, list[Finding]()
    for row, batch in enumerate(table):
        try:
            count, wrong = _decoded(chunk, table.take(row, row + 1), batch, components)
        except StorageError as error:
            count, wrong = 0, getattr(error, "reason", "") or str(error)
        if wrong:
            text = f"the records of the batch that ends at offset {batch.last_offset} are wrong: {wrong}"
            findings.append(Finding(FindingKind.DAMAGE, label, chunk.position + batch.position, text))
        else:
            records += count
    return records, findings


def _decoded(chunk: Chunk, row: BatchTable, batch: RecordBatch, components: Components) -> tuple[int, str]:
    """Return the number of records of a batch, and the problem with them; "" if they are good."""
    form = components.formats.of(batch.magic, "", 0)
    limit_bytes = components.limits.decompressed_bytes
    count = 0
    for columns in form.decode(chunk.data, row, fields=Fields.ALL, limit_bytes=limit_bytes):
        for wrong in _wrong_offsets(columns, batch):
            return count, wrong
        count += columns.count
    if batch.magic >= _TELLS_BOUNDS and count != batch.record_count:
        return count, f"the header has {batch.record_count} records, the batch has {count}"
    return count, ""


def _wrong_offsets(columns: RecordColumns, batch: RecordBatch) -> Iterator[str]:
    offsets = columns.offset.tolist()
    first = batch.base_offset if batch.magic >= _TELLS_BOUNDS else 0
    if offsets and not first <= offsets[0] <= offsets[-1] <= batch.last_offset:
        yield f"offsets {offsets[0]} to {offsets[-1]} in a batch of {first} to {batch.last_offset}"
    if any(later <= before for before, later in pairwise(offsets)):
        yield "offsets do not ascend"
