"""The transaction index, ``.txnindex``. It lists the aborted transactions whose abort marker is in the segment.

An entry has 34 bytes: version (int16, 0), producer id, first offset, last offset (the offset of the marker), and the
last stable offset when the marker was written (int64 each). The first offset may be in an earlier segment, so the index
cannot be rebuilt from its segment alone.

Source: apache/kafka TransactionIndex, AbortedTxn.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from stratalog.errors import CorruptIndexError
from stratalog.spi import AbortedTransaction, IndexBuilder, IndexRole, PreparedBatches
from stratalog_formats.indexes.entries import EntryIndex, EntryReader
from stratalog_formats.kernels.entries import not_ascending

LAYOUT: Final = Struct(">hqqqq")
VERSION: Final = 0


class TransactionReader(EntryReader[AbortedTransaction]):
    """Reader that searches by the marker's offset.

    If an entry has an unknown version, its read raises CorruptIndexError.
    """

    layout, key = LAYOUT, (18, 8)

    def _entry(self, index: int) -> AbortedTransaction:
        version, *fields = self._fields(index)
        if _is_unknown(version):
            raise CorruptIndexError(f"entry version {version} is unknown", "", index * LAYOUT.size)
        return AbortedTransaction(*fields)

    def _offset(self, index: int) -> int:
        last_offset: int = self._fields(index)[3]
        return last_offset

    def _fault(self, end_offset: int, size_bytes: int) -> tuple[int, str] | None:
        del size_bytes
        previous = self._base_offset - 1
        for index, (version, _, first_offset, last_offset, last_stable_offset) in enumerate(self._all_fields()):
            if _is_unknown(version):
                return index, f"entry version {version} is unknown"
            if not previous < last_offset < end_offset:
                return index, f"marker offset {last_offset} is out of order or outside the segment"
            if not (0 <= first_offset <= last_offset and 0 <= last_stable_offset <= last_offset + 1):
                return index, f"offsets {first_offset} and {last_stable_offset} do not match marker {last_offset}"
            previous = last_offset
        return None


def _is_unknown(version: int) -> bool:
    """Return True if the version is unknown. Like Kafka, stratalog checks only the high byte of the version."""
    return bool(version >> 8)


class TransactionBuilder(IndexBuilder):
    """Builder that adds one entry for each abort marker.

    The index has no size limit. If an aborted transaction had no entry, a reader would return its records.
    ``last_offset`` is the marker's offset in the last entry, or -1.
    """

    __slots__ = ("_last_offset",)

    def __init__(self, last_offset: int) -> None:
        self._last_offset = last_offset

    @property
    def full(self) -> bool:
        """False: the index has no size limit."""
        return False

    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        """Return one entry for each abort marker in ``batches``; b"" if there are none.

        ``aborted`` contains the aborted transactions, by the offset of their marker.

        Raises:
            CorruptBatchError: the offset of a marker is not above the marker's offset in the last entry.
        """
        if not aborted:
            return b""
        new_entries, table = [], batches.table
        for start, offset in zip(table.position, table.last_offset, strict=True):
            entry = aborted.get(offset)
            if entry is None:
                continue
            if entry.last_offset <= self._last_offset:
                raise not_ascending("abort marker", entry.last_offset, self._last_offset, position + start)
            self._last_offset = entry.last_offset
            new_entries.append(
                LAYOUT.pack(VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            )
        return b"".join(new_entries)

    def finish(self) -> bytes:
        """Return b"": a transaction index has no entry for the end of the segment."""
        return b""


class TransactionIndex(EntryIndex[AbortedTransaction]):
    """Index format whose entries are aborted transactions."""

    role = IndexRole.TRANSACTION
    suffix = ".txnindex"
    entry_bytes = LAYOUT.size
    reader_class = TransactionReader

    def _continue_index(
        self, base_offset: int, interval_bytes: int, max_entries: int, existing: EntryReader[AbortedTransaction]
    ) -> IndexBuilder:
        del base_offset, interval_bytes, max_entries
        return TransactionBuilder(existing[-1].last_offset if len(existing) else -1)
