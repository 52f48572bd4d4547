"""Transactions of producers: visibility for readers, fencing, and their completion after a restart."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from inside import clients, transaction
from stratalog import Engine, Record, TopicPartition, open_engine
from stratalog.client.clients import Clients
from stratalog.client.committed_offsets import CommittedOffset
from stratalog.client.partitioner import partition_of_name
from stratalog.client.producer import Producer
from stratalog.client.sender import Sender
from stratalog.client.sequences import LAST_EPOCH, ProducerId
from stratalog.client.transactions.transaction_states import partitions_in
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    ClosedError,
    DiskFullError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogDirOfflineError,
    ProducerFencedError,
    StorageError,
    TransactionAbortedError,
    UnknownTopicError,
)
from stratalog.log.log import Log
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionState,
    TransactionStatus,
    transaction_key,
    transaction_value,
)
from stratalog.testing.faults import FaultyVfs

WAIT_S = 30
FOREVER_MS = 1 << 40
ID = "tx"


def committed(engine: Engine, topic: str = "t") -> list[bytes | None]:
    logs = [engine.log(*name) for name in engine.partitions() if name.topic == topic]
    return sorted(
        (record.value for log in logs for record in log.records(isolation="read_committed")), key=lambda v: v or b""
    )


def state(engine: Engine, transactional_id: str = ID) -> TransactionState:
    return clients(engine).coordinator.states()[transactional_id]


def store(engine: Engine, changed: TransactionState) -> TransactionState:
    """Append a state of the producer to the topic ``__transaction_state``, and return the state."""
    record = Record(timestamp_ms=0, key=transaction_key(ID), value=transaction_value(changed, 0))
    engine.log(TRANSACTIONS_TOPIC, partition_of_name(ID, 50)).append([record])
    return changed


def stable(log: Log) -> bool:
    return log.offsets().last_stable == log.offsets().log_end


def interrupted(*_: object, **__: object) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does in a call that waits."""
    raise KeyboardInterrupt


def write(producer: Producer, *values: bytes) -> None:
    for number, value in enumerate(values):
        producer.send("t", partition=number % 3, value=value)


# --- commit and abort --------------------------------------------------------------------------------------------


def test_a_committed_transaction_is_seen_and_an_aborted_one_is_not(engine: Engine) -> None:
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"a", b"b", b"c")
        producer.flush()
        assert committed(engine) == []
        producer.commit_transaction()
        assert committed(engine) == [b"a", b"b", b"c"]
        producer.begin_transaction()
        write(producer, b"d", b"e")
        producer.flush()
        producer.abort_transaction()
        assert committed(engine) == [b"a", b"b", b"c"]
        producer.begin_transaction()
        write(producer, b"f")
        producer.commit_transaction()
    assert committed(engine) == [b"a", b"b", b"c", b"f"]
    assert all(stable(engine.log("t", partition)) for partition in range(3))


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_the_state_is_stored_in_kafkas_topic(engine: Engine, clock: ManualClock) -> None:
    with engine.producer(transactional_id=ID, transaction_timeout_ms=1234) as producer:
        initial = state(engine)
        assert (initial.status, initial.partitions, initial.timeout_ms) == (TransactionStatus.EMPTY, None, 1234)
        assert initial.start_timestamp_ms == -1
        producer.begin_transaction()
        write(producer, b"a", b"b")
        begin_ms = clock.now_ms()
        clock.advance_ms(10)
        ongoing = state(engine)
        assert ongoing.status == TransactionStatus.ONGOING
        assert partitions_in(ongoing) == [TopicPartition("t", 0), TopicPartition("t", 1)]
        assert ongoing.start_timestamp_ms == begin_ms
        producer.commit_transaction()
    completed = state(engine)
    assert (completed.status, completed.partitions) == (TransactionStatus.COMPLETE_COMMIT, ())
    assert (completed.start_timestamp_ms, completed.last_update_timestamp_ms) == (begin_ms, clock.now_ms())
    names = [name for name in engine.partitions() if name.topic == TRANSACTIONS_TOPIC]
    assert len(names) == 50
    assert engine.topics()[TRANSACTIONS_TOPIC].config.cleanup_policy == ("compact",)
    used_partitions = [name.partition for name in names if engine.log(*name).offsets().log_end]
    assert used_partitions == [partition_of_name(ID, 50)]


