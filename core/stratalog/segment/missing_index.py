"""Replacements for index formats that are not installed: the log can be read without its indexes, but not written.

Searches begin at the start of a segment. Aborted transactions in local segments are found by reading the log when it is
opened. A ``read_committed`` read of a tier's segment with aborted transactions raises UnknownComponentError.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import UnknownComponentError
from stratalog.model.batches import Buffer
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.spi.indexes import IndexBuilder, IndexFormat, IndexReader, IndexRole

_TAG: Final = b"held"  # entries in another format, from a tier, begin with other bytes
_ENTRY: Final = Struct("<4sqqqq")


class MissingIndex(IndexFormat[Any]):  # Any: entries of every kind
    """Base of the replacements: an index format without files."""

    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """Return the size of all entries: a truncation keeps all."""
        del base_offset, end_offset
        return memoryview(entries).nbytes


class _NoEntries(MissingIndex):
    entry_bytes = 1

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """Return a builder that makes no entries."""
        del base_offset, config, entries
        return _Builder()

    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[Any]:
        """Return a reader without entries; stored entries are ignored."""
        del entries, base_offset
        return _Reader(())


class NoOffsets(_NoEntries):
    """Replacement for an OFFSET index."""

    role = IndexRole.OFFSET
    suffix = ".nooffsets"


class NoTimes(_NoEntries):
    """Replacement for a TIME index."""

    role = IndexRole.TIME
    suffix = ".notimes"


class HeldTransactions(MissingIndex):
    """Replacement for a TRANSACTION index: its entries are made when a log is opened, and kept in memory."""

    role = IndexRole.TRANSACTION
    suffix = ".notransactions"
    entry_bytes = _ENTRY.size

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """Return a builder of entries for aborted transactions."""
        del base_offset, config, entries
        return _TransactionBuilder()

    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[Any]:
        """Return a reader of the entries in memory.

        Raises:
            UnknownComponentError: the entries come from a tier, and have the format that is not installed.
        """
        del base_offset
        transactions = []
        for position in range(0, memoryview(entries).nbytes, _ENTRY.size):
            if bytes(entries[position : position + len(_TAG)]) != _TAG:
                raise UnknownComponentError(
                    "the transaction index of a segment in the tier cannot be read, because its format in "
                    "index.formats is not installed: install the plugin that provides it, or read with isolation "
                    "read_uncommitted"
                )
            transactions.append(AbortedTransaction(*_ENTRY.unpack_from(entries, position)[1:]))
        return _Reader(tuple(transactions))


class _Builder(IndexBuilder):
    @property
    def full(self) -> bool:
        return False

    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        del batches, position, aborted
        return b""

    def finish(self) -> bytes:
        return b""


class _TransactionBuilder(_Builder):
    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        del position
        transactions = [aborted[offset] for offset in batches.table.last_offset if offset in aborted] if aborted else []
        return b"".join(
            _ENTRY.pack(
                _TAG,
                transaction.producer_id,
                transaction.first_offset,
                transaction.last_offset,
                transaction.last_stable_offset,
            )
            for transaction in transactions
        )


class _Reader(IndexReader[Any]):  # Any: entries of every kind
    """A reader over aborted transactions, ascending by the offset of their markers."""

    def __init__(self, entries: tuple[AbortedTransaction, ...]) -> None:
        self._entries, self._offsets = entries, [entry.last_offset for entry in entries]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> AbortedTransaction:
        return self._entries[index]

    def floor(self, target: int) -> AbortedTransaction | None:
        index = bisect_right(self._offsets, target) - 1
        return self._entries[index] if index >= 0 else None

    def after(self, target: int) -> AbortedTransaction | None:
        index = bisect_left(self._offsets, target)
        return self._entries[index] if index < len(self._entries) else None

    def check(self, end_offset: int, size_bytes: int) -> None:
        """Do nothing: the entries were made from the log itself."""


MISSING_INDEXES: Final[Mapping[IndexRole, MissingIndex]] = {
    index.role: index for index in (NoOffsets(), NoTimes(), HeldTransactions())
}


def missing_roles(components: Components) -> frozenset[IndexRole]:
    """Return the roles whose index format is not installed."""
    return frozenset(
        role for role, index_format in components.indexes.items() if isinstance(index_format, MissingIndex)
    )
