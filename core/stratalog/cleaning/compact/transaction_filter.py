"""Choice of the transactional batches and end markers that a compaction pass over a log may drop.

Source: apache/kafka CleanedTransactionMetadata.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, TRANSACTIONAL_BIT, BatchTable, Buffer, RecordBatch
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import transaction_index

_SPECIAL: Final = CONTROL_BIT | TRANSACTIONAL_BIT


def is_special(table: BatchTable) -> bool:
    """Return True if a table has a transactional batch or a control batch."""
    return table.magic >= 2 and any(attributes & _SPECIAL for attributes in set(table.attributes))


@dataclass(slots=True)
class _Aborted:
    """A transaction that a later marker aborts; ``has_batch`` is True if the pass has read a batch of it."""

    entry: AbortedTransaction
    has_batch: bool = False


class AbortedIndex:
    """Reader of the transaction indexes of a log, which gives a pass the aborted transactions of each segment.

    The indexes are read as the pass advances, each of them once.

    Args:
        segments: segments from the first one of the pass to the end of the log, ascending.
    """

    def __init__(self, segments: Iterator[ReadableSegment], components: Components) -> None:
        self._segments, self._components = segments, components
        self._stable = 0  # below this offset all aborted transactions are known

    def load_for(self, segment: ReadableSegment, transactions: TransactionPass) -> None:
        """Add all aborted transactions with data in ``segment`` to ``transactions``, and possibly later transactions.

        Call this method for ascending segments. A later segment's index may list a transaction that has data in this
        segment. Reading stops at an index entry with a last stable offset at or above the segment's end offset.

        Source: apache/kafka TransactionIndex.collectAbortedTxns.
        """
        while self._stable < segment.end_offset:
            next_segment = next(self._segments, None)
            if next_segment is None:
                return
            if next_segment.end_offset <= segment.base_offset:
                continue
            entries = list(transaction_index(next_segment, self._components))
            transactions.expect(entry for entry in entries if entry.last_offset >= segment.base_offset)
            self._stable = max((entry.last_stable_offset for entry in entries), default=self._stable)


@dataclass(slots=True)
class TransactionPass:
    """State of transactions during one pass over a log. ``rows`` must be called for every special table, in order.

    Attributes:
        keeps_markers: True to keep all markers, and the index entries of abort markers, because older segments of the
            log may contain data of their transactions.
        committed: ids of producers whose current transaction is committed later; the pass has read data of that
            transaction, but not yet its marker.
        kept_entries: index entries of the aborted transactions whose markers stay, by the marker's offset.
    """

    components: Components
    keeps_markers: bool = False
    kept_entries: dict[int, AbortedTransaction] = field(default_factory=dict)
    _upcoming: list[tuple[int, int, AbortedTransaction]] = field(default_factory=list)  # a heap, by first offset
    _aborted: dict[int, _Aborted] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions, before ``rows`` gets their first batches. A transaction may be added twice."""
        for entry in aborted:
            heapq.heappush(self._upcoming, (entry.first_offset, entry.last_offset, entry))

    def rows(self, table: BatchTable, data: Buffer) -> list[bool]:
        """Return one bool for each batch of a table, in order: True if the batch can be dropped.

        Batches of aborted transactions can be dropped, and markers of transactions that have no batches any more.
        """
        return [self._is_dropped(batch, data) for batch in table]

    def _is_dropped(self, batch: RecordBatch, data: Buffer) -> bool:
        while self._upcoming and self._upcoming[0][0] <= batch.last_offset:
            entry = heapq.heappop(self._upcoming)[2]
            if entry.last_offset < batch.base_offset:
                continue  # the pass did not meet its marker
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))
        if batch.is_control:
            return self._ends_nothing(batch, data)
        if not batch.is_transactional or batch.producer_id == NO_PRODUCER:
            return False
        transaction = self._aborted.get(batch.producer_id)
        if transaction is None or transaction.entry.last_offset < batch.base_offset:
            self.committed.add(batch.producer_id)
            return False
        transaction.has_batch = True
        return True

    def _ends_nothing(self, batch: RecordBatch, data: Buffer) -> bool:
        if batch.record_count <= 0:
            return not self.keeps_markers  # emptied by an earlier compaction round
        control = read_control(data, batch, self.components)
        if not isinstance(control, EndMarker):
            return False
        if control.kind is ControlType.COMMIT:
            had_data = batch.producer_id in self.committed
            self.committed.discard(batch.producer_id)
            return not (had_data or self.keeps_markers)
        transaction = self._aborted.pop(batch.producer_id, None)
        if transaction is None or not (transaction.has_batch or self.keeps_markers):
            return not self.keeps_markers
        self.kept_entries[batch.last_offset] = transaction.entry
        return False
