"""Transactions of producers outside of the process: calls of the coordinator as a gateway makes them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog import Engine, Log, ProducerId, Record, TopicPartition, open_engine
from stratalog.client.sequences import LAST_EPOCH, is_external, is_internal
from stratalog.client.statetopic import CONFIG
from stratalog.client.transactions.transaction_log import TransactionLog
from stratalog.engine.engine_logs import EngineLogs
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionState,
    TransactionStatus,
    parse_transaction_record,
    transaction_key,
    transaction_value,
)
from stratalog.spi import BatchHeader
from stratalog.testing.faults import FaultyVfs

MINUTE_MS = 60_000
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
WAIT_S = 30
ID, OTHER_ID = "tx", "other"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Faulty:
    """An engine that calls ``before``, if set, for each write to ``t-0``."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.before: Callable[[], None] | None = None
        files = FaultyVfs()
        files.rule = self._rule
        self.engine = open_engine(folder, env=Env(files=files, clock=clock))

    def _rule(self, operation: str, path: str) -> None:
        if self.before is not None and operation == "write" and path.endswith(f"t-0/{0:020}.log"):
            self.before()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def faulty(tmp_path: Path, clock: ManualClock) -> Iterator[Faulty]:
    faulty_engine = Faulty(tmp_path / "engine", clock)
    with faulty_engine.engine:
        prepare(faulty_engine.engine)
        yield faulty_engine
        faulty_engine.before = None


@pytest.fixture
def engine(faulty: Faulty) -> Engine:
    return faulty.engine


def prepare(engine: Engine) -> None:
    """Create the topics. The internal topics have fewer partitions than usual, because each test creates them."""
    engine.create_topic("t", partitions=2)
    for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
        engine.create_topic(topic, config=CONFIG)


def append(engine: Engine, producer: ProducerId, value: bytes, *, sequence: int = 0, name: TopicPartition = T0) -> None:
    """Append a batch of a transactional producer."""
    log = engine.log(*name)
    header = BatchHeader(
        producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=sequence, transactional=True
    )
    data = log.components.formats.of(2, "", 0).encode([Record(timestamp_ms=NOW_MS, value=value)], header, None, None)
    log.append_as_leader(data)


def begun(engine: Engine, transactional_id: str = ID, *names: TopicPartition, version: int = 0) -> ProducerId:
    """Begin a transaction with a record in each partition, and return its producer."""
    producer = engine.transactions.init_producer(transactional_id, MINUTE_MS)
    engine.transactions.add_partitions(transactional_id, producer, names or [T0], version=version)
    for name in names or [T0]:
        append(engine, producer, transactional_id.encode(), name=name)
    return producer


def with_last_epoch(engine: Engine) -> ProducerId:
    """Store the last epoch that a producer can have, and return its producer."""
    producer = engine.transactions.init_producer(ID, MINUTE_MS)
    state = engine.transactions.state(ID)
    assert state is not None
    value = transaction_value(replace(state, producer_epoch=LAST_EPOCH - 1), 0)
    engine.log(TRANSACTIONS_TOPIC).append([Record(timestamp_ms=NOW_MS, key=transaction_key(ID), value=value)])
    return ProducerId(producer.producer_id, LAST_EPOCH - 1)


def status(engine: Engine, transactional_id: str = ID) -> int:
    state = engine.transactions.state(transactional_id)
    assert state is not None
    return state.status


def stable(log: Log) -> bool:
    return log.offsets().last_stable == log.offsets().log_end


def committed(engine: Engine, name: TopicPartition = T0) -> list[bytes | None]:
    return [record.value for record in engine.log(*name).records(isolation="read_committed")]


def crashed(tmp_path: Path) -> Path:
    """Return a copy of the directory of ``engine``, as a crash would leave it now."""
    return shutil.copytree(tmp_path / "engine", tmp_path / "left", ignore=shutil.ignore_patterns(".lock"))


# --- calls for one transactional id do not wait for another id -------------------------------------------------------


