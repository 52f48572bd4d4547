"""Dump of ``.index``, ``.timeindex`` and ``.txnindex`` files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from stratalog.cli.dump.file_dump import FileDump
from stratalog.cli.dump.kinds import Kind
from stratalog.cli.dump.source import PIECE_BYTES, Source, zeros_from
from stratalog.errors import CorruptIndexError
from stratalog.spi.indexes import IndexFormat, IndexRole

_ANY_OFFSET: Final = (1 << 63) - 1
_ANY_SIZE: Final = 1 << 31

# role, kind of the rows in JSON, and columns of each index
_INDEXES: Final = {
    Kind.INDEX: (IndexRole.OFFSET, "offset_entry", ("offset", "position")),
    Kind.TIME_INDEX: (IndexRole.TIME, "time_entry", ("timestamp_ms", "offset")),
    Kind.TRANSACTION_INDEX: (
        IndexRole.TRANSACTION,
        "aborted_transaction",
        ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
    ),
}


def dump_index(file: FileDump, kind: Kind, base_offset: int | None) -> None:
    """Show the entries of an index, and the size of the preallocated space at its end, which is not damage.

    Raise CorruptIndexError if an entry contradicts an earlier one, or if the file ends inside an entry.
    """
    role, row_kind, columns = _INDEXES[kind]
    index, source = file.run.components.indexes[role], file.source
    used_bytes = -(-zeros_from(source) // index.entry_bytes) * index.entry_bytes
    unused_bytes = source.size_bytes - used_bytes
    file.title(f"{kind}, {source.size_bytes} bytes, base offset {base_offset or 0}")
    with file.sheet(row_kind, columns) as sheet:
        entries = _entries(index, source, base_offset or 0, min(used_bytes, source.size_bytes))
        for entry in islice(entries, file.run.limit):
            sheet.row([getattr(entry, column) for column in columns])
    if unused_bytes > 0:
        file.item("preallocated", {"position": used_bytes, "size_bytes": unused_bytes})
        file.run.output.line(
            f"({unused_bytes} bytes from position {used_bytes} on are preallocated, or were lost in a crash)"
        )


def _entries(index: IndexFormat[Any], source: Source, base_offset: int, end: int) -> Iterator[object]:
    """Yield the entries in the bytes [0, end); raise CorruptIndexError for an entry that contradicts an earlier one."""
    size = index.entry_bytes
    piece_bytes = PIECE_BYTES // size * size
    for start in range(0, end, piece_bytes):
        overlap = size if start else 0  # read the previous entry again, to compare it with the first new entry
        data = bytes(source.read(start - overlap, min(piece_bytes, end - start) + overlap))
        reader = index.reader(data, base_offset)
        damage: CorruptIndexError | None = None
        try:
            reader.check(_ANY_OFFSET, _ANY_SIZE)
        except CorruptIndexError as error:
            damage = CorruptIndexError(error.reason, source.label, start - overlap + error.position)
        good_end = len(reader) if damage is None else (damage.position - start + overlap) // size
        for number in range(1 if start else 0, good_end):
            yield reader[number]
        if damage is not None:
            raise damage
