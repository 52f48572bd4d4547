"""Producers, markers and retries in random order, with rolls, reopening and crashes, compared with Kafka's rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    RecordError,
    TransactionCoordinatorFencedError,
)
from stratalog.log.log import Log
from stratalog.registry.registry import Registry

SEQUENCES = 1 << 31
NEAR_THE_WRAP = SEQUENCES - 4


@dataclass(frozen=True)
class Written:
    """A batch in the log: ``count`` records from ``offset`` on. ``count`` is 0 for a marker."""

    offset: int
    producer: int
    epoch: int
    sequence: int
    count: int
    transactional: bool = False
    coordinator: int = -1
    commit: bool = False


@dataclass
class Known:
    """Expected state of one producer."""

    epoch: int
    coordinator: int = -1
    batches: list[Written] = field(default_factory=list)
    opened_at: int | None = None


Model: TypeAlias = dict[int, Known]
Refusal: TypeAlias = type[RecordError]


def follow(model: Model, batch: Written) -> tuple[int, int] | None:
    """Update the model for a batch.

    Return first offset and marker offset of the transaction that the batch aborted, or None.
    """
    state = model.setdefault(batch.producer, Known(batch.epoch))
    if state.epoch != batch.epoch:
        state.epoch, state.batches = batch.epoch, []
    if batch.count:
        state.batches = [*state.batches, batch][-5:]
        if batch.transactional and state.opened_at is None:
            state.opened_at = batch.offset
        return None
    opened_at, state.opened_at, state.coordinator = state.opened_at, None, batch.coordinator
    return None if opened_at is None or batch.commit else (opened_at, batch.offset)


def verdict(state: Known | None, batch: Written) -> Written | Refusal | None:
    """Return the expected result of an append.

    It is the earlier batch if this one is a retry, the class of the error, or None if the log must write the batch.
    """
    if state is None:
        return None
    if batch.count and state.epoch == batch.epoch:
        for earlier in state.batches:
            if (earlier.sequence, earlier.count) == (batch.sequence, batch.count):
                return earlier
    if batch.epoch < state.epoch:
        return InvalidProducerEpochError
    if not batch.count:
        return TransactionCoordinatorFencedError if batch.coordinator < state.coordinator else None
    expected = 0
    if state.batches and state.epoch == batch.epoch:
        expected = (state.batches[-1].sequence + state.batches[-1].count) % SEQUENCES
    if batch.sequence != expected:
        return OutOfOrderSequenceError
    if state.opened_at is not None and not batch.transactional:
        return InvalidTxnStateError
    return None


class ProducerMachine(RuleBasedStateMachine):
    """State machine of producers and one log.

    ``history`` has all batches, ``model`` the expected producer state, and ``aborted`` producer id and offsets of
    aborted transactions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.bed = LogBed(Path(self.folder.name) / "data", Registry.load(), TopicConfig(segment_bytes=700))
        self.history: list[Written] = []
        self.aborted: list[tuple[int, int]] = []
        self.model: Model = {}
        self.log: Log

    @initialize()
    def begin(self) -> None:
        self.log = self.bed.open()

    @property
    def end(self) -> int:
        last = self.history[-1] if self.history else None
        return 0 if last is None else last.offset + max(last.count, 1)

    @rule(
        producer=st.integers(1, 3),
        bump=st.sampled_from([0, 0, 0, 0, 1, -1]),
        ahead=st.sampled_from([0, 0, 0, 0, 1, -1, NEAR_THE_WRAP]),
        count=st.integers(1, 4),
        transactional=st.booleans(),
    )
    def send(self, producer: int, bump: int, ahead: int, count: int, transactional: bool) -> None:  # noqa: FBT001 - hypothesis names its arguments
        state = self.model.get(producer)
        epoch = max((state.epoch if state else 1) + bump, 0)
        last = state.batches[-1] if state and state.batches and not bump else None
        sequence = ((last.sequence + last.count if last else 0) + ahead) % SEQUENCES
        self._send(Written(self.end, producer, epoch, sequence, count, transactional))

    @rule(back=st.sampled_from([1, 1, 2, 4, 5, 5, 6]))
    def send_again(self, back: int) -> None:
        sent = [entry for entry in self.history if entry.count]
        if sent:
            old = sent[-min(back, len(sent))]
            self._send(Written(self.end, old.producer, old.epoch, old.sequence, old.count, old.transactional))

    @rule(
        producer=st.integers(1, 3),
        bump=st.sampled_from([0, 0, 1, -1]),
        coordinator=st.integers(0, 2),
        commit=st.booleans(),
    )
    def end_transaction(self, producer: int, bump: int, coordinator: int, commit: bool) -> None:  # noqa: FBT001 - hypothesis names its arguments
        state = self.model.get(producer)
        epoch = max((state.epoch if state else 1) + bump, 0)
        marker = Written(self.end, producer, epoch, -1, 0, coordinator=coordinator, commit=commit)
        expected = verdict(state, marker)

        def attempt() -> int:
            return self.log.end_transaction(producer, epoch, commit=commit, coordinator_epoch=coordinator).base_offset

        if expected is None:
            assert attempt() == marker.offset
            self._note(marker)
        else:
            assert isinstance(expected, type)
            with pytest.raises(expected):
                attempt()

    def _send(self, batch: Written) -> None:
        data = self.bed.batch(
            0,
            records(batch.count),
            producer=(batch.producer, batch.epoch, batch.sequence),
            transactional=batch.transactional,
        )
        expected = verdict(self.model.get(batch.producer), batch)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.log.append_as_leader(data)
            return
        result = self.log.append_as_leader(data)
        where = expected or batch
        assert (result.base_offset, result.last_offset) == (where.offset, where.offset + where.count - 1)
        assert result.duplicate is (expected is not None)
        if expected is None:
            self._note(batch)

    def _note(self, batch: Written) -> None:
        self.history.append(batch)
        ended = follow(self.model, batch)
        if ended is not None:
            self.aborted.append((batch.producer, ended[0]))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def reopen(self) -> None:
        """Reopen the log: a snapshot remembers only the last batch of each producer."""
        self.log = self.bed.open()
        for state in self.model.values():
            state.batches = state.batches[-1:]

    @rule()
    def crash(self) -> None:
        """Crash, and open the log: no record was reported as durable, so recovery reads the whole log."""
        self.bed.crash()
        self.log = self.bed.open(clean=False)
        self.model = {}
        for batch in self.history:
            follow(self.model, batch)

    @invariant()
    def bounds_and_transactions_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        first_offsets = {
            transaction.producer_id: transaction.transaction_first_offset
            for transaction in self.log.open_transactions()
        }
        expected = {pid: state.opened_at for pid, state in self.model.items() if state.opened_at is not None}
        assert first_offsets == expected
        bounds = self.log.offsets()
        assert bounds.log_end == self.end
        assert bounds.last_stable == min(expected.values(), default=self.end)

    @invariant()
    def read_committed_leaves_out_what_was_aborted(self) -> None:
        if not hasattr(self, "log"):
            return
        stable = self.log.offsets().last_stable
        committed = [offset for batch in self.history for offset in self._committed(batch) if offset < stable]
        assert [record.offset for record in self.log.records(isolation="read_committed")] == committed

    def _committed(self, batch: Written) -> range:
        if not batch.count:
            return range(0)
        ends = [entry.offset for entry in self.history if entry.producer == batch.producer and not entry.count]
        end = next((offset for offset in ends if offset > batch.offset), None)
        lost = batch.transactional and any(
            producer == batch.producer and first <= batch.offset and self._aborts(end)
            for producer, first in self.aborted
        )
        return range(0) if lost else range(batch.offset, batch.offset + batch.count)

    def _aborts(self, offset: int | None) -> bool:
        return any(entry.offset == offset and not entry.count and not entry.commit for entry in self.history)

    def teardown(self) -> None:
        self.bed.close()
        self.folder.cleanup()


TestProducerMachine = pytest.mark.long(ProducerMachine.TestCase)
TestProducerMachine.settings = settings(max_examples=40, stateful_step_count=25)