def test_others_continue_while_the_markers_of_one_transaction_are_written(faulty: Faulty) -> None:
    engine, transactions = faulty.engine, faulty.engine.transactions
    slow, writes, may_write = begun(engine), threading.Event(), threading.Event()
    transactions.recover()  # reads all logs, as a gateway does before it serves

    def wait() -> None:
        writes.set()
        assert may_write.wait(WAIT_S)

    faulty.before = wait
    ending = threading.Thread(target=lambda: transactions.end_decided(ID, slow, commit=True))
    ending.start()
    try:
        assert writes.wait(WAIT_S)
        quick = begun(engine, OTHER_ID, T1)
        transactions.end_decided(OTHER_ID, quick, commit=True)
        assert status(engine, OTHER_ID) == TransactionStatus.COMPLETE_COMMIT
        assert set(transactions.states()) == {ID, OTHER_ID}
        for call in (
            lambda: transactions.end_decided(ID, slow, commit=True),
            lambda: transactions.add_partitions(ID, slow, [T1]),
            lambda: transactions.init_producer(ID, MINUTE_MS),
        ):
            with pytest.raises(ConcurrentTransactionsError):
                call()
        assert transactions.abort_expired() == ()
    finally:
        may_write.set()
        ending.join(WAIT_S)
    assert status(engine) == TransactionStatus.COMPLETE_COMMIT
    transactions.add_partitions(ID, slow, [T1])


def test_a_transaction_does_not_end_while_a_batch_is_appended(faulty: Faulty) -> None:
    engine, transactions = faulty.engine, faulty.engine.transactions
    producer, order = begun(engine), list[str]()

    def end() -> None:
        transactions.end_decided(ID, producer, commit=True)
        order.append("ended")

    with transactions.writing(ID, producer, T0):
        ending = threading.Thread(target=end)
        ending.start()
        append(engine, producer, b"second", sequence=1)
        order.append("appended")
    ending.join(WAIT_S)
    assert order == ["appended", "ended"]
    assert committed(engine) == [b"tx", b"second"]
    with pytest.raises(InvalidTxnStateError), transactions.writing(ID, producer, T0):
        append(engine, producer, b"late", sequence=2)
    assert stable(engine.log(*T0))