def test_an_empty_transaction_leaves_nothing(engine: Engine) -> None:
    with engine.producer(transactional_id=ID) as producer:
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            end()
    assert state(engine).status == TransactionStatus.EMPTY
    assert engine.log("t", 0).offsets().log_end == 0


def test_calls_have_an_order(engine: Engine) -> None:
    with engine.producer(transactional_id=ID) as producer:
        for call in (producer.commit_transaction, producer.abort_transaction, lambda: producer.send("t", value=b"v")):
            with pytest.raises(InvalidTxnStateError, match="no transaction is open: call begin_transaction first"):
                call()
        producer.begin_transaction()
        with pytest.raises(InvalidTxnStateError, match="a transaction is open: commit or abort it"):
            producer.begin_transaction()
        with pytest.raises(UnknownTopicError):
            producer.send("nowhere", value=b"v")
        producer.commit_transaction()


def test_an_abort_drops_what_still_waits(engine: Engine) -> None:
    with engine.producer(transactional_id=ID, linger_ms=FOREVER_MS) as producer:
        producer.begin_transaction()
        future = producer.send("t", partition=0, value=b"v")
        producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            future.result(WAIT_S)
        producer.begin_transaction()
        write(producer, b"next")
        producer.commit_transaction()
    assert [record.value for record in engine.log("t", 0).records()] == [b"next"]


def test_an_interrupted_abort_finishes_the_dropped_records_and_can_be_repeated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.producer(transactional_id=ID, linger_ms=FOREVER_MS) as producer:
        producer.begin_transaction()
        future = producer.send("t", partition=0, value=b"dropped")
        monkeypatch.setattr(Sender, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.abort_transaction()
        assert isinstance(future.exception(WAIT_S), TransactionAbortedError)
        monkeypatch.undo()
        producer.abort_transaction()


def test_an_end_that_is_interrupted_while_another_thread_sends_can_be_repeated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"0")
        monkeypatch.setattr(threading.Condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        monkeypatch.undo()
        producer.commit_transaction()
    assert committed(engine) == [b"0"]


def test_a_transaction_that_misses_a_record_can_only_be_aborted(engine: Engine) -> None:
    engine.create_topic("keyed", config={"cleanup.policy": "compact"})
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"a")
        future = producer.send("keyed", value=b"no key")
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        assert isinstance(future.exception(WAIT_S), InvalidRecordError)
        with pytest.raises(TransactionAbortedError):
            producer.send("t", value=b"v")
        producer.abort_transaction()
        producer.begin_transaction()
        write(producer, b"b")
        producer.commit_transaction()
    assert committed(engine) == [b"b"]


def test_after_an_unknown_outcome_an_abort_takes_the_next_epoch(engine: Engine) -> None:
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"a")
        producer.flush()
        transaction(producer).note_failure(LogDirOfflineError("it broke after the write", "disk"), unsure=True)
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        producer.abort_transaction()
        assert state(engine).producer_epoch == 1
        producer.begin_transaction()
        write(producer, b"b")
        producer.commit_transaction()
    assert committed(engine) == [b"b"]


def test_an_engine_closes_even_if_a_transaction_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise LogDirOfflineError("the disk is gone", "disk")

    engine = open_engine(tmp_path)
    engine.create_topic("t")
    producers = [engine.producer(transactional_id=f"{number}") for number in range(3)]
    for producer in producers:
        producer.begin_transaction()
        producer.send("t", value=b"v")
    with monkeypatch.context() as patch:
        patch.setattr(clients(engine).coordinator, "end", failing)
        with pytest.raises(LogDirOfflineError):
            engine.close()
    for producer in producers:
        with pytest.raises(ClosedError):
            producer.send("t", value=b"v")
    with open_engine(tmp_path) as reopened, reopened.consumer(topics=["t"]):
        assert stable(reopened.log("t", 0))


