"""Deliveries that fail, or fail after the append, and are retried: the content of the log, and its sequences."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import pytest

from log_bed import LOG, LogBed
from stratalog import Record
from stratalog.client.delivery import RETRY_BACKOFF_MS, Delivery
from stratalog.client.log_access import Logs
from stratalog.client.pending import PendingBatch, RecordMetadata
from stratalog.client.sequences import LAST_EPOCH, ProducerId, Sequences, is_internal, new_producer_id
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    ClosedError,
    DiskFullError,
    LogDirOfflineError,
    OutOfOrderSequenceError,
    StorageError,
    UnknownTopicError,
)
from stratalog.log.append.append import AppendResult
from stratalog.log.log import Log
from stratalog.model.batches import Buffer

WAIT_S = 30
TIMEOUT_MS = 1000


class BusyError(StorageError):
    """An error after which a retry may succeed."""

    retriable = True


class Flaky:
    """Log whose appends fail as planned.

    Each item of ``plan`` is for one append: the error that is raised before the append, and the error after it, or
    None.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.plan: list[tuple[BaseException | None, BaseException | None]] = []
        self.appends = 0
        self.healthy = True

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    def append_as_leader(self, data: Buffer, durability: str | None = None) -> AppendResult:
        before, after = self.plan.pop(0) if self.plan else (None, None)
        self.appends += 1
        if before is not None:
            raise before
        result = self.log.append_as_leader(data, durability)
        if after is not None:
            raise after
        return result


class OneLog:
    def __init__(self, flaky: Flaky) -> None:
        self.flaky: Flaky | None = flaky

    def log(self, topic: str, partition: int) -> Flaky:
        if self.flaky is None:
            raise UnknownTopicError(f"there is no {topic}-{partition}")
        return self.flaky


class Bench:
    """A delivery to one log with an idempotent producer, by default."""

    def __init__(self, bed: LogBed, *, idempotent: bool = True) -> None:
        self.bed = bed
        self.flaky = Flaky(bed.open())
        self.logs = OneLog(self.flaky)
        self.sequences = Sequences(ProducerId(7, 0), random.Random(1))  # noqa: S311 - for a test
        self.failures: list[tuple[BaseException, bool]] = []
        self.deliver = Delivery(
            cast(Logs, self.logs),
            bed.components,
            self.sequences if idempotent else None,
            lambda error, unsure: self.failures.append((error, unsure)),
            codec=None,
            durability=None,
            timeout_ms=TIMEOUT_MS,
            transactional=False,
        )

    def send(self, *values: bytes) -> list[Future[RecordMetadata]]:
        batch = PendingBatch(LOG, 0, [Record(timestamp_ms=1000, value=value) for value in values])
        batch.futures = [Future() for _ in values]
        self.deliver(batch)
        return batch.futures

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.flaky.log.records()]


@pytest.fixture
def bench(bed: LogBed) -> Bench:
    return Bench(bed)


def test_batches_written_before_an_error_are_not_written_again(bench: Bench) -> None:
    bench.flaky.plan = [(None, BusyError("after the write")), (BusyError("before it"), None)]
    futures = bench.send(b"a", b"b")
    assert [future.result(WAIT_S).offset for future in futures] == [0, 1]
    assert bench.flaky.appends == 3
    assert bench.values() == [b"a", b"b"]
    assert [future.result(WAIT_S).offset for future in bench.send(b"c")] == [2]
    assert bench.failures == []


def test_without_idempotence_a_repeated_record_may_stand_twice(bed: LogBed) -> None:
    bench = Bench(bed, idempotent=False)
    bench.flaky.plan = [(None, BusyError("after the write"))]
    assert bench.send(b"a")[0].result(WAIT_S).offset == 1
    assert bench.values() == [b"a", b"a"]


def test_repeating_ends_with_its_time(bench: Bench) -> None:
    bench.flaky.plan = [(BusyError("always"), None)] * 1000
    (future,) = bench.send(b"a")
    with pytest.raises(BusyError):
        future.result(WAIT_S)
    assert bench.flaky.appends == TIMEOUT_MS // RETRY_BACKOFF_MS + 1


