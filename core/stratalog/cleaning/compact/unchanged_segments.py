"""Section of a segment's digest file about transactions, batches without records, and tombstones of V0 and V1.

A later compaction round may drop a transaction marker or an empty batch, depending on the batches before the segment.
The digest file therefore stores the state in which the last round reached the segment. If a later round reaches the
segment in the same state, the round can skip the segment. The digest file also stores the state after the segment, with
which a round that skips the segment reads the following segments.

Source: apache/kafka CleanedTransactionMetadata, Cleaner.cleanInto (shouldRetainRecord, lastRecordsOfActiveProducers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from stratalog.cleaning.compact.verdicts import DROP, KEEP, is_last
from stratalog.model.batches import NO_PRODUCER, BatchTable, Buffer, RecordBatch
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control

KIND: Final = "steady@1"
_COUNTS: Final = Struct("<BII")
_PRODUCER: Final = Struct("<qB")
_EMPTY: Final = Struct("<qqhh")
_NEEDS, _NEEDED, _LEAVES = 1, 2, 4


@dataclass(slots=True)
class UnchangedState:
    """State of transactions and empty batches in which a compaction round may skip a segment, and the state after it.

    One object may describe several adjacent segments.

    Attributes:
        needs: for each producer whose first transactional batch in the segment is a commit marker: True if an earlier
            segment must have data of that transaction, False if no earlier segment may have such data.
        leaves: for each producer with transactional batches in the segment: True if its last transaction has data but
            its marker is in a later segment.
        empty_batches: producer id, last offset, producer epoch and attributes of each batch that stays without records.
        has_old_tombstones: True if the segment has tombstones of V0 or V1, which expire by the segment's modification
            time.
    """

    needs: dict[int, bool] = field(default_factory=dict)
    leaves: dict[int, bool] = field(default_factory=dict)
    empty_batches: list[tuple[int, int, int, int]] = field(default_factory=list)
    has_old_tombstones: bool = False

    def __bool__(self) -> bool:
        return bool(self.leaves or self.empty_batches or self.has_old_tombstones)

    def holds(
        self, open_commits: set[int], last_records: Mapping[int, tuple[int, int]], *, old_tombstones_stay: bool
    ) -> bool:
        """Return True if a compaction round that reaches the segment in the given state would leave it unchanged.

        Args:
            open_commits: ids of producers with a committed transaction that has data before the segment, and its marker
                in the segment or after it.
            last_records: last data offset and epoch of each producer; see ``verdicts.stay_empty``.
            old_tombstones_stay: True if tombstones of V0 and V1 in the segment stay.
        """
        if self.has_old_tombstones and not old_tombstones_stay:
            return False
        if any((producer in open_commits) is not needed for producer, needed in self.needs.items()):
            return False
        return all(is_last(last_records.get(producer), *batch) for producer, *batch in self.empty_batches)

    def pass_over(self, open_commits: set[int]) -> None:
        """Update ``open_commits`` (see ``holds``) as if the compaction round had read the segment."""
        open_commits.difference_update(producer for producer, is_open in self.leaves.items() if not is_open)
        open_commits.update(producer for producer, is_open in self.leaves.items() if is_open)

    def join(self, following: UnchangedState) -> None:
        """Extend this state by the state ``following`` of the following segment, to describe both segments."""
        for producer, needed in following.needs.items():
            if producer not in self.leaves:
                self.needs[producer] = needed
        self.leaves |= following.leaves
        self.empty_batches += following.empty_batches
        self.has_old_tombstones |= following.has_old_tombstones

    def encode(self) -> bytes:
        """Return the state as the bytes of a digest section; see docs/formats/digest.md."""
        head = _COUNTS.pack(self.has_old_tombstones, len(self.leaves), len(self.empty_batches))
        producers = (
            _PRODUCER.pack(
                producer,
                _LEAVES * is_open + _NEEDS * (producer in self.needs) + _NEEDED * self.needs.get(producer, False),
            )
            for producer, is_open in self.leaves.items()
        )
        return head + b"".join(producers) + b"".join(_EMPTY.pack(*batch) for batch in self.empty_batches)

    @classmethod
    def decode(cls, data: Buffer) -> UnchangedState:
        """Return the state from the bytes of a digest section, whose CRC the caller has checked."""
        view = memoryview(data)
        has_old, producer_count, empty_count = _COUNTS.unpack_from(view)
        empties_start = _COUNTS.size + producer_count * _PRODUCER.size
        state = cls(has_old_tombstones=bool(has_old))
        for producer, flags in _PRODUCER.iter_unpack(view[_COUNTS.size : empties_start]):
            state.leaves[producer] = bool(flags & _LEAVES)
            if flags & _NEEDS:
                state.needs[producer] = bool(flags & _NEEDED)
        state.empty_batches = list(_EMPTY.iter_unpack(view[empties_start : empties_start + empty_count * _EMPTY.size]))
        return state


class BatchVerdicts(NamedTuple):
    """Decisions of a pass about the batches of a table; each sequence has one item for each batch.

    Attributes:
        data: bytes to which the table's positions refer.
        verdicts: verdicts on the records of each batch, one byte for each record.
        stay_empty: True for a batch that must stay even without records; None if the table has no such batch.
        aborted: True for a batch of an aborted transaction, and for a marker whose transaction has no batches; None if
            the table has no transactions.
        horizon_ms: delete horizon (ms since 1970) for batches that need one and have none.
    """

    data: Buffer
    verdicts: Sequence[Buffer]
    stay_empty: Sequence[bool] | None
    aborted: Sequence[bool] | None
    horizon_ms: int


@dataclass(slots=True)
class UnchangedTracker:
    """Tracker of transactions in the segments that a pass writes: computes the state that the next round will find.

    Attributes:
        last_records: last data offset and epoch of each producer; see ``verdicts.stay_empty``.
        open_commits: ids of producers with a committed transaction that has data before the current position, and its
            marker after the position.
    """

    components: Components
    last_records: Mapping[int, tuple[int, int]]
    open_commits: set[int] = field(default_factory=set)

    def note(self, table: BatchTable, facts: BatchVerdicts, state: UnchangedState) -> bool:
        """Add the batches that the pass writes from a table to the segment state ``state``.

        Return False if the next compaction round will drop or change a batch.
        """
        is_unchanged = True
        for row, verdicts in enumerate(facts.verdicts):
            batch_verdicts = bytes(verdicts)
            is_empty = batch_verdicts.count(DROP) == len(batch_verdicts)
            if is_empty and (facts.stay_empty is None or not facts.stay_empty[row]):
                continue
            batch = table[row]
            if not is_empty:
                is_unchanged &= self._note_kept(batch, facts.data, batch_verdicts, state)
            elif batch.is_control or facts.aborted is None or not facts.aborted[row]:
                is_unchanged &= self._note_empty(batch, state)
            else:  # the empty batch keeps the marker of its transaction
                is_unchanged = False
        return is_unchanged

    def _note_empty(self, batch: RecordBatch, state: UnchangedState) -> bool:
        """Add a batch without records to ``state``; return False if the next compaction round will drop it."""
        empty_batch = (batch.producer_id, batch.last_offset, batch.producer_epoch, batch.attributes)
        if batch.producer_id == NO_PRODUCER or not is_last(self.last_records.get(batch.producer_id), *empty_batch[1:]):
            return False  # it stays only because it was the last batch of the compaction round
        state.empty_batches.append(empty_batch)
        if batch.is_transactional and not batch.is_control:
            self._set_open(batch.producer_id, state, is_open=True)
        return True

    def _note_kept(self, batch: RecordBatch, data: Buffer, verdicts: bytes, state: UnchangedState) -> bool:
        if batch.producer_id == NO_PRODUCER or not (batch.is_control or batch.is_transactional):
            return True
        if not batch.is_control:
            self._set_open(batch.producer_id, state, is_open=True)
            return True
        control = read_control(data, batch, self.components)
        if not isinstance(control, EndMarker):
            return True
        if control.kind is ControlType.ABORT:
            return KEEP not in verdicts  # the next round finds the transaction empty, because the aborted data is gone
        producer, was_open = batch.producer_id, batch.producer_id in self.open_commits
        if producer not in state.leaves:
            state.needs[producer] = was_open
        self._set_open(producer, state, is_open=False)
        return was_open is (KEEP in verdicts)

    def _set_open(self, producer: int, state: UnchangedState, *, is_open: bool) -> None:
        state.leaves[producer] = is_open
        (self.open_commits.add if is_open else self.open_commits.discard)(producer)