def test_a_block_that_ends_early_aborts(engine: Engine) -> None:
    def work() -> None:
        with engine.producer(transactional_id=ID) as producer:
            producer.begin_transaction()
            write(producer, b"a")
            producer.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(engine) == []
    assert state(engine).status == TransactionStatus.COMPLETE_ABORT


# --- fencing -----------------------------------------------------------------------------------------------------


def test_a_newer_producer_fences_the_older_and_aborts_what_it_left(engine: Engine) -> None:
    old = engine.producer(transactional_id=ID)
    old.begin_transaction()
    write(old, b"old")
    old.flush()
    with engine.producer(transactional_id=ID) as new:
        assert stable(engine.log("t", 0))
        new.begin_transaction()
        write(new, b"new")
        late = old.send("t", partition=0, value=b"late")
        assert isinstance(late.exception(WAIT_S), Exception)
        with pytest.raises(ProducerFencedError):
            old.send("t", partition=1, value=b"late")
        with pytest.raises(ProducerFencedError):
            old.commit_transaction()
        new.commit_transaction()
    old.close()
    assert committed(engine) == [b"new"]


def test_a_fenced_producer_cannot_reach_another_partition(engine: Engine) -> None:
    old = engine.producer(transactional_id=ID)
    old.begin_transaction()
    engine.producer(transactional_id=ID).close()
    with pytest.raises(ProducerFencedError):
        old.send("t", value=b"late")
    with pytest.raises(ProducerFencedError):
        old.begin_transaction()
    old.close()
    assert all(engine.log("t", partition).offsets().log_end == 0 for partition in range(3))


def test_other_ids_are_not_disturbed(engine: Engine) -> None:
    with engine.producer(transactional_id="a") as first, engine.producer(transactional_id="b") as second:
        first.begin_transaction()
        second.begin_transaction()
        write(first, b"a")
        first.flush()  # the earlier writer is opened before the other one
        write(second, b"b")
        second.commit_transaction()
        assert committed(engine) == []  # hidden behind the open transaction of the other writer
        first.abort_transaction()
        assert committed(engine) == [b"b"]


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_each_opening_takes_the_next_epoch_and_a_last_one_another_id(engine: Engine) -> None:
    coordinator = clients(engine).coordinator
    first = coordinator.open(ID, 1000)
    second = coordinator.open(ID, 1000)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    store(engine, replace(state(engine), producer_epoch=LAST_EPOCH - 1))
    third = coordinator.open(ID, 1000)
    assert third.producer_id != first.producer_id
    assert third.epoch == 0


# --- transactions that are open at a restart ---------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted(engine: Engine, clock: ManualClock) -> None:
    producer = engine.producer(transactional_id=ID, transaction_timeout_ms=1000)
    producer.begin_transaction()
    write(producer, b"slow")
    producer.flush()
    clock.advance_ms(1000)
    assert clients(engine).coordinator.abort_expired() == ()
    clock.advance_ms(1)
    assert clients(engine).coordinator.abort_expired() == (ID,)
    assert stable(engine.log("t", 0))
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    producer.close()
    assert committed(engine) == []


def crashed(tmp_path: Path) -> Path:
    """Return a copy of the directory of ``engine``, as a crash would leave it now."""
    return shutil.copytree(tmp_path / "engine", tmp_path / "left", ignore=shutil.ignore_patterns(".lock"))