def test_after_an_unknown_outcome_the_partition_begins_under_the_next_epoch(bench: Bench) -> None:
    bench.send(b"a")
    bench.flaky.plan = [(None, LogDirOfflineError("it broke after the write", "disk"))]
    (future,) = bench.send(b"perhaps")
    with pytest.raises(LogDirOfflineError):
        future.result(WAIT_S)
    assert [unsure for _, unsure in bench.failures] == [True]
    assert bench.sequences.next_sequence(LOG) == (ProducerId(7, 1), 0)
    assert bench.send(b"b")[0].result(WAIT_S).offset == 2
    assert bench.values() == [b"a", b"perhaps", b"b"]


@pytest.mark.parametrize(
    "error", [lambda: DiskFullError("no space", "disk"), lambda: UnknownTopicError("it was deleted")]
)
def test_sequences_continue_after_a_refusal(bench: Bench, error: Callable[[], StorageError]) -> None:
    bench.send(b"a")
    bench.flaky.plan = [(error(), None)]
    (future,) = bench.send(b"refused")
    assert isinstance(future.exception(WAIT_S), StorageError)
    assert [unsure for _, unsure in bench.failures] == [False]
    assert bench.send(b"b")[0].result(WAIT_S).offset == 1
    assert bench.sequences.next_sequence(LOG) == (ProducerId(7, 0), 2)


def test_a_log_that_does_not_know_the_numbers_gets_new_ones(bench: Bench) -> None:
    bench.send(b"a")
    bench.sequences.advance(LOG, 5)  # the state of the producer as if the log had lost five records
    (future,) = bench.send(b"lost")
    with pytest.raises(OutOfOrderSequenceError):
        future.result(WAIT_S)
    assert bench.send(b"b")[0].result(WAIT_S).offset == 1


def test_records_of_a_deleted_topic_fail(bench: Bench) -> None:
    bench.logs.flaky = None
    (future,) = bench.send(b"a")
    with pytest.raises(UnknownTopicError):
        future.result(WAIT_S)


@pytest.mark.parametrize("healthy", [True, False])
def test_a_log_that_moves_to_another_directory_is_looked_up_again(bench: Bench, *, healthy: bool) -> None:
    """The log is closed during the move. A log that is out of service is also closed, and stays closed."""
    old, new = Flaky(bench.flaky.log), bench.flaky
    old.plan, old.healthy = [(ClosedError("the log is closed"), None)] * 3, healthy
    places = [old, old, old, new]
    bench.logs.log = lambda *_: places.pop(0)  # type: ignore[method-assign]  # as it moves
    (future,) = bench.send(b"a")
    if healthy:
        assert future.result(WAIT_S).offset == 0
        assert (old.appends, bench.failures) == (3, [])
    else:
        assert isinstance(future.exception(WAIT_S), ClosedError)
        assert old.appends == 1


def test_every_future_ends_after_any_error(bench: Bench) -> None:
    bench.flaky.plan = [(RuntimeError("a bug"), None)]
    for future in bench.send(b"a", b"b"):
        assert isinstance(future.exception(WAIT_S), RuntimeError)


# --- sequence numbers --------------------------------------------------------------------------------------------


def test_after_the_last_sequence_comes_0(bench: Bench) -> None:
    last = (1 << 31) - 2
    bench.sequences.next_sequence(LOG)
    bench.sequences.advance(LOG, last)
    for number in range(5):
        values = [b"%d" % index for index in range(3)]
        assert bench.send(*values)[0].result(WAIT_S).offset == 3 * number
    assert bench.sequences.next_sequence(LOG) == (ProducerId(7, 0), 13)


def test_after_the_last_epoch_comes_another_id() -> None:
    sequences = Sequences(ProducerId(7, LAST_EPOCH - 1), random.Random(1))  # noqa: S311 - for a test
    sequences.restart(LOG)
    assert sequences.next_sequence(LOG) == (ProducerId(7, LAST_EPOCH), 0)
    sequences.restart(LOG)
    (producer_id, epoch), sequence = sequences.next_sequence(LOG)
    assert producer_id != 7
    assert (epoch, sequence) == (0, 0)


def test_ids_fit_their_field_and_differ_from_those_of_brokers() -> None:
    chance = random.Random(1)  # noqa: S311 - for a test
    ids = {new_producer_id(chance).producer_id for _ in range(1000)}
    assert len(ids) == 1000
    assert all(is_internal(producer_id) and producer_id < 1 << 63 for producer_id in ids)
    assert not is_internal(10**12)