def test_a_decided_end_is_completed_by_the_duty_if_a_marker_cannot_be_written(
    faulty: Faulty, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(28, "no space left on device")

    engine, transactions = faulty.engine, faulty.engine.transactions
    producer = begun(engine)
    faulty.before = fail
    assert transactions.end_decided(ID, producer, commit=True) == producer
    assert "not complete yet" in caplog.text
    with pytest.raises(ConcurrentTransactionsError):
        transactions.add_partitions(ID, producer, [T0])
    faulty.before = None
    clock.advance_ms(10_000)
    engine.run_duties()
    assert (status(engine), committed(engine)) == (TransactionStatus.COMPLETE_COMMIT, [b"tx"])


@pytest.mark.parametrize("version", [0, 2])
def test_a_commit_of_a_transaction_that_timed_out_fails_although_its_abort_is_not_complete(
    faulty: Faulty, clock: ManualClock, *, version: int
) -> None:
    def fail() -> None:
        raise OSError(28, "no space left on device")

    engine, transactions = faulty.engine, faulty.engine.transactions
    producer = begun(engine, version=version)
    faulty.before = fail
    clock.advance_ms(MINUTE_MS + 1)
    assert transactions.abort_expired() == ()  # the marker is missing
    assert status(engine) == TransactionStatus.PREPARE_ABORT
    with pytest.raises(InvalidTxnStateError if version else ProducerFencedError):
        transactions.end_decided(ID, producer, commit=True, version=version)
    faulty.before = None
    transactions.abort_expired()
    assert (status(engine), committed(engine)) == (TransactionStatus.COMPLETE_ABORT, [])


def test_a_log_that_cannot_be_written_does_not_keep_others_from_their_markers(
    faulty: Faulty, clock: ManualClock
) -> None:
    def fail() -> None:
        raise OSError(28, "no space left on device")

    engine, transactions = faulty.engine, faulty.engine.transactions
    producer = begun(engine, ID, T0, T1)
    faulty.before = fail
    transactions.end_decided(ID, producer, commit=True)
    assert [committed(engine, name) for name in (T0, T1)] == [[], [b"tx"]]
    ends = engine.log(*T1).offsets().log_end
    for _ in range(2):
        clock.advance_ms(10_000)
        engine.run_duties()
        faulty.before = None
    assert [committed(engine, name) for name in (T0, T1)] == [[b"tx"], [b"tx"]]
    assert engine.log(*T1).offsets().log_end == ends  # no second marker


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_continues_after_a_restart(
    engine: Engine, tmp_path: Path, clock: ManualClock, *, commit: bool
) -> None:
    producer = begun(engine)
    with open_engine(crashed(tmp_path), env=Env(clock=clock)) as restarted:
        restarted.transactions.recover()
        assert status(restarted) == TransactionStatus.ONGOING
        with restarted.transactions.writing(ID, producer, T0):
            append(restarted, producer, b"after", sequence=1)
        restarted.transactions.end_decided(ID, producer, commit=commit)
        assert committed(restarted) == ([b"tx", b"after"] if commit else [])
        assert stable(restarted.log(*T0))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("markers", [0, 1])
def test_a_prepared_transaction_is_completed_after_a_restart(
    engine: Engine, tmp_path: Path, clock: ManualClock, *, version: int, commit: bool, markers: int
) -> None:
    producer = begun(engine, ID, T0, T1, version=version)
    state = engine.transactions.state(ID)
    assert state is not None
    prepared_status = TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
    epoch = producer.epoch + version // 2
    value = transaction_value(replace(state, status=prepared_status, producer_epoch=epoch), version // 2)
    engine.log(TRANSACTIONS_TOPIC).append([Record(timestamp_ms=NOW_MS, key=transaction_key(ID), value=value)])
    for name in [T0, T1][:markers]:
        engine.log(*name).end_transaction(producer.producer_id, epoch, commit=commit, coordinator_epoch=0)
    with open_engine(crashed(tmp_path), env=Env(clock=clock)) as restarted:
        restarted.transactions.recover()
        assert [committed(restarted, name) for name in (T0, T1)] == [[b"tx"] if commit else []] * 2
        # a repeated request
        following = restarted.transactions.end_decided(ID, producer, commit=commit, version=version)
        assert following == (producer.producer_id, epoch)
        with pytest.raises(InvalidTxnStateError):
            restarted.transactions.end_decided(ID, producer, commit=not commit, version=version)


def test_a_transaction_whose_state_is_lost_is_aborted(engine: Engine, tmp_path: Path) -> None:
    begun(engine)
    crashed_dir = crashed(tmp_path)
    for path in crashed_dir.glob(f"{TRANSACTIONS_TOPIC}-*/*.log"):
        path.write_bytes(b"")
    with open_engine(crashed_dir) as restarted:
        restarted.transactions.recover()
        assert stable(restarted.log(*T0))
        assert committed(restarted) == []


def test_a_state_that_cannot_be_read_aborts_nothing(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(engine)
    crashed_dir = crashed(tmp_path)
    (crashed_dir / f"{TRANSACTIONS_TOPIC}-0" / "partition.metadata").write_text("nonsense")
    with open_engine(crashed_dir) as restarted:
        restarted.transactions.recover()
        assert "cannot be read" in caplog.text
        assert not stable(restarted.log(*T0))


def test_a_decided_commit_is_not_aborted_by_a_restart_that_cannot_write_its_marker(
    engine: Engine, tmp_path: Path, clock: ManualClock
) -> None:
    def fail() -> None:
        failures.append(1)
        if len(failures) == 1:  # fail only the marker of the commit; later writes could succeed
            raise OSError(28, "no space left on device")

    failures = list[int]()
    producer = engine.transactions.open(ID, MINUTE_MS)
    engine.transactions.add_partitions(ID, producer, [T0])
    append(engine, producer, b"tx")
    state = engine.transactions.state(ID)
    assert state is not None
    value = transaction_value(replace(state, status=TransactionStatus.PREPARE_COMMIT), 0)
    engine.log(TRANSACTIONS_TOPIC).append([Record(timestamp_ms=NOW_MS, key=transaction_key(ID), value=value)])
    restarted = Faulty(crashed(tmp_path), clock)
    with restarted.engine:
        restarted.before = fail
        restarted.engine.transactions.recover()
        restarted.engine.transactions.abort_expired()
        assert failures
        assert committed(restarted.engine) == [b"tx"]


# --- ids -------------------------------------------------------------------------------------------------------------


def test_producers_inside_and_outside_the_process_do_not_share_a_producer_id(engine: Engine) -> None:
    external = engine.transactions.init_producer(ID, MINUTE_MS)
    internal = engine.transactions.open(ID, MINUTE_MS)
    second_external = engine.transactions.init_producer(ID, MINUTE_MS)
    assert [is_external(producer.producer_id) for producer in (external, internal, second_external)] == [
        True,
        False,
        True,
    ]
    assert is_internal(internal.producer_id)
    assert {producer.epoch for producer in (external, internal, second_external)} == {0}
    for stale in (external, internal):
        with pytest.raises(InvalidProducerIdMappingError):
            engine.transactions.add_partitions(ID, stale, [T0])


def test_an_unused_transactional_id_is_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    settings = {"transactional.id.expiration.ms": DAY_MS}
    with open_engine(tmp_path, env=Env(clock=clock), config=settings) as engine:
        prepare(engine)
        engine.transactions.init_producer(ID, MINUTE_MS)
        clock.advance_ms(DAY_MS - 1)
        engine.transactions.init_producer(OTHER_ID, MINUTE_MS)
        engine.run_duties()
        assert set(engine.transactions.states()) == {ID, OTHER_ID}
        clock.advance_ms(10_000)
        engine.run_duties()
        assert set(engine.transactions.states()) == {OTHER_ID}
        last = list(engine.log(TRANSACTIONS_TOPIC).records())[-1]
        assert (last.key, last.value) == (transaction_key(ID), None)


def test_a_log_out_of_service_does_not_end_the_duty(faulty: Faulty, clock: ManualClock) -> None:
    """Such a log raises ClosedError, although the engine is open. The duty once took it for the end of the engine."""
    engine = faulty.engine
    begun(engine)
    producer = begun(engine, OTHER_ID, T1)

    def fail() -> None:
        raise ValueError("no error of the disk")

    faulty.before = fail
    with pytest.raises(ValueError, match="no error"):
        append(engine, producer, b"2", sequence=1)
    clock.advance_ms(2 * MINUTE_MS)
    engine.run_duties()
    assert (status(engine, ID), status(engine, OTHER_ID)) == (
        TransactionStatus.PREPARE_ABORT,
        TransactionStatus.COMPLETE_ABORT,
    )
    assert engine.log(*T1).open_transactions() == []
    assert engine.transactions.abort_expired() == ()


def test_the_duty_ends_without_messages_if_the_engine_is_closed_meanwhile(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"transactional.id.expiration.ms": DAY_MS}
    with open_engine(tmp_path, env=Env(clock=clock), config=settings) as engine:
        prepare(engine)
        begun(engine)
        engine.transactions.init_producer(OTHER_ID, MINUTE_MS)
        clock.advance_ms(2 * DAY_MS)
        closing, is_closed = threading.Thread(target=engine.close), threading.Event()
        readable_states, end = TransactionLog.readable_states, EngineLogs.end

        def close_after_read(log: TransactionLog) -> tuple[dict[str, TransactionState], bool]:
            states = readable_states(log)
            closing.start()
            is_closed.wait(WAIT_S)
            return states

        def end_logs(logs: EngineLogs) -> None:
            end(logs)
            is_closed.set()

        monkeypatch.setattr(TransactionLog, "readable_states", close_after_read)
        monkeypatch.setattr(EngineLogs, "end", end_logs)
        engine.run_duties()
        closing.join(WAIT_S)
    assert [record.getMessage() for record in caplog.records] == []


def test_the_states_that_need_it_are_stored_in_version_1(engine: Engine) -> None:
    for transactional_id, version in ((ID, 0), (OTHER_ID, 2)):
        producer = begun(engine, transactional_id, T0, version=version)
        engine.transactions.end_decided(transactional_id, producer, commit=True, version=version)
    versions: dict[str, set[int | None]] = {}
    for record in engine.log(TRANSACTIONS_TOPIC).records():
        parsed = parse_transaction_record(record.key, record.value)
        assert parsed is not None
        versions.setdefault(parsed.key.transactional_id, set()).add(parsed.value_version)
    assert versions == {ID: {0}, OTHER_ID: {0, 1}}  # the first state of an id has no version yet


def test_a_producer_may_repeat_the_request_that_has_replaced_its_id(engine: Engine) -> None:
    last = with_last_epoch(engine)
    following = engine.transactions.init_producer(ID, MINUTE_MS, last)
    assert following.producer_id != last.producer_id
    assert engine.transactions.init_producer(ID, MINUTE_MS, last) == following


def test_the_last_epoch_is_followed_by_a_new_id(engine: Engine) -> None:
    last = with_last_epoch(engine)
    engine.transactions.add_partitions(ID, last, [T0], version=2)
    append(engine, last, b"last")
    following = engine.transactions.end_decided(ID, last, commit=True, version=2)
    assert following.epoch == 0
    assert following.producer_id != last.producer_id
    assert engine.transactions.end_decided(ID, last, commit=True, version=2) == following
    engine.transactions.add_partitions(ID, following, [T0], version=2)
    append(engine, following, b"next")
    engine.transactions.end_decided(ID, following, commit=True, version=2)
    assert committed(engine) == [b"last", b"next"]