def test_a_restart_aborts_what_was_left_open(engine: Engine, tmp_path: Path) -> None:
    producer = engine.producer(transactional_id=ID)
    producer.begin_transaction()
    write(producer, b"a", b"b")
    producer.flush()
    crashed_dir = crashed(tmp_path)
    with open_engine(crashed_dir) as restarted:
        assert not stable(restarted.log("t", 0))
        with restarted.consumer(topics=["t"], isolation="read_committed"):
            assert all(stable(restarted.log("t", partition)) for partition in range(3))
        assert committed(restarted) == []
        assert state(restarted).status == TransactionStatus.COMPLETE_ABORT
        assert state(restarted).producer_epoch == 1


def test_a_restart_aborts_what_the_state_has_forgotten(engine: Engine, tmp_path: Path) -> None:
    """A power loss may lose the end of the state topic but not the end of the log with the transaction."""
    producer = engine.producer(transactional_id=ID)
    producer.begin_transaction()
    write(producer, b"a")
    producer.flush()
    crashed_dir = crashed(tmp_path)
    for path in crashed_dir.glob(f"{TRANSACTIONS_TOPIC}-*/*.log"):
        path.write_bytes(b"")
    with open_engine(crashed_dir) as restarted:
        assert restarted.log("t", 0).open_transactions()
        with restarted.consumer(topics=["t"], isolation="read_committed", auto_offset_reset="earliest") as consumer:
            assert consumer.poll() == {}
        assert stable(restarted.log("t", 0))


