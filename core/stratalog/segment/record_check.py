"""Check of the content of batches: every record is decompressed and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.batches import BatchTable, RecordBatch
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk
from stratalog.segment.segment_check import Problem, ProblemKind

_TELLS_BOUNDS: Final = 2  # the first magic with a first offset and a count in its headers


@dataclass(slots=True)
class DeepCheck:
    """Result of a check of batches whose framing and CRC are good.

    Attributes:
        parts: the log's components.
        records: number of records that could be decoded.
        problems: one for each bad batch: its producer wrote it that way, or a codec is missing.
    """

    parts: Components
    records: int = 0
    problems: list[Problem] = field(default_factory=list)

    def look(self, label: str, chunk: Chunk, table: BatchTable) -> None:
        """Decode the batches of ``table``; ``label`` names the file of the chunk."""
        for row, batch in enumerate(table):
            try:
                wrong = self._wrong(chunk, table.take(row, row + 1), batch)
            except StorageError as error:
                wrong = getattr(error, "reason", "") or str(error)
            if wrong:
                text = f"the records of the batch up to offset {batch.last_offset} are wrong: {wrong}"
                self.problems.append(Problem(ProblemKind.DAMAGE, label, chunk.position + batch.position, text))

    def _wrong(self, chunk: Chunk, row: BatchTable, batch: RecordBatch) -> str:
        form = self.parts.formats.of(batch.magic, "", 0)
        limit_bytes = self.parts.limits.decompressed_bytes
        count = 0
        for columns in form.decode(chunk.data, row, fields=Fields.ALL, limit_bytes=limit_bytes):
            for wrong in _wrong_offsets(columns, batch):
                return wrong
            count += columns.count
        if batch.magic >= _TELLS_BOUNDS and count != batch.record_count:
            return f"the header says {batch.record_count} records, there are {count}"
        self.records += count
        return ""


def _wrong_offsets(columns: RecordColumns, batch: RecordBatch) -> Iterator[str]:
    offsets = columns.offset.tolist()
    first = batch.base_offset if batch.magic >= _TELLS_BOUNDS else 0
    if offsets and not first <= offsets[0] <= offsets[-1] <= batch.last_offset:
        yield f"offsets {offsets[0]} to {offsets[-1]} in a batch of {first} to {batch.last_offset}"
    if any(later <= before for before, later in pairwise(offsets)):
        yield "offsets do not ascend"
