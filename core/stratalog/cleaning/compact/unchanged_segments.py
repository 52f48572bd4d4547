"""What else than records a later round may change in a segment: transactions, batches without records, old tombstones.

Whether something of these goes depends on what the round meets before the segment. So a digest says what that was: where it
is so again, reading would leave the same bytes. It also says what reading would have told the round, for what comes behind.

Source: apache/kafka CleanedTransactionMetadata, Cleaner.cleanInto (shouldRetainRecord, lastRecordsOfActiveProducers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from stratalog.cleaning.compact.empty_batches import is_last
from stratalog.cleaning.compact.verdicts import DROP, KEEP
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
class Steady:
    """What one segment, or several that follow each other, need to find and leave behind.

    Attributes:
        needs: of producers of whom a commit marker comes first, whether data of its transaction must have been met before.
        leaves: of all producers with transactions, whether data whose marker is yet to come has been met behind the segment.
        empties: batches that stay without records: producer, last offset, epoch, attributes.
        has_old_tombstones: there are some of V0 or V1, which go by the segment's time.
    """

    needs: dict[int, bool] = field(default_factory=dict)
    leaves: dict[int, bool] = field(default_factory=dict)
    empties: list[tuple[int, int, int, int]] = field(default_factory=list)
    has_old_tombstones: bool = False

    def __bool__(self) -> bool:
        return bool(self.leaves or self.empties or self.has_old_tombstones)

    def holds(self, met: set[int], last_records: Mapping[int, tuple[int, int]], *, old_tombstones_stay: bool) -> bool:
        """Whether a round finds what is needed.

        Args:
            met: the producers of whose committed transactions it has met data and no marker.
            last_records: of producers, as ``empties.stay_empty`` takes them.
            old_tombstones_stay: whether those of V0 and V1 in the segment do.
        """
        if self.has_old_tombstones and not old_tombstones_stay:
            return False
        if any((producer in met) is not needed for producer, needed in self.needs.items()):
            return False
        return all(is_last(last_records.get(producer), *rest) for producer, *rest in self.empties)

    def pass_over(self, met: set[int]) -> None:
        """Tell a round what reading the segment would have."""
        met.difference_update(producer for producer, is_left in self.leaves.items() if not is_left)
        met.update(producer for producer, is_left in self.leaves.items() if is_left)

    def join(self, behind: Steady) -> None:
        """Take what follows as well."""
        for producer, needed in behind.needs.items():
            if producer not in self.leaves:
                self.needs[producer] = needed
        self.leaves |= behind.leaves
        self.empties += behind.empties
        self.has_old_tombstones |= behind.has_old_tombstones

    def encode(self) -> bytes:
        """The bytes of a section; docs/formats/digest.md."""
        head = _COUNTS.pack(self.has_old_tombstones, len(self.leaves), len(self.empties))
        producers = (
            _PRODUCER.pack(
                producer,
                _LEAVES * is_left + _NEEDS * (producer in self.needs) + _NEEDED * self.needs.get(producer, False),
            )
            for producer, is_left in self.leaves.items()
        )
        return head + b"".join(producers) + b"".join(_EMPTY.pack(*found) for found in self.empties)

    @classmethod
    def decode(cls, data: Buffer) -> Steady:
        """Of bytes whose CRC is good."""
        view = memoryview(data)
        old, producers, empties = _COUNTS.unpack_from(view)
        split = _COUNTS.size + producers * _PRODUCER.size
        found = cls(has_old_tombstones=bool(old))
        for producer, flags in _PRODUCER.iter_unpack(view[_COUNTS.size : split]):
            found.leaves[producer] = bool(flags & _LEAVES)
            if flags & _NEEDS:
                found.needs[producer] = bool(flags & _NEEDED)
        found.empties = list(_EMPTY.iter_unpack(view[split : split + empties * _EMPTY.size]))
        return found


class Looks(NamedTuple):
    """What a pass knows of the batches of a table, row by row.

    Attributes:
        data: what positions are into.
        verdicts: of their records.
        stay_empty: which stay though no record does; None: none.
        aborted: of which the transaction was aborted, markers that end nothing among them; None: there are no transactions.
        horizon_ms: what those get that need one and have none.
    """

    data: Buffer
    verdicts: Sequence[Buffer]
    stay_empty: Sequence[bool] | None
    aborted: Sequence[bool] | None
    horizon_ms: int


@dataclass(slots=True)
class SteadyState:
    """Follows what stays of the segments that a pass reads or passes over, as the next round will find it.

    Attributes:
        parts: the log's components.
        last_records: of producers, as ``empties.stay_empty`` takes them.
        met: the producers of whose committed transactions there is data before here, and no marker.
    """

    parts: Components
    last_records: Mapping[int, tuple[int, int]]
    met: set[int] = field(default_factory=set)

    def look_at(self, table: BatchTable, looks: Looks, to: Steady) -> bool:
        """Note what the batches of a table are when the pass is through; False if the next round will change one of them."""
        is_steady = True
        for row, words in enumerate(looks.verdicts):
            said = bytes(words)
            is_empty = said.count(DROP) == len(said)
            if is_empty and (looks.stay_empty is None or not looks.stay_empty[row]):
                continue
            batch = table[row]
            if not is_empty:
                is_steady &= self._kept(batch, looks.data, said, to)
            elif batch.is_control or looks.aborted is None or not looks.aborted[row]:
                is_steady &= self._empty(batch, to)
            else:  # it keeps the marker of its transaction
                is_steady = False
        return is_steady

    def _empty(self, batch: RecordBatch, to: Steady) -> bool:
        """Of a transaction it counts as data; a marker in it ends nothing."""
        found = (batch.producer_id, batch.last_offset, batch.producer_epoch, batch.attributes)
        if batch.producer_id == NO_PRODUCER or not is_last(self.last_records.get(batch.producer_id), *found[1:]):
            return False  # the last batch of the round
        to.empties.append(found)
        if batch.is_transactional and not batch.is_control:
            self._meet(batch.producer_id, to, is_met=True)
        return True

    def _kept(self, batch: RecordBatch, data: Buffer, words: bytes, to: Steady) -> bool:
        if batch.producer_id == NO_PRODUCER or not (batch.is_control or batch.is_transactional):
            return True
        if not batch.is_control:
            self._meet(batch.producer_id, to, is_met=True)
            return True
        control = read_control(data, batch, self.parts)
        if not isinstance(control, EndMarker):
            return True
        if control.kind is ControlType.ABORT:
            return KEEP not in words  # what it aborted is gone by the next round
        producer, was_met = batch.producer_id, batch.producer_id in self.met
        if producer not in to.leaves:
            to.needs[producer] = was_met
        self._meet(producer, to, is_met=False)
        return was_met is (KEEP in words)

    def _meet(self, producer: int, to: Steady, *, is_met: bool) -> None:
        to.leaves[producer] = is_met
        (self.met.add if is_met else self.met.discard)(producer)