def test_an_interrupted_recovery_is_repeated(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = engine.producer(transactional_id=ID)
    producer.begin_transaction()
    write(producer, b"a")
    producer.flush()
    with open_engine(crashed(tmp_path)) as restarted:
        monkeypatch.setattr(Log, "end_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restarted.consumer(topics=["t"])
        monkeypatch.undo()
        with restarted.consumer(topics=["t"]):
            assert stable(restarted.log("t", 0))


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_unreadable_state_does_not_stop_other_calls(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"a")
        producer.commit_transaction()
    crashed_dir = crashed(tmp_path)
    (crashed_dir / f"{TRANSACTIONS_TOPIC}-{partition_of_name(ID, 50)}" / "partition.metadata").write_text("nonsense")
    with open_engine(crashed_dir) as restarted:
        with restarted.consumer(topics=["t"], auto_offset_reset="earliest") as consumer:
            assert [record.value for _, record in consumer] == [b"a"]
        assert "cannot be read" in caplog.text
        with pytest.raises(StorageError):
            restarted.producer(transactional_id=ID)


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_the_steps_of_a_durable_end_are_on_disk_one_after_the_other(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("t")
        with engine.producer(transactional_id=ID, durability="durable") as producer:
            producer.begin_transaction()
            producer.send("t", value=b"v")
            producer.flush()
            files.done.clear()
            producer.commit_transaction()
            state_log = f"{TRANSACTIONS_TOPIC}-{partition_of_name(ID, 50)}"
            steps = [
                (operation, Path(path).parent.name)
                for operation, path in files.done
                if operation in {"write", "sync"} and path.endswith(".log")
            ]
    distinct_steps = [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]
    assert distinct_steps == [
        (operation, log) for log in (state_log, "t-0", state_log) for operation in ("write", "sync")
    ]


@pytest.mark.parametrize("status", [TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT])
@pytest.mark.parametrize("markers", [0, 1])
@pytest.mark.usefixtures("kafkas_state_partitions")
@pytest.mark.long
def test_a_restart_ends_what_was_settled(
    engine: Engine, tmp_path: Path, status: TransactionStatus, markers: int
) -> None:
    commit = status is TransactionStatus.PREPARE_COMMIT
    producer = engine.producer(transactional_id=ID)
    producer.begin_transaction()
    write(producer, b"a", b"b")
    producer.flush()
    prepared = store(engine, replace(state(engine), status=status))
    for name in partitions_in(prepared)[:markers]:
        engine.log(*name).end_transaction(
            prepared.producer_id, prepared.producer_epoch, commit=commit, coordinator_epoch=0
        )
    crashed_dir = crashed(tmp_path)
    with open_engine(crashed_dir) as restarted:
        with restarted.producer(transactional_id=ID) as next_one:
            assert committed(restarted) == ([b"a", b"b"] if commit else [])
            next_one.begin_transaction()
            write(next_one, b"c")
            next_one.commit_transaction()
        assert committed(restarted) == ([b"a", b"b", b"c"] if commit else [b"c"])
    # the earlier producer continues where it stopped
    (producer.commit_transaction if commit else producer.abort_transaction)()
    assert committed(engine) == ([b"a", b"b"] if commit else [])


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_a_brokers_client_keeps_its_open_transaction_until_its_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    broker_producer = ProducerId(4711, 0)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        engine.create_topic("t")
        coordinator = clients(engine).coordinator
        coordinator.open(ID, 5000)
        store(
            engine,
            replace(state(engine), producer_id=broker_producer.producer_id, producer_epoch=broker_producer.epoch),
        )
        coordinator.add_partitions(ID, broker_producer, [TopicPartition("t", 0)])
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        clients(engine).coordinator.recover()
        assert state(engine).status == TransactionStatus.ONGOING
    clock.advance_ms(5001)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        clients(engine).coordinator.recover()
        assert state(engine).status == TransactionStatus.COMPLETE_ABORT


# --- offsets -----------------------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_count_when_it_is_committed(engine: Engine) -> None:
    name = TopicPartition("t", 0)
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        producer.send_offsets("g", {name: 5})
        producer.flush()
        assert clients(engine).offsets.committed("g") == {}
        producer.commit_transaction()
        assert clients(engine).offsets.committed("g") == {name: CommittedOffset(5)}
        producer.begin_transaction()
        producer.send_offsets("g", {name: CommittedOffset(9, 2, "text")})
        producer.abort_transaction()
        assert clients(engine).offsets.committed("g") == {name: CommittedOffset(5)}


def test_later_commits_stand_when_a_transaction_ends_late(engine: Engine) -> None:
    name, other_name = TopicPartition("t", 0), TopicPartition("t", 1)
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        producer.send_offsets("g", {name: 5, other_name: 6})
        producer.flush()
        clients(engine).offsets.commit("g", {name: 7})
        producer.commit_transaction()
    assert clients(engine).offsets.committed("g") == {name: CommittedOffset(7), other_name: CommittedOffset(6)}


def test_offsets_of_a_deleted_topic_do_not_come_back_with_an_open_transaction(engine: Engine) -> None:
    """Otherwise the group would skip the first records of a new topic with the same name."""
    old, other_name = TopicPartition("one", 0), TopicPartition("t", 0)
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        producer.send_offsets("g", {old: 5, other_name: 3})
        producer.flush()
        engine.delete_topic("one")
        producer.commit_transaction()
    engine.create_topic("one")
    # from memory, and after reading the offsets again
    for reader in (
        clients(engine),
        Clients(engine, engine.log("t", 0).components),
    ):
        assert reader.offsets.committed("g") == {other_name: CommittedOffset(3)}


def test_read_process_write_is_exactly_once(engine: Engine) -> None:
    """A worker fails and restarts: each record is processed in exactly one committed transaction."""
    with engine.producer() as producer:
        for number in range(10):
            producer.send("one", value=b"%d" % number)
    for ends_well in (True, False, True, False, True):
        with (
            engine.consumer(
                group="w", topics=["one"], isolation="read_committed", auto_offset_reset="earliest"
            ) as reader,
            engine.producer(transactional_id="w") as writer,
        ):
            while records := reader.poll(max_records=3):
                writer.begin_transaction()
                for record in records[TopicPartition("one", 0)]:
                    writer.send("t", key=record.value, value=record.value)
                writer.send_offsets("w", reader.positions())
                if not ends_well:
                    writer.abort_transaction()
                    break
                writer.commit_transaction()
                break
    assert committed(engine) == [b"%d" % number for number in range(9)]


def test_a_running_engine_looks_for_transactions_that_take_too_long(engine: Engine, clock: ManualClock) -> None:
    producer = engine.producer(transactional_id=ID, transaction_timeout_ms=1000)
    producer.begin_transaction()
    write(producer, b"slow")
    producer.flush()
    clock.advance_ms(60_000)
    engine.run_duties()
    assert stable(engine.log("t", 0))
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()


# --- markers that a full disk delayed -------------------------------------------------------------------------------


class HalfEnded(NamedTuple):
    """An engine that cannot write markers to ``full-0``, and a producer with a transaction in two topics."""

    engine: Engine
    clock: ManualClock
    files: FaultyVfs
    producer: Producer

    def make_room(self) -> None:
        self.files.rule = self.files.room_bytes = None

    def seen(self) -> list[bytes | None]:
        return committed(self.engine, "room") + committed(self.engine, "full")


@pytest.fixture
def half(tmp_path: Path, clock: ManualClock) -> Iterator[HalfEnded]:
    def full(operation: str, path: str) -> None:
        files.room_bytes = 0 if operation == "write" and path.endswith(f"full-0/{0:020}.log") else None

    files = FaultyVfs()
    with open_engine(tmp_path / "half", env=Env(files=files, clock=clock)) as engine:
        for topic in ("room", "full"):
            engine.create_topic(topic)
        producer = engine.producer(transactional_id=ID)
        producer.begin_transaction()
        for topic in ("room", "full"):
            producer.send(topic, value=topic.encode())
        producer.flush()
        files.rule = full
        yield HalfEnded(engine, clock, files, producer)
        files.rule = files.room_bytes = None


def end(half: HalfEnded, *, commit: bool) -> None:
    (half.producer.commit_transaction if commit else half.producer.abort_transaction)()


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_a_transaction_that_a_full_disk_stopped_is_completed_later(half: HalfEnded, *, commit: bool) -> None:
    with pytest.raises(DiskFullError):
        end(half, commit=commit)
    half.clock.advance_ms(60_000)
    half.engine.run_duties()  # the disk is still full: the engine raises no error, and retries later
    assert not stable(half.engine.log("full", 0))
    half.make_room()
    half.clock.advance_ms(60_000)
    half.engine.run_duties()
    assert stable(half.engine.log("full", 0))
    assert half.seen() == ([b"room", b"full"] if commit else [])
    end(half, commit=commit)  # the producer repeats its request, and continues
    half.producer.begin_transaction()
    half.producer.send("room", value=b"then")
    half.producer.commit_transaction()
    assert committed(half.engine, "room") == ([b"room", b"then"] if commit else [b"then"])


@pytest.mark.parametrize("commit", [True, False])
def test_records_behind_a_marker_are_refused_until_the_transaction_has_ended(half: HalfEnded, *, commit: bool) -> None:
    with pytest.raises(DiskFullError):
        end(half, commit=commit)
    with pytest.raises(InvalidTxnStateError, match="commit or abort it again"):
        half.producer.send("room", value=b"late")
    half.make_room()
    end(half, commit=commit)
    assert half.seen() == ([b"room", b"full"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_closing_ends_a_transaction_as_it_was_settled(half: HalfEnded, *, commit: bool) -> None:
    with pytest.raises(DiskFullError):
        end(half, commit=commit)
    half.make_room()
    half.producer.close()
    assert half.seen() == ([b"room", b"full"] if commit else [])
    assert stable(half.engine.log("full", 0))


def test_the_topic_of_transactions_may_be_deleted_and_is_created_again(engine: Engine) -> None:
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"a")
        producer.commit_transaction()
    engine.delete_topic(TRANSACTIONS_TOPIC)
    assert clients(engine).coordinator.states() == {}
    assert clients(engine).coordinator.abort_expired() == ()
    with engine.producer(transactional_id=ID) as producer:
        producer.begin_transaction()
        write(producer, b"b")
        producer.commit_transaction()
    assert committed(engine) == [b"a", b"b"]
